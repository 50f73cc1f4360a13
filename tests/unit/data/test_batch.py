from __future__ import annotations

import numpy as np

from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.data.batch import make_batch


def test_rows_are_closed_shifted_and_padded() -> None:
    batch = make_batch(
        np.array([10, 11, 12, 13], np.uint16),
        np.array([3, 1]),
        np.array([20, 21, 22], np.uint16),
        np.array([1, 2]),
    )
    assert batch.source_BS.tolist() == [[10, 11, 12, EOS], [13, EOS, PAD, PAD]]
    assert batch.decoder_input_BT.tolist() == [[BOS, 20, PAD], [BOS, 21, 22]]
    assert batch.target_BT.tolist() == [[20, EOS, PAD], [21, 22, EOS]]
    assert batch.source_lengths_B.tolist() == [4, 2]
    assert batch.target_lengths_B.tolist() == [2, 3]
    assert (batch.num_source_tokens, batch.num_target_tokens, batch.num_cells) == (6, 5, 14)


def test_widths_are_rounded_up_to_the_multiple() -> None:
    batch = make_batch(
        np.full(8, 9), np.array([8]), np.full(7, 9), np.array([7]), length_multiple=8
    )
    assert batch.source_BS.shape == (1, 16)
    assert batch.target_BT.shape == (1, 8)


def test_each_group_of_rows_is_padded_by_itself() -> None:
    lengths = np.array([3, 1, 2]), np.array([1, 2, 5])
    pieces = np.full(6, 9), np.full(8, 9)
    batch = make_batch(pieces[0], lengths[0], pieces[1], lengths[1], group_rows=[2, 1])
    assert batch.num_cells == 2 * (4 + 3) + (3 + 6)
    first, second = batch.split()
    for part, whole in (
        (first, make_batch(pieces[0][:4], lengths[0][:2], pieces[1][:3], lengths[1][:2])),
        (second, make_batch(pieces[0][:2], lengths[0][2:], pieces[1][:5], lengths[1][2:])),
    ):
        for name in ("source_BS", "decoder_input_BT", "target_BT", "target_lengths_B"):
            assert getattr(part, name).tolist() == getattr(whole, name).tolist()
        assert (part.num_source_tokens, part.num_target_tokens, part.num_cells) == (
            whole.num_source_tokens,
            whole.num_target_tokens,
            whole.num_cells,
        )


def test_a_rank_without_rows_has_a_batch_of_none() -> None:
    none = np.array([], dtype=np.int64)
    batch = make_batch(none, none, none, none)
    assert batch.source_BS.shape == (0, 1)
    assert batch.target_lengths_B.shape == (0,)
    assert (batch.num_source_tokens, batch.num_target_tokens) == (0, 0)
