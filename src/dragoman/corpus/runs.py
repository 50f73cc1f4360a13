"""The full shuffle: runs on disk, each sorted by key, read back together by ranges of keys.

Each block of cleaned text makes one run. Neighbouring runs are merged until so few are left that
each range of keys is read from few places; so the cost of the shuffle grows with the text alone.

A key is a seeded 64-bit hash of a pair, so the order of keys is a random order of the whole corpus,
the same whatever the blocks and the workers. Equal pairs have equal keys and meet. Two of n
different pairs share a key with probability n^2 / 2^65: one in two million for 4.5 million pairs.
Any prefix of the order is a uniform sample. A run is a text file of `source<TAB>target` lines and
an index beside it, an array of shape (4, pairs): keys, ends of the lines in bytes, line numbers in
the entry's files, and numbers of the blocks.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, pairwise, takewhile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base.files import whole_file
from dragoman.corpus.directions import Direction

PairKeys = NDArray[np.uint64]
KEY_SPACE = 1 << 64
RANGE_BYTES = 8 << 20
MOST_RUNS = 64
"""More runs are not read together: each keeps a file open, and some systems allow only 256."""


def pair_keys(sources: Sequence[str], targets: Sequence[str], *, seed: int) -> PairKeys:
    """A hash of each pair, uniform over 64 bits for every seed."""
    salt = seed.to_bytes(16, "little", signed=True)
    digests = [
        blake2b(f"{source}\t{target}".encode(), digest_size=8, salt=salt).digest()
        for source, target in zip(sources, targets, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


class _Letters(dict[int, str | None]):
    """The replacement of each character for `str.translate`, found when it first occurs."""

    def __missing__(self, code: int) -> str | None:
        category = unicodedata.category(chr(code))
        # Marks stay: they are the vowels of many scripts.
        self[code] = "0" if category == "Nd" else None if category[0] in "PSZC" else chr(code)
        return self[code]


_LETTERS: Final = _Letters()


def near_key(text: str) -> str:
    """The case-folded letters of a text, and 0 for each number; the text if it has no letters.

    Bifixer (Ramírez-Sánchez et al. 2020) finds near-duplicates in such a way; it also ignores
    accents, which distinguish words in many languages.
    """
    letters = re.sub("0+", "0", text.casefold().translate(_LETTERS))
    return letters if letters.strip("0") else text


def distinct_keys(keys: PairKeys, *, first_ordinal: int) -> PairKeys:
    """Keys that differ even for equal pairs: each is mixed with the pair's place in the corpus.

    keys[i] belongs to the pair at place first_ordinal + i. The mixing is the finaliser of
    SplitMix64 (Steele, Lea and Flood 2014).
    """
    z = np.arange(first_ordinal, first_ordinal + len(keys), dtype=np.uint64)
    z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ z ^ (z >> np.uint64(31))


def repeated(keys: PairKeys) -> NDArray[np.bool_]:
    """For each key, whether an earlier key is equal to it."""
    order = np.argsort(keys, kind="stable")
    is_repeated = np.zeros(len(keys), dtype=np.bool_)
    is_repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return is_repeated


class HeldOutSides:
    """The sides of all dev and test pairs, to find training pairs that share one.

    A text counts as the same whether it is a source or a target: a model that translates both ways
    must not learn from a test pair backwards.

    near: whether texts count as the same if they have the same `near_key`.
    """

    def __init__(self, *, near: bool = False) -> None:
        self.key: Callable[[str], str] = near_key if near else str
        """What two texts that count as the same have in common."""
        self._keys: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, direction: Direction, source: str, target: str) -> None:
        """Add a held-out pair."""
        self._keys[direction.source.lower()].add(self.key(source))
        self._keys[direction.target.lower()].add(self.key(target))

    def keys(self, direction: Direction) -> tuple[set[str], set[str]]:
        """The keys of the held-out texts in the source language and in the target language."""
        return self._keys[direction.source.lower()], self._keys[direction.target.lower()]

    def overlap(self, direction: Direction, source: str, target: str) -> int:
        """How many sides of the pair, 0 to 2, are also in dev or test."""
        sources, targets = self.keys(direction)
        return (self.key(source) in sources) + (self.key(target) in targets)


class KeyRange(NamedTuple):
    """A part of the shuffled corpus: the keys with low <= key < high."""

    number: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class SortedPairs:
    """Pairs in the order of their keys; pairs with equal keys keep the order of the text.

    pairs are `source<TAB>target`. blocks, lines: the block and the line of the text of each pair.
    """

    keys: PairKeys
    pairs: list[str]
    blocks: NDArray[np.int64]
    lines: NDArray[np.uint64]


def run_name(number: int) -> str:
    """The name of a run's text; its index, rejected pairs, surveys and report lie beside it."""
    return f"{number:06d}.txt"


