"""Checkpoint -> scores.

config      the evaluate section of a recipe
metrics     BLEU and chrF with signature and interval
directions  scores of a model of several languages: of each direction, and their mean
paired      two systems on one test set: sacreBLEU's paired tests, and where they differ
bayes_risk  which of several translations is most like the others
documents   whole documents: their scores, sentences that are missing or were added
exam        sentences as people change them, and what must hold of their translations
confidence  how likely a translation is right, by its score and lengths
other_systems  programs and servers that take the exam
comet, comet_process   COMET's ratings, from a Python of its own
sentences   where sentences end; texts longer than a model was trained for, cut into parts
validate    dev loss, the same loss on a slice of the training set, and real translations
"""
