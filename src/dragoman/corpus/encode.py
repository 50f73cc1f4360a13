"""Cleaned runs -> token rows: the shuffled training text, a range of keys at a time.

Only here all pairs can be seen together, so duplicates and overlaps with dev and test are removed
here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.base.files import whole_file, write_whole
from dragoman.corpus.clean import DUPLICATE, NEAR_DUPLICATE, RejectedPair, num_bytes, pack_rejected
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import Direction, without_first_word
from dragoman.corpus.filters import FilterConfig, Rejection, Scores
from dragoman.corpus.lexical import LexicalTable
from dragoman.corpus.runs import HeldOutSides, KeyRange, Keys, SortedPairs, SortedRuns, repeated
from dragoman.corpus.shards import SIDES, UNK, TokenRows, save_array
from dragoman.corpus.split import HeldOut
from dragoman.corpus.subword import RowEncoder
from dragoman.corpus.survey import FilterSurvey, write_surveys

HELD_OUT = "held_out"
OVERLAP = "overlap"
TOO_MANY_PIECES = "too_many_pieces"
LEXICAL = "lexical"


@dataclass(frozen=True, slots=True)
class Selected:
    """The pairs of a range that stay, and those that do not.

    rows: int64, shape (pairs that stay,): the index of each in its range.
    """

    sources: list[str]
    targets: list[str]
    rows: NDArray[np.int64]
    rejections: list[Rejection]

    def keep(self, keep: NDArray[np.bool_]) -> Selected:
        """The pairs where keep, one value for each, is true."""
        chosen = keep.tolist()
        return Selected(
            list(compress(self.sources, chosen)),
            list(compress(self.targets, chosen)),
            self.rows[keep],
            self.rejections,
        )


class Selector:
    """Finds duplicates, pairs that were held out, and pairs that share a side with dev or test.

    held_out: keys of the pairs that were moved from the training text to dev or test.
    backwards: those pairs the other way round, without tags; another entry may hold them so.
    sides: of all dev and test pairs, without tags.
    directions: of each run.
    words: that sources may begin with, one of each list: language tokens, tags.
    """

    def __init__(
        self,
        config: FilterConfig,
        *,
        held_out: Keys,
        backwards: Set[HeldOut],
        sides: HeldOutSides,
        directions: Sequence[Direction],
        words: Sequence[Sequence[str]] = (),
    ) -> None:
        self._config = config
        self._words = [one for one in words if one]
        self._held_out = held_out
        self._backwards = backwards
        self._sides = sides
        self._directions = directions

    def select(self, found: SortedPairs) -> Selected:
        """Both sides of the pairs that stay."""
        cells = [pair.split("\t") for pair in found.pairs]
        sources, targets = [source for source, _ in cells], [target for _, target in cells]
        rejections = self._reject(found, sources, targets)
        keep = np.ones(len(cells), dtype=np.bool_)
        keep[[rejection.row for rejection in rejections]] = False
        return Selected(sources, targets, np.arange(len(cells)), rejections).keep(keep)

    def _reject(
        self, found: SortedPairs, sources: list[str], targets: list[str]
    ) -> list[Rejection]:
        """The rows to drop, each once. The score of an overlap is the number of shared sides."""
        held_out = np.isin(found.keys, self._held_out)
        duplicate = np.zeros(len(sources), dtype=np.bool_)
        shared = np.zeros(len(sources), dtype=np.int64)
        if self._config.drop_duplicates or self._config.drop_near_duplicates:
            duplicate = repeated(found.keys)
        if self._config.drop_overlap or self._backwards:
            plain = sources
            for words in self._words:
                plain = [without_first_word(source, words) for source in plain]
            directions = [self._directions[run] for run in found.runs.tolist()]
        if self._backwards:
            pairs = map(HeldOut, plain, targets, directions)
            held_out |= np.array([pair in self._backwards for pair in pairs], dtype=np.bool_)
        if self._config.drop_overlap:
            overlap = map(self._sides.overlap, directions, plain, targets)
            shared = np.fromiter(overlap, dtype=np.int64, count=len(sources))
        reasons = np.select([duplicate, held_out, shared > 0], [1, 2, 3])
        again = NEAR_DUPLICATE if self._config.drop_near_duplicates else DUPLICATE
        names = ("", again, HELD_OUT, OVERLAP)
        return [
            Rejection(int(row), names[reasons[row]], max(1.0, float(shared[row])))
            for row in np.flatnonzero(reasons)
        ]


@dataclass(frozen=True, slots=True)
class SideCounts:
    """One side of what stays: bytes of its text, its pieces and how many of them are unknown."""

    num_bytes: int
    pieces: int
    unknown: int


@dataclass(frozen=True, slots=True)
class PartReport:
    """The result of encoding one range."""

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


class RangeEncoder:
    """The task of a worker: select and encode one range. Finished ranges are skipped.

    files: the name of the source file of each run. entries: its entry of the training text.
    lexical: tells what pairs gain; None: nobody asks.
    """

    def __init__(
        self,
        config: CorpusConfig,
        *,
        runs: SortedRuns,
        files: Sequence[str],
        entries: Sequence[int],
        selector: Selector,
        encoders: tuple[RowEncoder, RowEncoder],
        lexical: LexicalTable | None,
        parts: Path,
    ) -> None:
        self._config = config
        self._runs = runs
        self._files = files
        self._entries = np.array(entries, dtype=np.int32)
        self._selector = selector
        self._encoders = encoders
        self._lexical = lexical
        self._parts = parts

    def __call__(self, part: KeyRange) -> PartReport:
        """Write the rows of the range, its rejected pairs and, last, its report."""
        path = part_path(self._parts, part.number)
        if path.exists():
            return PartReport.from_json(json.loads(path.read_bytes()))
        found = self._runs.read(part)
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
        surveys = []
        threshold = self._config.filters.min_lexical_gain
        if self._lexical is not None and threshold is not None and len(selected.sources):
            gains = self._lexical.gains(source, target)
            accepted = gains >= threshold
            surveys.append(self._survey(found, selected, threshold, gains, accepted))
            rejections = rejections + [
                Rejection(int(selected.rows[row]), LEXICAL, float(gains[row]))
                for row in np.flatnonzero(~accepted)
            ]
            source, target = source.select(accepted), target.select(accepted)
            selected = selected.keep(accepted)
        report = PartReport(
            pairs_in=len(found.pairs),
            pairs_out=len(selected.sources),
            dropped=dict(Counter(rejection.filter for rejection in rejections)),
            truncated=truncated,
            source=count_side(selected.sources, source),
            target=count_side(selected.targets, target),
        )
        for side, rows in zip(SIDES, (source, target), strict=True):
            for name, array in (("ids", rows.ids), ("lengths", rows.lengths)):
                with whole_file(path.with_suffix(f".{side}_{name}.npy")) as file:
                    save_array(file, array)
        with whole_file(path.with_suffix(".entries.npy")) as file:
            save_array(file, self._entries[found.runs[selected.rows]])
        rejected = []
        for row, name, score, _ in rejections:
            file, line = self._files[found.runs[row]], int(found.lines[row])
            rejected.append(RejectedPair(name, score, file, line, *found.pairs[row].split("\t")))
        write_whole(path.with_suffix(".rejected"), pack_rejected(rejected))
        write_surveys(path.with_suffix(".scores"), surveys)
        write_whole(path, json.dumps(asdict(report)))
        return report

    def _survey(
        self,
        found: SortedPairs,
        selected: Selected,
        threshold: float,
        gains: Scores,
        accepted: NDArray[np.bool_],
    ) -> FilterSurvey:
        """The survey of the lexical filter."""
        survey = FilterSurvey(LEXICAL, threshold, at_least=True)
        files = found.runs[selected.rows]
        survey.see(
            gains,
            accepted,
            found.lines[selected.rows].astype(np.int64),
            lambda row: (self._files[files[row]], selected.sources[row], selected.targets[row]),
        )
        return survey


def part_path(parts: Path, index: int) -> Path:
    """The path of a range's report; its rows and rejected pairs lie beside it."""
    return parts / f"{index:06d}.json"


def read_rows(parts: Path, index: int, side: str) -> TokenRows:
    """The rows of one side of a range."""
    path = part_path(parts, index)
    arrays: list[NDArray[np.integer]] = [
        np.load(path.with_suffix(f".{side}_{name}.npy")) for name in ("ids", "lengths")
    ]
    return TokenRows(arrays[0], arrays[1].astype(np.int32))


def read_entries(parts: Path, index: int) -> NDArray[np.int32]:
    """The entry of the training text that each pair of a range comes from."""
    entries: NDArray[np.int32] = np.load(part_path(parts, index).with_suffix(".entries.npy"))
    return entries


def count_side(texts: list[str], rows: TokenRows) -> SideCounts:
    """The counts of one side."""
    return SideCounts(num_bytes(texts), len(rows.ids), int((rows.ids == UNK).sum()))
