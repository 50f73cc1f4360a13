"""Training on several hosts: plans, doctor, and a run over them (never imports torch).

The controller is the command that the user has started; it starts an agent on every host.

hosts         the machines: hosts.toml or the inline form
rates         speeds of devices, of links inside hosts and of networks, each with its source
workload      what a recipe requires of the machines
step_time     bytes on the wire and seconds of a step: formulas alone
strategies    the hosts of a plan, and these formulas for every strategy on them
plan          every strategy and what-if in hours and money; which to choose, and why
interruptions     expected time and cost on hosts that may be taken away
batch_rules       how the learning rate follows a larger batch
plan_assumptions  what the figures of a plan assume, with sources
plan_view     a plan as tables and as JSON
plan_request  from the options of `dragoman plan` to a plan
facts         what doctor measures on the hosts and between them
checks        from these facts to findings and remedies
doctor_view   the findings as a table and as JSON
ssh           OpenSSH as a list of arguments
copying       copies directories to a host, by their digests
unpack        receives them there
setup         installs a Python environment on every host
agent         what runs on each host
team          the controller's end of the agents
job           what all hosts do together: meet, then begin
examine       collects the facts of all hosts at once
measured      keeps the last measurement, for plans
checkpoints   copies a run's checkpoints between its hosts and this machine
members       which hosts are there; lost ones are taken in again
watch         who failed first, and when the others must end
training      a run over several hosts, as the controller does it
scheduled     the same if a scheduler starts the machines
launchers     files for such schedulers
commands      every command that a run would start, for --dry-run
"""
