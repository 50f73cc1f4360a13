"""Modules that every other package uses.

errors        errors with place and remedy, and their exit codes
printable     text of strangers without escape sequences
units         numbers with units: read and written
languages     language codes: one table of aliases, scripts and regions
docstrings    docstrings -> the meaning of each name
settings      sections of a recipe: strict pydantic models
files         whole files or none
disk_errors   errors of disks and files, each in one line with a remedy
line_files    a file made line by line from another, which can be resumed
interrupts    Ctrl-C at any moment
process       standard streams, a reader that has gone, the one line in which a command ends
terminal      a console with harmless texts; whether work goes on when its reader has gone
threads       how long threads spin while they wait for each other
memory        memory that glibc and oneDNN keep; the error when it runs out
extensions    parts that other packages add by entry points
version       the version of dragoman
"""
