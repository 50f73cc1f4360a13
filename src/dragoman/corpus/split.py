"""Dev and test sets: given as files, or held out from the training text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dragoman.base.errors import CorpusError
from dragoman.base.files import write_whole
from dragoman.corpus.clean import BlockReport, RejectedPair, clean_block, refuse_malformed
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.filters import EMPTY
from dragoman.corpus.pairs import BlockReader, FileFacts, TextEntry
from dragoman.corpus.runs import HeldOutSides, Keys, SortedRuns

HELD_OUT_SPLITS = ("valid", "test")


@dataclass(frozen=True, slots=True)
class GivenSplit:
    """A dev or test set as read from its files, in their order."""

    pairs: list[tuple[str, str]]
    rejected: list[RejectedPair]
    reports: list[BlockReport]
    files: list[FileFacts]


def read_split(entries: Sequence[TextEntry], config: CorpusConfig) -> GivenSplit:
    """Read a dev or test set. All its pairs count, so only those without two sides are dropped."""
    reader = BlockReader(entries)
    pairs: list[tuple[str, str]] = []
    rejected: list[RejectedPair] = []
    reports: list[BlockReport] = []
    for block in reader:
        cleaned = clean_block(block, config, filters=(EMPTY,))
        pairs += zip(cleaned.sources, cleaned.targets, strict=True)
        rejected += cleaned.rejected
        reports.append(cleaned.report())
    return GivenSplit(pairs, rejected, list(refuse_malformed(reports)), reader.facts)


def hold_out(
    runs: SortedRuns, wanted: dict[str, int], given: HeldOutSides
) -> tuple[dict[str, list[tuple[str, str]]], Keys]:
    """Take dev and test pairs from the front of the shuffled training text.

    wanted: pairs for each split. given: dev or test pairs that are there already. No side of a
    taken pair is taken twice, so the splits share none.
    Returns: the pairs of each split, and the keys of all of them.
    Raises: CorpusError if the text has too few different pairs.
    """
    taken: dict[str, list[tuple[str, str]]] = {split: [] for split in wanted}
    keys: list[int] = []
    open_splits = [split for split, pairs in wanted.items() if pairs]
    ranges = runs.in_order()
    while open_splits:
        found = next(ranges, None)
        if found is None:
            raise CorpusError(
                f"too little text to hold out {wanted} pairs",
                place="corpus.train",
                remedy="lower valid_pairs and test_pairs, or add text",
            )
        for key, pair in zip(found.keys, found.pairs, strict=True):
            source, target = pair.split("\t")
            if given.overlap(source, target):
                continue
            given.add(source, target)
            keys.append(int(key))
            split = open_splits[0]
            taken[split].append((source, target))
            if len(taken[split]) == wanted[split]:
                open_splits.pop(0)
                if not open_splits:
                    break
    return taken, np.array(keys, dtype=np.uint64)


def write_text(directory: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Write the text of a split, one line a pair, as source.txt and target.txt."""
    directory.mkdir(parents=True, exist_ok=True)
    for side, name in enumerate(("source.txt", "target.txt")):
        write_whole(directory / name, "".join(f"{pair[side]}\n" for pair in pairs))


def read_text(directory: Path) -> list[tuple[str, str]]:
    """The pairs of a split as write_text left them; none if there is no such split."""
    if not directory.exists():
        return []
    sides = (
        (directory / name).read_bytes().decode().split("\n")[:-1]
        for name in ("source.txt", "target.txt")
    )
    return list(zip(*sides, strict=True))
