"""A whole run.

progress  how far a preparation is, for people
run       the run on one page: prepare, start the ranks, evaluate
worker    one rank, put together from its parts
auto      `strategy = "auto"`: measures, then asks the planner
"""
