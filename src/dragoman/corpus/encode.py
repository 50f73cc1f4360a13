"""Cleaned runs -> token rows: the shuffled training text, a range of keys at a time.

All pairs come together only here, so duplicates and overlaps with dev and test are removed here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.base.files import whole_file, write_whole
from dragoman.corpus import lexical
from dragoman.corpus.augment import Copies
from dragoman.corpus.clean import (
    DUPLICATE,
    NEAR_DUPLICATE,
    RejectedPair,
    num_bytes,
    pack_rejected,
)
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.context import CONTEXT, sentences_of
from dragoman.corpus.directions import Direction, without_first_word
from dragoman.corpus.filters import Rejection
from dragoman.corpus.links import Linked, Linker, by_table, same_words
from dragoman.corpus.runs import HeldOutSides, KeyRange, SortedPairs, SortedRuns, repeated
from dragoman.corpus.shards import SIDES, UNK, TokenRows, save_array
from dragoman.corpus.split import HELD_OUT_SPLITS, HeldOut, read_directions, read_text
from dragoman.corpus.subword import count_words, read_vocabulary
from dragoman.corpus.survey import FilterSurvey, write_surveys
from dragoman.corpus.vocabulary import RowEncoder, load_vocabulary
from dragoman.corpus.workplace import Workplace

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
        """The pairs whose value in `keep` is true; it has one value for each pair."""
        chosen = keep.tolist()
        return Selected(
            list(compress(self.sources, chosen)),
            list(compress(self.targets, chosen)),
            self.rows[keep],
            self.rejections,
        )


@dataclass(frozen=True, slots=True)
class SideCounts:
    """One side of the kept pairs: bytes of text, pieces, and how many of these are unknown."""

    num_bytes: int
    pieces: int
    unknown: int


@dataclass(frozen=True, slots=True)
class PartReport:
    """The result of encoding one range.

    copies: pairs that were added, by how they were changed; paragraphs as `context`.
    """

    pairs_in: int
    pairs_out: int
    dropped: dict[str, int]
    truncated: int
    source: SideCounts
    target: SideCounts
    copies: dict[str, int] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows of the shards: the pairs that stay, the copies and the paragraphs."""
        return self.pairs_out + sum(self.copies.values())

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
        """The report from the values that `asdict` made."""
        return cls(**(values | {side: SideCounts(**values[side]) for side in SIDES}))


class Counted(NamedTuple):
    """The number of pairs of a direction, and how often each word occurs in them."""

    pairs: int
    words: Counter[str]


