"""Gradients -> checkpoint.

config       the train and checkpoint sections of a recipe
schedule     learning rates as pure functions of the step
clock        the schedule of a run that has to end in time, by the clock; its forecast of the end
optimizer    Adam and AdamW, clipping, loss scaling, averaged weights
step         one update over one global batch
gradient_noise   how far the gradients of parts of a batch differ: which batch size pays
precision    the precision of a training, or the fastest that all its devices have
matrix_rate  the rate of matrix products on one device
step_rate    real steps of one rank on random text
measuring    the program that measures steps and the network
guard        steps that take longer than they should
pause_watch  a rank that stands still while the others wait for it
interval     the measurements since the last event, summed without waiting for the device
divergence   when the loss has left the range in which training makes sense
stopping     signals, and how ranks agree at which update to stop
durable      directories that appear on disk whole or not at all, with digests
checkpoint   which checkpoints to keep, to resume from, and to translate with ("best", "last")
snapshot     collects and restores everything that an update changes
trainer      the loop and nothing else
average      the mean of several checkpoints
inventory    the purpose of each file of a run, and the disk a run will need
"""
