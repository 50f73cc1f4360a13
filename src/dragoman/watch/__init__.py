"""A run while it runs: the same facts as the report's, read again and again.

live     new lines of files that grow, are cut short or replaced -> where the run stands now
remote   the same files, copied here over ssh while they grow
sender   what a host runs for that
screen   where the run stands, on a terminal
server   the same in a browser on this machine
status   where runs stand: a line each
"""
