"""A pair of languages -> corpora, stages, a model to serve.

corpora      which corpora of the catalogue are worth their time: text by people before mined text
plan         `build.toml`: corpora and stages with their shares of the budget
stages       when each stage began and ended, on one clock
planning     what the budget is spent on, by rules that say their reasons
back         how much text the models of the build translate, and its translation
build        the whole build on one page
interface    the same from Python
report       what each stage cost and gained
"""
