"""Gradients -> checkpoint.

config       the train and checkpoint sections of a recipe
schedule     learning rates as pure functions of the step
optimizer    Adam and AdamW, clipping, loss scaling, averaged weights
step         one update over one global batch
matrix_rate  what the matrix products of one device reach
step_rate    real steps of one rank on random text
measuring    the program that runs them, and then the network's measurement
guard        steps that take longer than they should
interval     what happened since the last event, summed without waiting for the device
divergence   when the loss has left the range in which training makes sense
stopping     signals, and how ranks agree at which update to stop
durable      directories that appear on disk whole or not at all, with digests
checkpoint   what to keep, and which one to resume from
snapshot     everything an update changes, into a checkpoint and back
trainer      the loop and nothing else
average      the mean of several checkpoints
inventory    what each file of a run is for, and the disk a run will need
"""
