"""A pair of languages -> corpora, stages, a model to serve.

corpora      which corpora of the catalogue are worth their time: text by people before mined text
plan         `build.toml`: corpora and stages with their shares of the budget
stages       the record of each stage, and the clock of the build
planning     the stages and times of a budget, by rules that say their reasons
translation  how much text the models of the build translate, and its translation
build        the stages one after the other, each with the results of those before it
interface    the same from Python
report       the cost and the gain of each stage
"""