class CleanedText:
    """The cleaned training text of a workplace.

    Methods that take a KeyRange are tasks of workers. Another process gets the place and the
    settings, and opens what it needs when it needs it.
    """

    def __init__(self, place: Workplace, config: CorpusConfig) -> None:
        self._place = place
        self._config = config
        self.words = [words for words in (config.language_tokens, config.tags) if words]
        """Lists of language tokens and of tags; a source may begin with one word of each."""

    def __reduce__(self) -> tuple[type[Self], tuple[Workplace, CorpusConfig]]:
        return type(self), (self._place, self._config)

    @cached_property
    def runs(self) -> SortedRuns:
        """All pairs that no filter has dropped."""
        return SortedRuns([self._place.runs / name for name in self._place.recall("merge")])

    @cached_property
    def paragraphs(self) -> SortedRuns:
        """Neighbouring pairs, joined; none if the recipe has no context."""
        with_context = self._config.context.sentences > 1
        names = self._place.recall("merge_paragraphs") if with_context else []
        return SortedRuns([self._place.runs / name for name in names])

    @cached_property
    def directions(self) -> list[Direction]:
        """The direction of the pairs of each block."""
        of_entries = [self._config.direction_of(entry) for entry in self._config.train]
        return [of_entries[entry] for entry in self._blocks["entries"]]

    @cached_property
    def written(self) -> list[bool]:
        """Whether people wrote both sides of the pairs of each block, as far as the recipe says."""
        of_entries = [not (entry.tag or entry.translated) for entry in self._config.train]
        return [of_entries[entry] for entry in self._blocks["entries"]]

    @cached_property
    def encoders(self) -> tuple[RowEncoder, RowEncoder]:
        """The encoders of both sides; the same one twice if their files are equal."""
        files = [self._place.result / f"{side}.model" for side in SIDES]
        source = RowEncoder(load_vocabulary(files[0]), self._config.subword)
        if read_vocabulary(files[0]) == read_vocabulary(files[1]):
            return source, source
        return source, RowEncoder(load_vocabulary(files[1]), self._config.subword)

    @cached_property
    def _blocks(self) -> Any:
        """Lists with the source file and the entry of text of each block."""
        return self._place.recall("clean")

    @cached_property
    def _lexical(self) -> dict[Direction, lexical.LexicalTable]:
        return {
            direction: lexical.LexicalTable.load(self._place.lexical / str(number))
            for number, direction in enumerate(self._config.train_directions)
            if (self._place.lexical / str(number)).is_dir()
        }

    def _link(self, pair: tuple[str, str], direction: Direction) -> Linked:
        """The words of a pair that translate each other, by the table if there is one."""
        if not self._lexical:
            return same_words(pair, direction)
        vocabularies = (self.encoders[0].vocabulary, self.encoders[1].vocabulary)
        return by_table(pair, self._lexical[direction], vocabularies)

    def plain(self, source: str) -> str:
        """A source without its language token and its tag."""
        return reduce(without_first_word, self.words, source)

    def held_out(self, splits: Iterable[str]) -> Iterator[HeldOut]:
        """The pairs of dev and test sets as they were written, with their directions."""
        for split in splits:
            pairs = read_text(self._place.result / split)
            directions = read_directions(self._place.result / split)
            directions = directions or [*self._config.directions] * len(pairs)
            for (source, target), direction in zip(pairs, directions, strict=True):
                yield HeldOut(source, target, direction)

    @cached_property
    def _held_out_sides(self) -> HeldOutSides:
        """The sides of all dev and test pairs, as plain text."""
        sides = HeldOutSides(near=self._config.filters.drop_near_duplicates)
        for source, target, direction in self.held_out(HELD_OUT_SPLITS):
            sides.add(direction, self.plain(source), target)
        return sides

    @cached_property
    def _held_out_keys(self) -> NDArray[np.uint64]:
        """The keys of the pairs that were moved from the training text to dev or test."""
        return np.array(self._place.recall("hold_out")["keys"], dtype=np.uint64)

    @cached_property
    def _backwards(self) -> set[HeldOut]:
        """The held-out pairs in the opposite direction, as plain text: another entry may hold
        these."""
        moved = [split for split in HELD_OUT_SPLITS if not getattr(self._config, split)]
        turned = (
            HeldOut(target, self.plain(source), Direction(direction.target, direction.source))
            for source, target, direction in self.held_out(moved)
        )
        return {pair for pair in turned if pair.direction in self._config.train_directions}

    def select(self, found: SortedPairs) -> Selected:
        """The pairs of a range that are neither duplicates nor held out, nor overlap dev or test.

        The score of an overlap is the number of shared sides.
        """
        filters = self._config.filters
        cells = [pair.split("\t") for pair in found.pairs]
        sources, targets = [source for source, _ in cells], [target for _, target in cells]
        held_out = np.isin(found.keys, self._held_out_keys)
        duplicate = np.zeros(len(cells), dtype=np.bool_)
        shared = np.zeros(len(cells), dtype=np.int64)
        if filters.drop_duplicates or filters.drop_near_duplicates:
            duplicate = repeated(found.keys)
        if filters.drop_overlap or self._backwards:
            plain = [self.plain(source) for source in sources] if self.words else sources
            blocks = found.blocks.tolist()
        if self._backwards:
            pairs = map(HeldOut, plain, targets, [self.directions[block] for block in blocks])
            held_out |= np.array([pair in self._backwards for pair in pairs], dtype=np.bool_)
        if filters.drop_overlap:
            # As `HeldOutSides.overlap`, but the sets are looked up once a block, not for each pair.
            key = self._held_out_sides.key
            kept_out = [self._held_out_sides.keys(direction) for direction in self.directions]
            overlap = (
                (key(source) in kept_out[block][0]) + (key(target) in kept_out[block][1])
                for block, source, target in zip(blocks, plain, targets, strict=True)
            )
            shared = np.fromiter(overlap, dtype=np.int64, count=len(cells))
        reasons = np.select([duplicate, held_out, shared > 0], [1, 2, 3])
        again = NEAR_DUPLICATE if filters.drop_near_duplicates else DUPLICATE
        names = ("", again, HELD_OUT, OVERLAP)
        rejections = [
            Rejection(int(row), names[reasons[row]], max(1.0, float(shared[row])))
            for row in np.flatnonzero(reasons)
        ]
        return Selected(sources, targets, np.arange(len(cells)), rejections).keep(reasons == 0)

    def count_words(self, sides: Iterable[str], part: KeyRange) -> dict[Direction, Counted]:
        """The kept pairs of a range, and the words of some of their sides, for each direction."""
        found = self.runs.read(part)
        selected = self.select(found)
        copies = self._copies(found, selected)
        texts = {
            "source": selected.sources + copies.sources,
            "target": selected.targets + copies.targets,
        }
        blocks = found.blocks[selected.rows][np.append(np.arange(len(selected.rows)), copies.rows)]
        counted = {}
        for direction in dict.fromkeys(self.directions):
            own = [block for block, known in enumerate(self.directions) if known == direction]
            rows = np.flatnonzero(np.isin(blocks, own)).tolist()
            words = count_words([texts[side][row] for side in sides for row in rows])
            counted[direction] = Counted(len(rows), words)
        return counted

    def count_co_occurrences(
        self, part: KeyRange
    ) -> dict[Direction, tuple[int, lexical.PieceKeys, NDArray[np.int64]]]:
        """How many pairs of a range stay, and the keys and counts of `lexical.met_keys`, for each
        direction."""
        size = self.encoders[1].vocab_size
        return {
            direction: (
                len(source.lengths),
                *lexical.met_keys(source, target, target_vocab_size=size),
            )
            for direction, (source, target) in self._rows(part).items()
        }

    def count_translations(self, part: KeyRange) -> dict[Direction, lexical.Counts]:
        """How often pieces translate each other in a range, by the current tables."""
        return {
            direction: self._lexical[direction].counts(source, target)
            for direction, (source, target) in self._rows(part).items()
        }

    def _rows(self, part: KeyRange) -> dict[Direction, tuple[TokenRows, TokenRows]]:
        """Source and target rows of the pairs of a range that stay, for each direction in it."""
        found = self.runs.read(part)
        selected = self.select(found)
        source = self.encoders[0].encode(selected.sources)
        target = self.encoders[1].encode(selected.targets)
        return {
            direction: (source.select(own), target.select(own))
            for direction, own in self._by_direction(found.blocks[selected.rows])
        }

    def _by_direction(
        self, blocks: NDArray[np.int64]
    ) -> Iterator[tuple[Direction, NDArray[np.bool_]]]:
        """Each direction of some pairs, and which pairs are in it. blocks: the block of each."""
        for direction in self._config.train_directions:
            own_blocks = [block for block, of in enumerate(self.directions) if of == direction]
            own = np.isin(blocks, own_blocks)
            if own.any():
                yield direction, own

    def _copies(
        self, found: SortedPairs, selected: Selected, linker: Linker = same_words
    ) -> Copies:
        """Changed copies of selected pairs, with the words before their sources."""
        plain = [self.plain(source) for source in selected.sources]
        directions = [self.directions[block] for block in found.blocks[selected.rows].tolist()]
        pairs = list(zip(plain, selected.targets, strict=True))
        copies = Copies(self._config.augment, pairs, directions, found.keys[selected.rows], linker)
        if self.words:
            lengths = zip(selected.sources, plain, strict=True)
            before = [source[: len(source) - len(text)] for source, text in lengths]
            copies.sources = copies.behind(before)
        return copies

    def _whole_paragraphs(self, part: KeyRange) -> SortedPairs:
        """The different paragraphs of a range of which no sentence is held out, overlaps dev or
        test, or is dropped by the lexical filter."""
        found = self.paragraphs.read(part)
        if not found.pairs:
            return found
        of_pairs = [sentences_of(self.plain(pair)) for pair in found.pairs]
        counts = np.array([*map(len, of_pairs)])
        pairs = [pair for several in of_pairs for pair in several]
        blocks = np.repeat(found.blocks, counts)
        good = np.array(
            [
                not self._held_out_sides.overlap(self.directions[block], *pair)
                for block, pair in zip(blocks.tolist(), pairs, strict=True)
            ]
        )
        if (threshold := self._config.filters.min_lexical_gain) is not None:
            source = self.encoders[0].encode([source for source, _ in pairs])
            target = self.encoders[1].encode([target for _, target in pairs])
            for direction, own in self._by_direction(blocks):
                gains = self._lexical[direction].gains(source.select(own), target.select(own))
                good[own] &= gains >= threshold
        keep = np.logical_and.reduceat(good, np.cumsum(counts) - counts) & ~repeated(found.keys)
        return SortedPairs(
            found.keys[keep],
            [*compress(found.pairs, keep.tolist())],
            found.blocks[keep],
            found.lines[keep],
        )

    def _add_copies(
        self,
        part: KeyRange,
        found: SortedPairs,
        paragraphs: SortedPairs,
        selected: Selected,
        source: TokenRows,
        target: TokenRows,
    ) -> tuple[Selected, TokenRows, TokenRows, dict[str, int]]:
        """Add changed copies of the pairs, and paragraphs, in random places of the range.

        Returns all pairs, their rows, and the number of copies of each kind. The rows of paragraphs
        have the numbers after those of the pairs. A copy or paragraph that is too long is left out.
        """
        copies = self._copies(found, selected, self._link)
        more = selected.rows[copies.rows]
        if paragraphs.pairs:
            cells = [pair.split("\t") for pair in paragraphs.pairs]
            copies.sources += [source for source, _ in cells]
            copies.targets += [target for _, target in cells]
            copies.kinds += [CONTEXT] * len(cells)
            more = np.append(more, len(found.pairs) + np.arange(len(cells)))
        if not len(more):
            return selected, source, target, {}
        more_source = self.encoders[0].encode(copies.sources)
        more_target = self.encoders[1].encode(copies.targets)
        fits = np.maximum(more_source.lengths, more_target.lengths) <= self._config.max_pieces
        source = source.followed_by(more_source.select(fits))
        target = target.followed_by(more_target.select(fits))
        random = np.random.default_rng((self._config.seed, part.number))
        order = random.permutation(len(source.lengths))
        kept = np.flatnonzero(fits).tolist()
        sources = selected.sources + [copies.sources[row] for row in kept]
        targets = selected.targets + [copies.targets[row] for row in kept]
        everything = replace(
            selected,
            sources=[sources[row] for row in order],
            targets=[targets[row] for row in order],
            rows=np.append(selected.rows, more[fits])[order],
        )
        counts = Counter(copies.kinds[row] for row in kept)
        return everything, source.take(order), target.take(order), dict(sorted(counts.items()))

    def encode(self, part: KeyRange) -> PartReport:
        """Write the rows of a range, its rejected pairs and, last, its report.

        A range that is finished is skipped.
        """
        path = part_path(self._place.parts, part.number)
        if path.exists():
            return PartReport.from_json(json.loads(path.read_bytes()))
        files = self._blocks["files"]
        found = self.runs.read(part)
        selected = self.select(found)
        source = self.encoders[0].encode(selected.sources)
        target = self.encoders[1].encode(selected.targets)
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
        if threshold is not None and len(selected.sources):
            sources, targets = selected.sources, selected.targets
            blocks = found.blocks[selected.rows]
            gains = np.zeros(len(sources))
            for direction, own in self._by_direction(blocks):
                table = self._lexical[direction]
                gains[own] = table.gains(source.select(own), target.select(own))
            accepted = gains >= threshold
            surveys.append(FilterSurvey(LEXICAL, threshold, at_least=True))
            surveys[0].see(
                gains,
                accepted,
                found.lines[selected.rows].astype(np.int64),
                lambda row: (files[blocks[row]], self.plain(sources[row]), targets[row]),
            )
            rejections = rejections + [
                Rejection(int(selected.rows[row]), LEXICAL, float(gains[row]))
                for row in np.flatnonzero(~accepted)
            ]
            source, target = source.select(accepted), target.select(accepted)
            selected = selected.keep(accepted)
        pairs_out = len(selected.sources)
        paragraphs = self._whole_paragraphs(part)
        selected, source, target, copies = self._add_copies(
            part, found, paragraphs, selected, source, target
        )
        report = PartReport(
            pairs_in=len(found.pairs),
            pairs_out=pairs_out,
            dropped=dict(Counter(rejection.filter for rejection in rejections)),
            truncated=truncated,
            source=count_side(selected.sources, source),
            target=count_side(selected.targets, target),
            copies=copies,
        )
        for side, rows in zip(SIDES, (source, target), strict=True):
            for name, array in (("ids", rows.ids), ("lengths", rows.lengths)):
                with whole_file(path.with_suffix(f".{side}_{name}.npy")) as file:
                    save_array(file, array)
        entries = np.array(self._blocks["entries"], dtype=np.int32)
        with whole_file(path.with_suffix(".entries.npy")) as file:
            save_array(file, entries[np.append(found.blocks, paragraphs.blocks)[selected.rows]])
        rejected = []
        # Who looks for what filters dropped need not read past what the dev and test sets got.
        for row, name, score, _ in sorted(rejections, key=lambda one: one.filter == HELD_OUT):
            file, line = files[found.blocks[row]], int(found.lines[row])
            sides = found.pairs[row].split("\t")
            rejected.append(RejectedPair(name, score, file, line, self.plain(sides[0]), sides[1]))
        write_whole(path.with_suffix(".rejected"), pack_rejected(rejected))
        write_surveys(path.with_suffix(".scores"), surveys)
        write_whole(path, json.dumps(asdict(report)))
        return report


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
