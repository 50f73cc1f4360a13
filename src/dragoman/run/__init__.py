"""A whole run, and a run within a budget.

progress  how far a preparation is, for people
run       the run on one page: prepare, start the ranks, evaluate
worker    one rank, put together from its parts
auto      `strategy = "auto"`: measures, then asks the planner
budget    the same run, made to end in time, on one page
choose    the size of its model, and all that follows from that
pilots    short trainings that decide between two or three sizes
expect    the BLEU to expect, from learning curves
curves    the curves of finished runs
lengths   how its seconds are spent: steps, validations, saves
speed     how fast this machine, or hosts, train a model
"""
