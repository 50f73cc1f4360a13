"""Parallel text in, a measured translation model out.

The packages in the order the data meets them; imports go up this list, never down:

errors, units, settings    the words every other part uses
telemetry                  what happened, as facts
corpus                     text files -> shards
data                       shards -> batches
model                      batches -> logits -> loss; and back to text
distributed                gradients over the network, inside a process group
train                      gradients -> checkpoint
evaluate                   checkpoint -> scores
report                     events -> answers
recipe, estimate           the sections composed; what a run will take
cluster                    hosts and plans
run, worker, launch        the whole run on one page, one rank of it, how ranks are started
cli, commands, console     thin commands
"""

__version__ = "0.1.0"
