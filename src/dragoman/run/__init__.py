"""A whole run, and a run within a budget.

run       the run on one page: prepare, start the ranks, evaluate
progress  shows people how far a preparation is
worker    one rank, put together from its parts
auto      `strategy = "auto"`: measures, then asks the planner
budget    `--budget` on one page: the same run, made to end in time
choose    the model for a budget: several sizes, and the BLEU to expect of each
pilots    short trainings that decide between two or three sizes
expect    the BLEU to expect after some tokens, from learning curves
curves    learning curves of finished runs: those shipped, and a table of the user's own
lengths   divides a budget: steps, validations, saves, scores, export
speed     the speed of this machine with a model, from a few steps; `budget` sets for how long
"""
