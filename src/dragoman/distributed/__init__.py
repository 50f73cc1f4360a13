"""Gradients over the network, inside a process group.

launch          starts the ranks of a machine with torchrun
inside_rate     measures the link between them (a program)
rendezvous      where the processes of a run meet
store           the store in which those of several hosts do
world           who am I among how many, on which device
topology        which ranks share a host
traffic         bytes counted on the wire
packing         numbers in few bits
packed_sum      a sum that travels in these
host_sum        a sum over all ranks, inside each host first
strategy        what a strategy is to the trainer
link_rate       what such sums get out of the network
all_reduce      sync and accum: the sum of all gradients in every update
fragments       all weights laid end to end, in equal parts
outer           what replicas that train by themselves make of what they send
outer_adam      the same, as Adam on the whole batch
diloco          local steps, and a meeting now and then
powersgd        gradients as products of thin matrices
gradient_sync   from a recipe's section to its strategy
"""
