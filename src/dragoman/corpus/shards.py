"""Token ids on disk, memory-mapped: the rows of one split, both sides.

Files of a split, for side in source, target:
    <side>_ids.npy      the rows' pieces end to end, uint16, or uint32 over 65,536 ids
    <side>_offsets.npy  int64, shape (pairs + 1,): where each row starts
    <side>_lengths.npy  int32, shape (pairs,): pieces in each row
If entries of the training text have names or weights, also
    entries.npy         int32, shape (pairs,): number of the entry that the pair comes from
Rows hold no special ids; data/batch.py adds them. Every subword model shares the four ids
below, so that a shard needs no model to be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.base.files import whole_file

PAD: Final = 0
UNK: Final = 1
BOS: Final = 2
EOS: Final = 3
Ids = NDArray[np.integer]
Lengths = NDArray[np.int32]
SIDES = ("source", "target")
ENTRIES: Final = "entries.npy"
_SHORT_IDS = 1 << 16


def id_dtype(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """The smallest type that holds every id of a vocabulary."""
    return np.dtype(np.uint16) if vocab_size <= _SHORT_IDS else np.dtype(np.uint32)


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of pieces end to end. ids: shape (sum of lengths,). lengths: int32, shape (rows,)."""

    ids: Ids
    lengths: Lengths

    def select(self, keep: NDArray[np.bool_]) -> TokenRows:
        """The rows where keep, of shape (rows,), is true."""
        return TokenRows(self.ids[np.repeat(keep, self.lengths)], self.lengths[keep])

    def take(self, rows: NDArray[np.int64]) -> TokenRows:
        """The rows of these numbers, in their order."""
        lengths = self.lengths[rows]
        starts = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        return TokenRows(gather_rows(self.ids, starts[rows], lengths), lengths)

    def followed_by(self, more: TokenRows) -> TokenRows:
        """These rows, then those."""
        return TokenRows(
            np.concatenate([self.ids, more.ids]), np.concatenate([self.lengths, more.lengths])
        )

    def truncate(self, max_pieces: int) -> TokenRows:
        """The first max_pieces of each row."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        positions = np.arange(len(self.ids)) - np.repeat(ends - self.lengths, self.lengths)
        return TokenRows(self.ids[positions < max_pieces], np.minimum(self.lengths, max_pieces))


@dataclass(frozen=True, slots=True)
class SideSize:
    """How much one side of a split holds."""

    num_rows: int
    num_ids: int
    dtype: np.dtype[np.generic]


class TokenShards:
    """One split of a prepared corpus; ids are read from disk only when asked for.

    directory: such as `prepared/train`.
    share: use the first pairs alone, this part of them: they are in random order.
    source_lengths, target_lengths: int32, shape (num_pairs,), pieces without end of sentence.
    Raises: CorpusError if a file is missing or torn.
    """

    def __init__(self, directory: Path, *, share: float = 1.0) -> None:
        self._directory = directory
        self._source_ids = _open_array(directory / "source_ids.npy")
        self._source_offsets = _open_array(directory / "source_offsets.npy")
        lengths = _open_array(directory / "source_lengths.npy")
        self.num_pairs = math.ceil(share * len(lengths))
        self.source_lengths: Lengths = lengths[: self.num_pairs]
        self._target_ids = _open_array(directory / "target_ids.npy")
        self._target_offsets = _open_array(directory / "target_offsets.npy")
        target_lengths = _open_array(directory / "target_lengths.npy")
        self.target_lengths: Lengths = target_lengths[: self.num_pairs]

    def entries(self) -> NDArray[np.int32]:
        """The entry of the training text that each pair comes from, shape (num_pairs,).

        Raises: CorpusError if no entry had a name or a weight when the text was prepared.
        """
        return _open_array(self._directory / ENTRIES)[: self.num_pairs]

    def source(self, index: int) -> Ids:
        """Source pieces of one pair."""
        return self._source_ids[self._source_offsets[index] : self._source_offsets[index + 1]]

    def target(self, index: int) -> Ids:
        """Target pieces of one pair."""
        return self._target_ids[self._target_offsets[index] : self._target_offsets[index + 1]]

    def gather(self, indices: NDArray[np.int64]) -> tuple[Ids, Lengths, Ids, Lengths]:
        """Source pieces and lengths, target pieces and lengths of some pairs, as make_batch takes
        them.

        indices: shape (B,), any order. Pieces are end to end, lengths of shape (B,).
        """
        source_lengths, target_lengths = self.source_lengths[indices], self.target_lengths[indices]
        return (
            gather_rows(self._source_ids, self._source_offsets[indices], source_lengths),
            source_lengths,
            gather_rows(self._target_ids, self._target_offsets[indices], target_lengths),
            target_lengths,
        )


def write_side(directory: Path, side: str, parts: Iterable[TokenRows], *, size: SideSize) -> None:
    """Write one side of a split from its parts in order; memory holds one part at a time.

    size: the size of all parts together, which must be known ahead.
    """
    names = [directory / f"{side}_{part}.npy" for part in ("ids", "offsets", "lengths")]
    with (
        whole_file(names[0]) as ids,
        whole_file(names[1]) as offsets,
        whole_file(names[2]) as lengths,
    ):
        _write_header(ids, size.dtype, size.num_ids)
        _write_header(offsets, np.dtype(np.int64), size.num_rows + 1)
        _write_header(lengths, np.dtype(np.int32), size.num_rows)
        offsets.write(np.zeros(1, np.int64).data)
        end = 0
        for rows in parts:
            ends = np.cumsum(rows.lengths, dtype=np.int64) + end
            end += len(rows.ids)
            ids.write(np.ascontiguousarray(rows.ids).data)
            offsets.write(ends.data)
            lengths.write(np.ascontiguousarray(rows.lengths, dtype=np.int32).data)
    assert end == size.num_ids


def write_entries(directory: Path, parts: Iterable[NDArray[np.int32]], *, num_pairs: int) -> None:
    """Write the entry of the training text of each pair, part by part."""
    with whole_file(directory / ENTRIES) as file:
        _write_header(file, np.dtype(np.int32), num_pairs)
        for part in parts:
            file.write(np.ascontiguousarray(part).data)


def save_array(file: BinaryIO, array: NDArray[Any]) -> None:
    """Write an array as numpy.save does, but raise OSError on a full disk (numpy.save does not)."""
    array = np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.data)


def _write_header(file: BinaryIO, dtype: np.dtype[np.generic], size: int) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)


def _open_array(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise CorpusError(
            f"is not a whole token file ({error})",
            place=path,
            remedy="remove the prepared directory and run dragoman prepare again",
        ) from error


def gather_rows(ids: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """Pieces of the rows that start at `starts`, end to end."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return ids[np.repeat(starts - (ends - lengths), lengths) + np.arange(total)]
