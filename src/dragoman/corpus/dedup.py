"""Duplicates, and training pairs that occur in dev or test.

A pair is known by a seeded 64-bit hash. Among n different pairs some two share a hash with
probability n^2 / 2^65: one in two million for 4.5 million pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]


def pair_keys(sources: Sequence[str], targets: Sequence[str], *, seed: int) -> Keys:
    """A hash of each pair, uniform over 64 bits for every seed."""
    salt = seed.to_bytes(16, "little", signed=True)
    digests = [
        blake2b(f"{source}\t{target}".encode(), digest_size=8, salt=salt).digest()
        for source, target in zip(sources, targets, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def distinct_keys(keys: Keys, *, first_ordinal: int) -> Keys:
    """Keys that differ even for equal pairs: each is mixed with the pair's place in the corpus.

    keys[i] belongs to the pair at place first_ordinal + i. The mixing is the finaliser of
    SplitMix64 (Steele, Lea and Flood 2014).
    """
    z = np.arange(first_ordinal, first_ordinal + len(keys), dtype=np.uint64)
    z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ z ^ (z >> np.uint64(31))


def repeated(keys: Keys) -> NDArray[np.bool_]:
    """True where an earlier key is equal."""
    order = np.argsort(keys, kind="stable")
    is_repeated = np.zeros(len(keys), dtype=np.bool_)
    is_repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return is_repeated


class HeldOutSides:
    """The sides of all dev and test pairs, to find training pairs that share one."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._sources: set[str] = set()
        self._targets: set[str] = set()
        for source, target in pairs:
            self.add(source, target)

    def add(self, source: str, target: str) -> None:
        """Hold out one more pair."""
        self._sources.add(source)
        self._targets.add(target)

    def overlap(self, source: str, target: str) -> int:
        """How many sides of the pair, 0 to 2, are also in dev or test."""
        return (source in self._sources) + (target in self._targets)
