"""Shards -> batches.

config    the data section of a recipe
sampler   which pairs form batch n of epoch e: a pure function of (seed, epoch, position)
batch     rows of token ids -> padded tensors
loader    batches made ahead of time in a thread, so that training never waits
"""
