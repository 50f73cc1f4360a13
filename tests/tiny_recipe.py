"""The beginning of recipes that train in moments, on 60 pairs in train.en and train.de."""

from typing import Final

TINY: Final = """
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid_pairs = 5
test_pairs = 5
subword.vocab_size = 60
[model]
d_model = 16
num_heads = 2
d_ffn = 16
encoder_layers = 1
decoder_layers = 1
"""
