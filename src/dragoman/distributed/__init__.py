"""Gradients over the network, inside a process group.

rendezvous      where the processes of a run meet
store           the store in which those of several hosts do
world           who am I among how many, on which device
gradient_sync   strategies that make one gradient out of every rank's
traffic         bytes counted on the wire
"""
