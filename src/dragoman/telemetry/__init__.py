"""What happened, as facts. Writers only write events; every view only reads them.

events        event types; JSON-lines writer and reader; schema version
timers        the phases of a step
host          what this machine is, and the most memory used
planned       event types of what was planned
price         what the machines cost in an hour, where it was said
samples       event types of what is looked at once a second, and of measurements
machine, network, gpu, gpm   what is looked at: processor, memory, disk, interface, GPUs
sampler       the thread that looks
environment   versions, git state and hardware of a run
session       session.json: who trains a run, and how that ended
progress      where a run stands, folded from its events
lines         events and progress in words
sinks         console and TensorBoard, fed by events
scalars       the numbers of an event, for tools beside ours
prometheus_sink, mlflow_sink, wandb_sink   such tools, off by default
outside       those that a recipe names; one that fails never stops a run
"""