def numbered(folder: Path, suffix: str) -> Iterator[Path]:
    """The files of this suffix of all runs, or of all ranges, in their order.

    Each is asked for: a network file system may list late what other machines have written.
    """
    paths = ((folder / run_name(number)).with_suffix(suffix) for number in count())
    return takewhile(Path.exists, paths)


def write_run(
    path: Path, keys: PairKeys, lines: NDArray[np.int64], pairs: Sequence[str], *, block: int
) -> None:
    """Sort the pairs of a block by key and write them; path is the text file of the run."""
    order = np.argsort(keys, kind="stable")
    in_order = SortedPairs(
        keys=keys[order],
        pairs=[pairs[row] for row in order],
        blocks=np.full(len(pairs), block),
        lines=lines[order].astype(np.uint64),
    )
    _write(path, [in_order], num_pairs=len(pairs))


def merge_runs(paths: Sequence[Path], merged: Path) -> None:
    """Write neighbouring runs as one, with a range of keys in memory at a time; remove them then.

    Nothing is done if the merged run is there already.
    """
    if not merged.exists():
        runs = SortedRuns(paths)
        _write(merged, runs.in_order(), num_pairs=runs.num_pairs)
    for path in paths:
        path.unlink(missing_ok=True)
        path.with_suffix(".npy").unlink(missing_ok=True)


def _write(path: Path, parts: Iterable[SortedPairs], *, num_pairs: int) -> None:
    """Write a run of num_pairs pairs, which come in the order of their keys."""
    with whole_file(path) as text, whole_file(path.with_suffix(".npy")) as index:
        header = {"descr": "<u8", "fortran_order": False, "shape": (4, num_pairs)}
        np.lib.format.write_array_header_1_0(index, header)
        start, first, end = index.tell(), 0, 0
        for part in parts:
            encoded = [f"{pair}\n".encode() for pair in part.pairs]
            text.write(b"".join(encoded))
            sizes = np.fromiter(map(len, encoded), dtype=np.uint64, count=len(encoded))
            ends = np.uint64(end) + np.cumsum(sizes, dtype=np.uint64)
            columns = (part.keys, ends, part.lines, part.blocks.astype(np.uint64))
            for number, column in enumerate(columns):
                index.seek(start + 8 * (number * num_pairs + first))
                index.write(np.ascontiguousarray(column).data)
            first, end = first + len(encoded), text.tell()


class SortedRuns:
    """Runs in the order of their blocks; the indexes are memory-mapped."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._indexes = [np.load(path.with_suffix(".npy"), mmap_mode="r") for path in paths]
        self.num_pairs = sum(index.shape[1] for index in self._indexes)
        self.num_bytes = sum(path.stat().st_size for path in paths)

    def ranges(
        self, *, max_pairs: int | None = None, range_bytes: int = RANGE_BYTES
    ) -> list[KeyRange]:
        """Ranges of about equal bytes that cover all keys, or those of the first max_pairs pairs.

        They depend only on the corpus and these arguments.
        """
        end = KEY_SPACE if max_pairs is None else self._end_of(max_pairs)
        num_bytes = self.num_bytes * end // KEY_SPACE
        parts = -(-num_bytes // range_bytes) or 1
        bounds = [end * i // parts for i in range(parts + 1)]
        return [KeyRange(number, *pair) for number, pair in enumerate(pairwise(bounds))]

    def read(self, part: KeyRange) -> SortedPairs:
        """Every pair of a range."""
        rows = [np.zeros((4, 0), np.uint64)]
        pairs: list[str] = []
        for path, index in zip(self._paths, self._indexes, strict=True):
            first, last = _position(index[0], part.low), _position(index[0], part.high)
            if first == last:
                continue
            rows.append(index[:, first:last])
            start = int(index[1, first - 1]) if first else 0
            with path.open("rb") as file:
                file.seek(start)
                text = file.read(int(index[1, last - 1]) - start).decode()
            pairs += text.split("\n")[:-1]
        keys, _, lines, blocks = np.concatenate(rows, axis=1)
        order = np.argsort(keys, kind="stable")
        return SortedPairs(
            keys=keys[order],
            pairs=[pairs[row] for row in order],
            blocks=blocks[order].astype(np.int64),
            lines=lines[order],
        )

    def in_order(self) -> Iterator[SortedPairs]:
        """The whole corpus in the order of the keys, a range at a time."""
        return map(self.read, self.ranges())

    def _end_of(self, max_pairs: int) -> int:
        """The largest bound of keys with at most max_pairs keys below it."""
        low, high = 0, KEY_SPACE + 1
        while high - low > 1:
            middle = (low + high) // 2
            below = sum(_position(index[0], middle) for index in self._indexes)
            low, high = (middle, high) if below <= max_pairs else (low, middle)
        return low


def _position(keys: PairKeys, bound: int) -> int:
    return len(keys) if bound == KEY_SPACE else int(np.searchsorted(keys, np.uint64(bound)))
