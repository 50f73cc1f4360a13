"""Training on several hosts: plans, doctor, and a run over them (never imports torch).

The controller is the command that the user has started. On every host `dragoman join` runs, be it
started by a scheduler or by the controller over ssh, and torchrun's elastic agents meet.

hosts             the machines: hosts.toml or the inline form

Plans, before any machine is rented:
plan_request      from the options of `dragoman plan` to a plan
plan              the cheapest and the quickest way to train, as text and as JSON
options           every way to train a run on certain hosts, in hours and money
workload          the requirements of a recipe for the machines
rates             speeds of devices, of links inside hosts and of networks, each with its source

Connections to the hosts:
ssh               OpenSSH as a list of arguments; when a host counts as lost
setup             installs a Python environment on every host
files             copies directories to a host, and back
lines, joins      the lines between the controller and the hosts; the controller's end of them

On each host:
join              how the machines of a run find each other, whoever starts them
join_host         `join` as the controller starts it over ssh
channel           its end of the connection; when the controller counts as lost
network           interfaces, addresses, listening sockets
host_facts        the facts that a host can find out alone
measuring         the process that measures

Doctor:
collect, facts    collects the facts of all hosts at once, and keeps them for plans; their types
checks            from these facts to findings and remedies
doctor_view       the findings as a table and as JSON

A run over the hosts:
training          the whole run: what hosts get, who may join, and a new first host if one is lost
members           the hosts that train together: who is lost, to blame, back; when all end
checkpoints       copies a run's checkpoints between its hosts and this machine
dry_run           every command that a run would start, for --dry-run
schedulers        files for such schedulers
"""
