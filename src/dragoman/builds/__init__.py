"""A pair of languages -> corpora, stages, a model to serve.

corpora      which corpora of the catalogue are worth their time: text by people before mined text
plan         `build.toml`: corpora and stages with their shares of the budget
translation  how much text the models of the build translate, and its translation
planning     the stages and times of a budget, by rules that say their reasons
record       `build.json`: the clock, and what each stage has made
report       the corpora and stages as tables, and `build.html`
build        one script: the stages one after the other, each with the results of those before it
interface    `build`, the function and the command
"""
