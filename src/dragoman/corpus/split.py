"""Dev and test sets: given as files, or held out from the training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from dragoman.base.errors import CorpusError
from dragoman.base.files import write_whole
from dragoman.corpus.clean import BlockReport, RejectedPair, clean_block, refuse_malformed
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import Direction, listed, without_first_word
from dragoman.corpus.filters import EMPTY
from dragoman.corpus.pairs import BlockReader, FileFacts, TextEntry
from dragoman.corpus.runs import HeldOutSides, PairKeys, SortedRuns

HELD_OUT_SPLITS = ("valid", "test")
DIRECTIONS: Final = "directions.txt"


class HeldOut(NamedTuple):
    """A pair of a dev or test set."""

    source: str
    target: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class GivenSplit:
    """A dev or test set as read from its files, in their order.

    directions: the translation direction of each pair. shifted: as of `BlockReader`.
    """

    pairs: list[tuple[str, str]]
    directions: list[Direction]
    rejected: list[RejectedPair]
    reports: list[BlockReport]
    files: list[FileFacts]
    shifted: list[str]


def read_split(entries: Sequence[TextEntry], config: CorpusConfig) -> GivenSplit:
    """Read a dev or test set; drops only malformed lines and pairs with an empty side."""
    reader = BlockReader(entries)
    pairs: list[tuple[str, str]] = []
    directions: list[Direction] = []
    rejected: list[RejectedPair] = []
    reports: list[BlockReport] = []
    for block in reader:
        cleaned = clean_block(block, config, filters=(EMPTY,))
        pairs += zip(cleaned.sources, cleaned.targets, strict=True)
        directions += [block.entry.direction] * len(cleaned.sources)
        rejected += cleaned.rejected
        reports.append(cleaned.report())
    return GivenSplit(
        pairs, directions, rejected, list(refuse_malformed(reports)), reader.facts, reader.shifted
    )


def hold_out(
    runs: SortedRuns,
    wanted: dict[str, int],
    given: HeldOutSides,
    *,
    directions: Sequence[Direction],
    written: Sequence[bool] | None = None,
    words: Sequence[Sequence[str]] = (),
) -> tuple[dict[str, list[HeldOut]], PairKeys]:
    """Take dev and test pairs from the front of the shuffled training text.

    wanted: pairs for each split, of each direction.
    given: the dev or test pairs that exist already, without language tokens and tags; the pairs
        that are taken are added.
    directions: the translation direction of the pairs of each block.
    written: whether people wrote both sides of the pairs of each block. If a direction has such
        blocks, only their pairs are taken. None: people wrote all.
    words: lists of language tokens and of tags; a source may begin with one word of each list.
    No two pairs that are taken have a side in common, so the splits share none.
    Returns: the pairs of each split, and the keys of all of them.
    Raises: CorpusError if the text has too few different pairs.
    """
    taken: dict[str, list[HeldOut]] = {split: [] for split in wanted}
    keys: list[int] = []
    left = {
        direction: {split: pairs for split, pairs in wanted.items() if pairs}
        for direction in directions
    }
    is_written = written or [True] * len(directions)
    some_written = {one for one, so in zip(directions, is_written, strict=True) if so}
    ranges = runs.in_order()
    while any(left.values()):
        found = next(ranges, None)
        if found is None:
            missing = ", ".join(
                f"{sum(sizes.values())} of {listed([direction])}"
                for direction, sizes in left.items()
                if sizes
            )
            raise CorpusError(
                f"too little text to hold out dev and test pairs, more are needed: {missing}",
                place="corpus.train",
                remedy="lower valid_pairs and test_pairs, or add text without a tag that no model "
                "translated",
            )
        for key, pair, block in zip(found.keys, found.pairs, found.blocks.tolist(), strict=True):
            direction = directions[block]
            if not left[direction] or (direction in some_written and not is_written[block]):
                continue
            source, target = pair.split("\t")
            plain = reduce(without_first_word, words, source)
            if given.overlap(direction, plain, target):
                continue
            given.add(direction, plain, target)
            keys.append(int(key))
            split = next(iter(left[direction]))
            taken[split].append(HeldOut(source, target, direction))
            left[direction][split] -= 1
            if not left[direction][split]:
                del left[direction][split]
                if not any(left.values()):
                    break
    return taken, np.array(keys, dtype=np.uint64)


def write_text(
    directory: Path,
    pairs: Sequence[tuple[str, str]],
    directions: Sequence[Direction] | None = None,
) -> None:
    """Write the text of a split, one line per pair, as source.txt and target.txt.

    directions: the direction of each pair, for directions.txt; None if all are the same.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("source.txt", "target.txt")):
        write_whole(directory / name, "".join(f"{pair[side]}\n" for pair in pairs))
    if directions is not None:
        write_whole(directory / DIRECTIONS, "".join(f"{a} {b}\n" for a, b in directions))


def read_directions(directory: Path) -> list[Direction]:
    """The direction of each pair of a split as write_text left them; empty if there is only one
    direction.

    Raises CorpusError if they cannot be read.
    """
    file = directory / DIRECTIONS
    try:
        return [Direction(*line.split(" ")) for line in file.read_text("utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise CorpusError(
            "does not hold two languages per line", place=file, remedy="run dragoman prepare again"
        ) from error


def read_text(directory: Path) -> list[tuple[str, str]]:
    """The pairs of a split as write_text left them; none if there is no such split."""
    if not directory.exists():
        return []
    sides = (
        (directory / name).read_bytes().decode().split("\n")[:-1]
        for name in ("source.txt", "target.txt")
    )
    return list(zip(*sides, strict=True))
