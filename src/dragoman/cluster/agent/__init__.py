"""The program on each host, started over ssh: `python -m dragoman.cluster.agent FOLDER`.

Its standard input and output are the connection to the controller (`cluster.messages`). When its
input ends, it ends every process that it started; only workers may first save, for a minute.

channel    its end of the connection; when the controller counts as lost
network    interfaces, addresses, listening sockets
facts      the facts of this host
measuring  the process that measures
work       its share of the work: it joins a training as `dragoman join` does, or measures the
           network
"""
