"""Checkpoint -> scores.

config      the evaluate section of a recipe
metrics     BLEU and chrF with signature and interval
sentences   where sentences end; texts longer than a model was trained for, cut into parts
validate    dev loss, the same loss on a slice of the training set, and real translations
"""
