"""Cleaned runs -> token rows: the shuffled training text, a range of keys at a time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.base.files import whole_file, write_whole
from dragoman.corpus.clean import num_bytes
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.filters import Rejection
from dragoman.corpus.rejected import RejectedPair, pack_rejected
from dragoman.corpus.runs import KeyRange, SortedPairs, SortedRuns
from dragoman.corpus.selection import Selector
from dragoman.corpus.shards import SIDES, TokenRows, save_array
from dragoman.corpus.special_ids import UNK
from dragoman.corpus.subword import RowEncoder

TOO_MANY_PIECES = "too_many_pieces"


@dataclass(frozen=True, slots=True)
class SideCounts:
    """One side of what stays: bytes of its text, its pieces and how many of them are unknown."""

    num_bytes: int
    pieces: int
    unknown: int


@dataclass(frozen=True, slots=True)
class PartReport:
    """What became of one range."""

    pairs_in: int
    pairs_out: int
    dropped: dict[str, int]
    truncated: int
    source: SideCounts
    target: SideCounts

    @property
    def source_bytes(self) -> int:
        """Bytes of the source sides that stay."""
        return self.source.num_bytes

    @property
    def target_bytes(self) -> int:
        """Bytes of the target sides that stay."""
        return self.target.num_bytes

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The report that asdict made values of."""
        return cls(**(values | {side: SideCounts(**values[side]) for side in SIDES}))


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token rows of both sides, and the counts."""

    source: TokenRows
    target: TokenRows
    report: PartReport
    rejected: list[RejectedPair]


class RangeEncoder:
    """The task of a worker: select and encode one range. Done ranges are passed over.

    files: the name of the source file of each run.
    """

    def __init__(
        self,
        config: CorpusConfig,
        *,
        runs: SortedRuns,
        files: Sequence[str],
        selector: Selector,
        encoders: tuple[RowEncoder, RowEncoder],
        parts: Path,
    ) -> None:
        self._config = config
        self._runs = runs
        self._files = files
        self._selector = selector
        self._encoders = encoders
        self._parts = parts

    def __call__(self, part: KeyRange) -> PartReport:
        """Write the rows of the range, its rejected pairs and, last, its report."""
        path = part_path(self._parts, part.number)
        if path.exists():
            return PartReport.from_json(json.loads(path.read_bytes()))
        encoded = self._encode(self._runs.read(part))
        for side, rows in zip(SIDES, (encoded.source, encoded.target), strict=True):
            for name, array in (("ids", rows.ids), ("lengths", rows.lengths)):
                with whole_file(path.with_suffix(f".{side}_{name}.npy")) as file:
                    save_array(file, array)
        write_whole(path.with_suffix(".rejected"), pack_rejected(encoded.rejected))
        write_whole(path, json.dumps(asdict(encoded.report)))
        return encoded.report

    def _encode(self, found: SortedPairs) -> Encoded:
        selected = self._selector.select(found)
        source = self._encoders[0].encode(selected.sources)
        target = self._encoders[1].encode(selected.targets)
        longest = np.maximum(source.lengths, target.lengths)
        too_long = longest > self._config.max_pieces
        truncated = 0
        rejections = selected.rejections
        if self._config.too_long == "truncate":
            truncated = int(too_long.sum())
            source = source.truncate(self._config.max_pieces)
            target = target.truncate(self._config.max_pieces)
        elif too_long.any():
            rejections = rejections + [
                Rejection(int(selected.rows[row]), TOO_MANY_PIECES, float(longest[row]))
                for row in np.flatnonzero(too_long)
            ]
            source, target = source.select(~too_long), target.select(~too_long)
            selected = selected.keep(~too_long)
        report = PartReport(
            pairs_in=len(found.pairs),
            pairs_out=len(selected.sources),
            dropped=dict(Counter(rejection.filter for rejection in rejections)),
            truncated=truncated,
            source=count_side(selected.sources, source),
            target=count_side(selected.targets, target),
        )
        return Encoded(source, target, report, list(self._readable(found, rejections)))

    def _readable(self, found: SortedPairs, rejections: list[Rejection]) -> Iterator[RejectedPair]:
        for row, name, score, _ in rejections:
            source, target = found.pairs[row].split("\t")
            file = self._files[found.runs[row]]
            yield RejectedPair(name, score, file, int(found.lines[row]), source, target)


def part_path(parts: Path, index: int) -> Path:
    """Where the report of a range is; its rows and rejected pairs lie beside it."""
    return parts / f"{index:06d}.json"


def read_rows(parts: Path, index: int, side: str) -> TokenRows:
    """The rows of one side of a range."""
    path = part_path(parts, index)
    arrays: list[NDArray[np.integer]] = [
        np.load(path.with_suffix(f".{side}_{name}.npy")) for name in ("ids", "lengths")
    ]
    return TokenRows(arrays[0], arrays[1].astype(np.int32))


def count_side(texts: list[str], rows: TokenRows) -> SideCounts:
    """The counts of one side."""
    return SideCounts(num_bytes(texts), len(rows.ids), int((rows.ids == UNK).sum()))
