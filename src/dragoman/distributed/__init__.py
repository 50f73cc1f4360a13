"""Starts the processes that train together, and makes one gradient out of theirs.

config          the distributed section of a recipe
launch          starts the ranks of a machine with torchrun, sets their environment, ends hung ones
elastic         the rendezvous of several hosts: torchrun's own, and a name for each round
pulse           signs of life of the workers of a machine, which launch judges
rendezvous      the address and names by which the processes of a run find each other
store           a server of one host, through which the processes of several hosts find each other
world           the rank of this process, its device, its process group (NCCL or Gloo, timeouts)
heartbeat       each rank writes once a second how far it is; the others read it
devices         a program: which GPUs compute correctly
wire            bytes that ranks send to each other, by formula
step_time       seconds of a step by formula, and the strategy that auto picks
topology        which ranks share a host
packing         numbers in four bits, and a sum that sends them
host_sum        a sum over all ranks, inside each host first
gradient_sync   the interface of a strategy to the trainer
link_rate       the rate of such sums over the network, and between the ranks of a host
probe           the rates between every two hosts, as doctor measures them
all_reduce      sync: the sum of all gradients in every update
outer           the outer optimizers of diloco
diloco          local steps, and now and then an exchange of a part of the weights
diloco_work     measures the time of diloco's own work per weight
strategies      from a recipe's section to its strategy
"""
