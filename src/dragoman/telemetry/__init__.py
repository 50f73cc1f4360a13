"""The record of a run. Writers only write events; every view only reads them.

events       event types; JSON-lines writer and reader; schema version
follower     the lines that are added to a file of events
timers       the phases of a step
host         facts of this host: hardware, memory used, network interface, price
environment  versions, git state and hardware of a run
sampler      the thread that samples processor, memory, disk, interface and GPUs once a second
session      session.json: which process trains a run, and how that ended
progress     the progress of a run, from its events: step, tokens per second, time left, best scores
console      events and progress in words; computes nothing
sinks        events for TensorBoard, MLflow and Weights & Biases
config       the sinks section of a recipe
"""
