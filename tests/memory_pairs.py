"""Token pairs in memory, for tests that need no prepared corpus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.shards import EOS


@dataclass(frozen=True)
class MemoryPairs:
    """A data.loader.PairStore in memory. Row i of both sides holds only its own number."""

    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]

    def gather(
        self, indices: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        source, target = self.source_lengths[indices], self.target_lengths[indices]
        names = indices + EOS + 1
        return np.repeat(names, source), source, np.repeat(names, target), target


def random_pairs(num_pairs: int, *, seed: int = 0, longest: int = 60) -> MemoryPairs:
    """Pairs whose sides are of like length, short ones more often than long ones."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(3.0, 6.0, num_pairs), 1, longest)
    target = np.clip(source * rng.normal(1.1, 0.2, num_pairs), 1, longest)
    return MemoryPairs(source.astype(np.int32), target.astype(np.int32))
