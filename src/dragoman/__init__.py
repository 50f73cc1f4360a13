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
recipe, run, cli           the sections composed, the whole run on one page, thin commands over it
"""

__version__ = "0.1.0"
