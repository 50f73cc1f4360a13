"""Parallel text in, a measured translation model out.

The packages in the order the data meets them; imports go up this list, never down:

base           errors, units, settings, files: the words every other part uses
telemetry      what happened, as facts
corpus         text files -> shards
data           shards -> batches
model          batches -> logits -> loss; and back to text
distributed    gradients over the network, inside a process group
training       gradients -> checkpoint
evaluation     checkpoint -> scores
recipe         the sections composed, what a run will take, the directory of a run
cluster        hosts and plans
reporting      events -> answers
watch          the same while a run runs
inference      a run's checkpoint translates
formats        models in formats that others run
serve          translations to people and programs
run            the whole run on one page, and one rank of it
cli            one module a command
"""

__version__ = "0.1.0"
