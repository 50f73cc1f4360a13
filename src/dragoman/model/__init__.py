"""Batches -> logits -> loss; and back to text.

config            the model and search sections of a recipe; the parameter count as arithmetic
layout            padded rows <-> the flat list of their real tokens
attention         multi-head attention; how its and other matrices are initialised
packed_attention  attention on a CPU: many short rows
varlen_attention  attention on a GPU, over the flat list of tokens
short_attention   the same for rows that fit into one tile: a Triton kernel
products          matrix products, by the faster of two libraries on a CPU
dropout           dropout, cheap on a CPU
transformer       the encoder-decoder with its positions, and torch.compile of its stacks
weights_form      the names and the order of weights in files: those of transformers
loss              label-smoothed cross-entropy that keeps no logits
incremental       the decoder a token at a time, with its caches
alignment         what the decoder looks at in the source while it writes a given translation
search            greedy and beam search with key/value cache, ensembles
"""
