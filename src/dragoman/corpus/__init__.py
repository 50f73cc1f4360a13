"""Text files -> shards. Never imports torch.

config       the corpus section of a recipe
sources      the files behind a recipe's entries; named corpora, fetched once
catalogue    mtdata's index of named corpora, and its parsers
download     one file over HTTP, whole or not at all; archives unpacked within limits
pairs        files of parallel text, packed or not -> blocks of pairs, or an error naming the line
normalize    one spelling for one character: BOM, CRLF, Unicode NFC, spaces
filters      scores and thresholds; every dropped pair has a reason
clean        a block -> normalised, filtered pairs in a sorted run; rejected pairs, readable
runs         the full shuffle: sorted runs on disk, read back by ranges of hashes; duplicates
split        dev and test sets, given or held out
subword      SentencePiece models: trained on a bounded sample, applied fast
encode       cleaned runs -> the pairs that stay -> token rows
shards       token ids on disk, memory-mapped; the ids that every subword model shares
manifest     the parts of a prepared corpus
workers      one task over many items on several processes
workplace    the folder of an unfinished corpus, so that work goes on after a kill
prepare      the stages in order
"""
