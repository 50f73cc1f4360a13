"""Ids that every subword model shares, so that a shard needs no model to be read."""

from typing import Final

PAD: Final = 0
UNK: Final = 1
BOS: Final = 2
EOS: Final = 3
