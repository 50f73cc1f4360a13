"""A pair of languages -> corpora, stages, a model to serve.

corpora      which corpora of the catalogue are worth their time: text by people before mined text
plan         `build.toml`: corpora and stages with their shares of the budget
planning     the stages and times of a budget, by rules that say their reasons
record       `build.json`: the clock, and what each stage has made
translation  how much text the models of the build translate, and its translation
build        one script: the stages one after the other, each with the results of those before it
interface    `build`, the function and the command
view         the tables of a build
report       the cost and the gain of each stage
"""
