from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CorpusError, MachineError
from dragoman.corpus.shards import (
    SideSize,
    TokenRows,
    TokenShards,
    id_dtype,
    save_array,
    write_side,
)


def rows_of(rows: list[list[int]], dtype: type[np.integer] = np.uint16) -> TokenRows:
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    return TokenRows(np.array([piece for row in rows for piece in row], dtype=dtype), lengths)


def write(directory: Path, vocab_size: int = 60_000) -> tuple[list[list[int]], list[list[int]]]:
    random = np.random.default_rng(0)
    sides = []
    dtype = id_dtype(vocab_size)
    for side in ("source", "target"):
        lengths = random.integers(0, 9, size=50)
        rows = [random.integers(4, vocab_size, size=n).tolist() for n in lengths]
        parts = [rows_of(rows[:20], dtype.type), rows_of(rows[20:], dtype.type)]
        size = SideSize(50, int(lengths.sum()), dtype)
        write_side(directory, side, parts, size=size)
        sides.append(rows)
    return sides[0], sides[1]


@pytest.mark.parametrize(("vocab_size", "bytes_per_id"), [(65_536, 2), (65_537, 4)])
def test_rows_come_back_as_written(tmp_path: Path, vocab_size: int, bytes_per_id: int) -> None:
    source, target = write(tmp_path, vocab_size)
    shards = TokenShards(tmp_path)
    assert shards.num_pairs == 50
    assert [shards.source(i).tolist() for i in range(50)] == source
    assert [shards.target(i).tolist() for i in range(50)] == target
    assert shards.source(0).dtype.itemsize == bytes_per_id
    assert shards.source_lengths.dtype == shards.target_lengths.dtype == np.int32
    assert shards.source_lengths.tolist() == [len(row) for row in source]


def test_gather_takes_any_rows_in_any_order(tmp_path: Path) -> None:
    source, target = write(tmp_path)
    indices = np.array([7, 3, 3, 49, 0])
    pieces = TokenShards(tmp_path).gather(indices)
    assert pieces[0].tolist() == [piece for i in indices for piece in source[i]]
    assert pieces[1].tolist() == [len(source[i]) for i in indices]
    assert pieces[2].tolist() == [piece for i in indices for piece in target[i]]
    assert pieces[3].tolist() == [len(target[i]) for i in indices]


def test_gathering_nothing_gives_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    pieces = TokenShards(tmp_path).gather(np.zeros(0, dtype=np.int64))
    assert [len(part) for part in pieces] == [0, 0, 0, 0]


def test_ids_are_mapped_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    assert isinstance(TokenShards(tmp_path).source(3), np.memmap)


def test_rows_can_be_selected_and_truncated() -> None:
    rows = rows_of([[5, 6, 7], [], [8], [9, 10]])
    kept = rows.select(np.array([True, True, False, True]))
    assert (kept.ids.tolist(), kept.lengths.tolist()) == ([5, 6, 7, 9, 10], [3, 0, 2])
    short = rows.truncate(2)
    assert (short.ids.tolist(), short.lengths.tolist()) == ([5, 6, 8, 9, 10], [2, 0, 1, 2])


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_a_damaged_split_names_the_file(tmp_path: Path, damage: str) -> None:
    write(tmp_path)
    path = tmp_path / "target_ids.npy"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorpusError, match=r"target_ids\.npy.*run dragoman prepare again"):
        TokenShards(tmp_path)


@pytest.mark.parametrize("size", [10, 100_000])
def test_an_array_on_a_full_disk_is_one_line(size: int) -> None:
    with (
        pytest.raises(MachineError, match=r"/data: the disk is full"),
        disk_errors_named(Path("/data")),
        Path("/dev/full").open("wb") as file,
    ):
        save_array(file, np.arange(size))


def test_an_array_is_written_as_numpy_does(tmp_path: Path) -> None:
    arrays = (np.arange(12, dtype=np.uint64).reshape(3, 4), np.zeros(0, np.int32))
    for array in (*arrays, arrays[0].T):
        with (tmp_path / "a.npy").open("wb") as file:
            save_array(file, array)
        loaded = np.load(tmp_path / "a.npy")
        assert loaded.dtype == array.dtype
        np.testing.assert_array_equal(loaded, array)
