"""Text files -> shards. Never imports torch.

config      the corpus section of a recipe
pairs       files of parallel text -> SentencePair, or an error naming the line
normalize   one spelling for one character: BOM, CRLF, Unicode NFC, control characters
filters     scores and thresholds; every dropped pair has a reason
dedup       duplicates, and training pairs that occur in dev or test
split       valid and test taken from a corpus that comes without them
subword     SentencePiece models: trained on a bounded sample, applied in parallel
shards      token ids on disk, memory-mapped, shuffled, with a manifest
prepare     the stages in order, resumable
fetch       named corpora through mtdata
"""
