"""Gradients -> checkpoint.

config       the train and checkpoint sections of a recipe
schedule     learning rates as pure functions of the step
optimizer    Adam and AdamW, clipping, loss scaling, EMA
step         one update over one global batch
checkpoint   atomic directories with digests; what to keep; which one to resume from
trainer      the loop and nothing else
"""
