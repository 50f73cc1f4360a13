"""The machines around a run, and what their network does to it (never imports torch).

The controller is the command that the user has started; an agent of it runs on every host.

hosts         which machines: hosts.toml or the inline form
rates         how fast devices, links inside hosts and networks are, and who says so
workload      what a recipe asks of them
step_time     bytes on the wire and seconds of a step: formulas alone
strategies    the hosts of a plan, and these formulas for every strategy on them
plan          every strategy and what-if in hours and money; which to choose, and why
interruptions     what a run takes and costs on hosts that may be taken away
batch_rules       what becomes of the learning rate if a batch grows
plan_assumptions  what enters a plan's figures, with sources
plan_view     a plan as tables and as JSON
plan_request  from the options of `dragoman plan` to a plan
facts         what doctor finds out on the hosts and between them
checks        what of that is right or wrong, and what to do about it
doctor_view   the findings as a table and as JSON
ssh           OpenSSH as a list of arguments
copying       directories on their way to a host, by their digests
unpack        what receives them there
setup         a Python with what is needed on every host
agent         what runs on each host
team          the controller's end of the agents
job           what all hosts do together: meet, begin
examine       the facts, from all hosts at once
measured      the last of them, for plans
checkpoints   a run's checkpoints between its hosts and here
members       which hosts are there; lost ones are taken in again
watch         who failed first, and when the others must end
training      a run over several hosts, seen from where the user sits
scheduled     the same where a scheduler starts the machines
launchers     files for such schedulers
commands      every command of it as words, before any is run
"""
