"""The program on each host, started over ssh: `python -m dragoman.cluster.agent VERB FOLDER`.

It reads commands as lines of JSON from its standard input and answers with lines of JSON. When its
input ends, it ends every process that it started; only workers may first save, for a minute.

channel    lines of JSON, in and out; when the controller counts as lost
network    interfaces, addresses, listening sockets
facts      the facts of this host
processes  the process that measures, and the store
work       its share of a job that all hosts do together: training, or measuring the network
"""
