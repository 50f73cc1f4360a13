"""Batches of random pieces for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.corpus.shards import EOS
from dragoman.data.batch import Batch, make_batch


def random_batch(
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *,
    vocab_size: int,
    seed: int = 0,
    length_multiple: int = 1,
    group_rows: Sequence[int] = (),
) -> Batch:
    """Rows of random ordinary pieces; lengths do not count the end of sentence."""
    rng = np.random.default_rng(seed)
    return make_batch(
        rng.integers(EOS + 1, vocab_size, sum(source_lengths)),
        np.array(source_lengths, dtype=np.int64),
        rng.integers(EOS + 1, vocab_size, sum(target_lengths)),
        np.array(target_lengths, dtype=np.int64),
        length_multiple=length_multiple,
        group_rows=group_rows,
    )


def row_of(batch: Batch, row: int) -> Batch:
    """One row of a batch as a batch of its own, without padding."""
    source = int(batch.source_lengths_B[row])
    target = int(batch.target_lengths_B[row])
    return Batch(
        batch.source_BS[row : row + 1, :source],
        batch.decoder_input_BT[row : row + 1, :target],
        batch.target_BT[row : row + 1, :target],
        batch.source_lengths_B[row : row + 1],
        batch.target_lengths_B[row : row + 1],
        source,
        target,
    )
