"""Shards -> batches.

config            the data section of a recipe: the size of batches, the stages
sampler           which pairs form which batch: a pure function of (seed, stage, epoch, position)
subword_sampling  pieces split at random, anew in each epoch
batch             rows of token ids -> padded tensors
loader            batches made ahead of time in a thread, so that training rarely waits
"""
