"""A checkpoint translates text; what evaluate, export and serve share.

translation   checkpoints and vocabulary of a run -> translations
scoring       translations of a test set -> scores, kept with the run
"""
