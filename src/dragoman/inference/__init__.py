"""Models of runs and exports translate and score text: for people, for programs, for training.

text          a line, a document or markup -> parts to translate and parts to keep
inline        what a sentence must keep: pieces that stand for it, and the check that all came back
tags          where the tags of a text stand in its translation, by the model's attention
terms         words of the source, and those that shall translate them
term_search   makes a model use them
documents     files of HTML, Markdown and subtitles: what of them is translated
word          documents of Word: the same
reading       the sentences of all these, for aligning them
catalogue     catalogues of gettext: the same
translator    texts -> rows of pieces -> texts, streamed in bounded memory; the engine for a model
translate     `dragoman translate`: a stream, a file that goes on if broken off, a terminal
scores        the scores of a run's checkpoint or of an export on a text
scoring       cross-entropy of given pairs, and which pairs have none
synthesize    monolingual text -> pairs to train on; which translations are dropped, and why
taught        the same by a teacher behind an address; questions at once, answers in order
chat          what is asked of a chat model or of a server, again if it was busy
answers       what is wrong with the answers of a model that nobody here trained
purse         the bill, its limit, and every answer that was paid for
ray_lines     lines on the nodes of a Ray cluster, in units of work
"""
