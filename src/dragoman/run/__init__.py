"""A whole run, and a run within a budget.

run       the run on one page: prepare, start the ranks, evaluate
progress  how far a preparation is, for people
worker    one rank, put together from its parts
auto      `strategy = "auto"`: measures, then asks the planner
budget    `--budget` on one page: the same run, made to end in time
choose    the model for a budget: several sizes, and the BLEU to expect of each
pilots    short trainings that decide between two or three sizes
expect    the BLEU to expect after some tokens, from learning curves
curves    learning curves of finished runs: those shipped, and a table of the user's own
lengths   how a budget is divided: steps, validations, saves, scores, export
speed     how fast this machine trains a model, from a few steps; for how long: in budget
"""
