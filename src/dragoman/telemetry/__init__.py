"""The record of a run. Writers only write events; every view only reads them.

While a run trains, rank 0 alone writes the log. Other ranks keep their events in an `Outbox`
(`events`); rank 0 takes them at each log point (`training.trainer`), and alerts and pauses within
two seconds, with the heartbeat (`training.pause_watch`). If rank 0 is killed, the
interval under way is lost, and what other ranks have kept since the last log point. Before and
after a training, the command that adds a score, an exam or a comparison writes it.

events       event types with their units and TensorBoard tags, and limits that training and report
             share; JSON-lines writer and reader; schema version
follower     the lines that are added to a file of events
timers       the phases of a step
host         facts of this host: hardware, memory used, network interface, price
environment  versions, git state and hardware of a run
sampler      the thread that samples processor, memory, disk, interface and GPUs once a second
session      session.json: which process trains a run, and how that ended
progress     the progress of a run, from its events: step, tokens per second, time left, best scores
console      events and progress in words; computes nothing
sinks        events for TensorBoard, MLflow, Weights & Biases, and a function that a recipe names;
             one that Python code gives is `on_event` (`api.progress`)
config       the sinks section of a recipe
"""
