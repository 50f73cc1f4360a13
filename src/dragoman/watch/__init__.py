"""Shows a run while it goes on: the report's facts, read again and again.

live     new lines of files that grow, are cut short or replaced -> the present state of the run
remote   the same files, copied here over ssh while they grow
sender   the program on a host that sends them
screen   the state as lines for a terminal; cli/watch draws them again and again
server   the state in a browser on this machine
status   the states of several runs, a line each
"""
