"""Shows a run while it goes on: the report's facts, read again and again.

live     lines that are added to the log of a run -> its present state
remote   the log of a run on other hosts, copied here over ssh while it grows
screen   the state as lines for a terminal; `api.records.watch` draws them again and again
web      the report, written again while the run goes on, and served to a browser on this machine
status   the states of several runs, a line each
"""
