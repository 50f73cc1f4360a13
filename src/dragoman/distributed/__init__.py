"""Gradients over the network, inside a process group.

launch          starts the ranks of a machine with torchrun
rendezvous      where the processes of a run meet
store           the store in which those of several hosts do
world           who am I among how many, on which device
topology        which ranks share a host, and the bytes they send
packing         numbers in few bits, and a sum that travels in these
host_sum        a sum over all ranks, inside each host first
gradient_sync   what a strategy is to the trainer
link_rate       what such sums get out of the network, and between the ranks of a host
all_reduce      sync and accum: the sum of all gradients in every update
outer           the weights in equal parts, and what replicas make of what they send
diloco          local steps, and a meeting in a part of the weights now and then
powersgd        gradients as products of thin matrices
strategies      from a recipe's section to its strategy
"""
