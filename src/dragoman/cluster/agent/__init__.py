"""The program on each host, started over ssh: `python -m dragoman.cluster.agent VERB FOLDER`.

It reads commands as lines of JSON from its standard input and answers with lines of JSON. When its
input ends, it ends all that it started: no process outlives the connection.

channel    lines of JSON, in and out
network    interfaces, addresses, listening sockets
facts      the facts of this host
measuring  the process that measures its steps, and the network with other hosts
work       its share of a job that all hosts do together: training, or measuring the network
lock       one agent a run on each machine
spool      events as they are written, on their way to the user
"""
