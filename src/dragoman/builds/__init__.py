"""A pair of languages -> corpora, stages, a model to serve.

corpora      which corpora of the catalogue are worth their time
plan         `build.toml`: corpora and stages with their shares of the budget
stages       when each stage began and ended, on one clock
back         a model of the other direction, and text translated by it
build        the whole build on one page
report       what each stage cost and gained
"""
