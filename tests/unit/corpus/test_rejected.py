from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dragoman.base.files import write_whole
from dragoman.corpus.clean import RejectedPair, join_rejected, pack_rejected
from rejected_pairs import read_rejected

PAIRS = [
    RejectedPair("over_long", 300.0, "a.en", 17, "ä source", "a target"),
    RejectedPair("columns", 3.0, "a\tb.tsv", 18, "one\ttwo", ""),
    RejectedPair("length_ratio", 12.5, "a.en", 4_000_000, "x", "y\x85y"),
]


def test_parts_are_read_back_as_one_file(tmp_path: Path) -> None:
    parts = [[], PAIRS[:1], [], PAIRS[1:]]
    for number, pairs in enumerate(parts):
        write_whole(tmp_path / str(number), pack_rejected(pairs))
    (tmp_path / "rejected").mkdir()
    path = tmp_path / "rejected/train.tsv.zst"
    join_rejected(path, [tmp_path / str(number) for number in range(4)])
    found = read_rejected(tmp_path, "train")
    assert found[0] == PAIRS[0]
    assert found[1] == PAIRS[1]._replace(file="a b.tsv", source="one two")
    assert found[2] == PAIRS[2]


def test_other_tools_can_read_it(tmp_path: Path) -> None:
    try:
        subprocess.run(["zstd", "--version"], check=True, capture_output=True)
    except OSError:
        pytest.skip("the zstd program is not installed")
    write_whole(tmp_path / "part", pack_rejected(PAIRS[:1]))
    join_rejected(tmp_path / "all.zst", [tmp_path / "part"] * 2)
    text = subprocess.run(["zstd", "-dc", tmp_path / "all.zst"], capture_output=True, check=True)
    assert text.stdout.decode().splitlines() == [
        "filter\tscore\tfile\tline\tsource\ttarget",
        *["over_long\t300\ta.en\t17\tä source\ta target"] * 2,
    ]
