"""Text files -> shards. Never imports torch.

config         the corpus section of a recipe
names          the languages that the names of files and corpora tell
sources        the files behind a recipe's entries
fetched        named corpora as text files, fetched once
catalogue      mtdata's index of named corpora, and its parsers
named_sets     dev and test sets by their names in sacreBLEU's index
hub_sets       data sets of the Hub of Hugging Face
mtdata_index   a program of its own: the index as lines of JSON, made without a pickle
tmx, moses     translation memories as lines; archives of OPUS, read without unpacking them
download       one file over HTTP, whole or not at all
archives       single texts of archives and packed files, unpacked within limits
pairs          files of parallel text, packed or not -> blocks of pairs, or an error naming the line
normalize      one spelling for one character: BOM, CRLF, Unicode NFC, spaces
filters        scores and thresholds; every dropped pair has a reason
language       the language of a text
identify       whether the text of an entry is in the languages that the recipe names
agreement      numbers and final punctuation, which a translation keeps
lexical        whether the sides of a pair translate each other, piece by piece
survey         the scores that a filter gave, from which people choose a threshold
clean          a block -> normalised, filtered pairs in a sorted run; rejected pairs, readable
runs           the full shuffle: sorted runs on disk, read back by ranges of hashes; duplicates
split          dev and test sets, given or held out
directions     source and target languages of a text and of a model
subword        SentencePiece models, trained on a bounded sample
vocabulary, imported_vocabulary   the vocabulary of a side: of our models, of imported ones
augment        changed copies of training pairs: capitals, typos, text that must stay
context        neighbouring pairs joined into paragraphs
links          which words of a pair translate each other, and which spans of words do
stand_ins      pieces that stand for placeholders and addresses, which a translation keeps, and
               between sentences
encode         cleaned runs -> the pairs that stay -> token rows
align          which sentences of two texts say the same, in order
choose         which lines to translate first, by what they would teach
gains          how well sentences predict each other's words
align_documents  documents aligned in rounds, and how likely each pair is right
match_documents  which documents of two folders are one text in two languages
shifted        two files whose lines are shifted against each other
shards         token ids on disk, memory-mapped; the ids that every subword model shares
manifest       the record of a prepared corpus: files, counts of each stage
workers        one task over many items, on processes of this machine or on the nodes of a cluster
ray_nodes      tasks on the nodes of a Ray cluster
workplace      the folder of an unfinished corpus, so that work goes on after a kill
prepare        the stages in order
"""
