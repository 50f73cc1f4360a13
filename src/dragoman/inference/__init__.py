"""A run's checkpoints translate and score text: the code that evaluate, export and serve share.

translation   checkpoints and vocabulary -> translations; a test set -> scores, kept with the run
scoring       cross-entropy of given pairs, and which pairs have none
"""
