"""A run while it runs: the same facts as the report's, read again and again.

follow        new lines of files that grow, are cut short or replaced
live          those lines -> where the run stands now
remote        the same files, copied here over ssh while they grow
sender        what a host runs for that
charts        curves and bars in characters
screen        all of it on a terminal
page, server  all of it in a browser on this machine
status        where runs stand: a line each
"""
