"""A whole run, and a run within a budget.

run          the steps of a run: prepare, start the ranks, evaluate
progress     shows people how far a preparation is
extension    a finished run that goes on with more steps
worker       one rank, put together from its parts
auto         `strategy = "auto"`: measures, then asks the planner
budget       `--budget` on one page: the same run, made to end in time
budget_plan  what a budget is spent on: place, size, parts, and the least that is enough
budget_view  the tables of a budget
sizes        the model for a budget: one table, and the settings that follow from size and time
earlier      the learning curve of an earlier run on the same text
speed        the speed of this machine with a model, from a few steps
"""
