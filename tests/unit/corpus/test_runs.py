from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dragoman.corpus.runs import (
    KEY_SPACE,
    KeyRange,
    SortedPairs,
    SortedRuns,
    merge_runs,
    pair_keys,
    write_run,
)

PAIRS = [f"Quelle {number}\tZiel {number} äöü" for number in range(5_000)]


ALL = KeyRange(0, 0, KEY_SPACE)


def runs_of(folder: Path, block_lines: int) -> SortedRuns:
    paths = []
    for start in range(0, len(PAIRS), block_lines):
        pairs = PAIRS[start : start + block_lines]
        sides = [pair.split("\t") for pair in pairs]
        keys = pair_keys([s for s, _ in sides], [t for _, t in sides], seed=3)
        paths.append(folder / f"{block_lines}-{start:06d}.txt")
        lines = np.arange(start + 1, start + 1 + len(pairs))
        write_run(paths[-1], keys, lines, pairs, block=start // block_lines)
    return SortedRuns(paths)


def whole(parts: list[SortedPairs]) -> list[str]:
    return [pair for part in parts for pair in part.pairs]


def test_the_order_is_a_shuffle_that_depends_on_the_text_alone(tmp_path: Path) -> None:
    few, many = runs_of(tmp_path, 2_000), runs_of(tmp_path, 300)
    order = whole([few.read(ALL)])
    assert sorted(order) == sorted(PAIRS)
    assert order == whole([many.read(part) for part in many.ranges(range_bytes=9_000)])
    places = np.array([int(pair.split()[1]) for pair in order])
    assert abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.05


def test_equal_pairs_are_read_in_order_of_blocks_and_lines(tmp_path: Path) -> None:
    paths = []
    for run in range(2):
        pairs = [f"Quelle {number % 3}\tZiel" for number in range(300)]
        keys = pair_keys([pair.split("\t")[0] for pair in pairs], ["Ziel"] * 300, seed=3)
        paths.append(tmp_path / f"{run}.txt")
        write_run(paths[-1], keys, np.arange(1, 301), pairs, block=run)
    found = SortedRuns(paths).read(ALL)
    for key in np.unique(found.keys):
        own = found.keys == key
        places = list(zip(found.blocks[own].tolist(), found.lines[own].tolist(), strict=True))
        assert len(places) == 200
        assert places == sorted(places)


def test_ranges_cover_every_key_once_and_hold_about_as_much(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, 700)
    ranges = runs.ranges(range_bytes=runs.num_bytes // 10)
    assert ranges[0].low == 0
    assert ranges[-1].high == KEY_SPACE
    assert all(left.high == right.low for left, right in pairwise(ranges))
    sizes = [len(runs.read(part).pairs) for part in ranges]
    assert sum(sizes) == runs.num_pairs == len(PAIRS)
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize("max_pairs", [1, 1234, len(PAIRS), 10 * len(PAIRS)])
def test_a_sample_is_the_front_of_the_shuffle(tmp_path: Path, max_pairs: int) -> None:
    runs = runs_of(tmp_path, 700)
    parts = runs.ranges(max_pairs=max_pairs, range_bytes=9_000)
    assert whole([runs.read(part) for part in parts]) == runs.read(ALL).pairs[:max_pairs]


def test_a_pair_remembers_its_block_and_line(tmp_path: Path) -> None:
    found = runs_of(tmp_path, 700).read(ALL)
    for pair, block, line in zip(found.pairs, found.blocks, found.lines, strict=True):
        assert PAIRS[int(line) - 1] == pair
        assert (int(line) - 1) // 700 == block


def test_equal_keys_are_read_in_order_of_blocks_and_lines(tmp_path: Path) -> None:
    keys = np.array([5, 5], dtype=np.uint64)
    for run in range(2):
        pairs = [f"{run}a\t", f"{run}b\t"]
        write_run(tmp_path / f"{run}.txt", keys, np.array([1, 2]), pairs, block=run)
    runs = SortedRuns([tmp_path / "0.txt", tmp_path / "1.txt"])
    assert runs.read(KeyRange(0, 5, 6)).pairs == ["0a\t", "0b\t", "1a\t", "1b\t"]


@pytest.mark.parametrize("bounds", [(0, 1), (KEY_SPACE - 1, KEY_SPACE)])
def test_a_range_may_be_empty(tmp_path: Path, bounds: tuple[int, int]) -> None:
    found = runs_of(tmp_path, 5_000).read(KeyRange(0, *bounds))
    assert found.pairs == []
    assert len(found.keys) == len(found.blocks) == len(found.lines) == 0


@pytest.mark.parametrize("group", [2, 3, 50])
def test_merged_runs_hold_the_same_pairs_in_the_same_order(tmp_path: Path, group: int) -> None:
    runs = runs_of(tmp_path, 300)
    parts = runs.ranges(range_bytes=9_000)
    expected = [runs.read(part) for part in parts]
    paths = sorted(tmp_path.glob("*.txt"))
    merged = [tmp_path / "merged" / f"{first}.txt" for first in range(0, len(paths), group)]
    (tmp_path / "merged").mkdir()
    for number, path in enumerate(merged):
        merge_runs(paths[number * group : (number + 1) * group], path)
        merge_runs(paths[number * group : (number + 1) * group], path)  # after a kill
    assert not list(tmp_path.glob("*.*")), "the runs are removed"
    of_merged = SortedRuns(merged)
    assert of_merged.ranges(range_bytes=9_000) == parts
    for part, known in zip(parts, expected, strict=True):
        found = of_merged.read(part)
        assert found.pairs == known.pairs
        for name in ("keys", "blocks", "lines"):
            assert np.array_equal(getattr(found, name), getattr(known, name))


def test_a_run_without_pairs_is_merged(tmp_path: Path) -> None:
    nothing = np.zeros(0, dtype=np.uint64)
    for run in range(2):
        write_run(tmp_path / f"{run}.txt", nothing, nothing.astype(np.int64), [], block=run)
    merge_runs([tmp_path / "0.txt", tmp_path / "1.txt"], tmp_path / "merged.txt")
    assert SortedRuns([tmp_path / "merged.txt"]).read(ALL).pairs == []
