"""Text files -> shards. Never imports torch.

config       the corpus section of a recipe
special_ids  ids that every subword model shares
sources      the files behind a recipe's entries, and whether they have changed
fetch        named corpora as two text files, fetched once
catalogue    mtdata: where named corpora lie and how they are read
archives     downloaded files -> plain text files, within limits and never by their own names
download     one file over HTTP, whole or not at all
unpack       packed bytes -> bytes, a bounded piece at a time
lines        a text file, packed or not -> runs of whole lines
pairs        files of parallel text -> blocks of pairs, or an error naming the line
alignment    where two files that should be parallel stop being so
normalize    one spelling for one character: BOM, CRLF, Unicode NFC, spaces
filters      scores and thresholds; every dropped pair has a reason
rejected     what was dropped, readable afterwards
clean        a block -> normalised, filtered pairs in a sorted run
dedup        hashes of pairs: duplicates, and training pairs that occur in dev or test
runs         the full shuffle: sorted runs on disk, read back by ranges of hashes
split        dev and test sets, given or held out
selection    which cleaned pairs stay, once all can be seen
shards       token ids on disk, memory-mapped
subword      SentencePiece models: trained on a bounded sample, applied fast
encode       cleaned runs -> token rows
stages       the stages that need the whole cleaned text
assemble     encoded parts -> shards, rejected pairs and manifest
manifest     what a prepared corpus is made of
workers      one task over many items on several processes
workplace    the folder of an unfinished corpus, so that work goes on after a kill
prepare      the stages in order
"""
