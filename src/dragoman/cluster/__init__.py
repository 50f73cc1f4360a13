"""Training on several hosts: plans, doctor, and a run over them (never imports torch).

The controller is the command that the user has started; it starts an agent on every host, which
joins the training as `dragoman join` does.

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
agent             the program on each host
messages          the lines between the controller and an agent
team              the controller's end of the agents

Doctor:
collect, facts    collects the facts of all hosts at once, and keeps them for plans; their types
checks            from these facts to findings and remedies
doctor_view       the findings as a table and as JSON

A run over the hosts:
training          the whole run: attempt after attempt, with the hosts that are present
follow            one attempt: records events, finds who failed first, ends the others
checkpoints       copies a run's checkpoints between its hosts and this machine
dry_run           every command that a run would start, for --dry-run
join              how its machines find each other, whoever starts them
schedulers        files for such schedulers
"""
