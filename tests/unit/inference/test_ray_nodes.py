"""Units of work: where lines are cut, what is sent, and what is refused before anything is sent."""

from __future__ import annotations

import socket
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import ConfigError, MachineError
from dragoman.inference.ray_nodes import Cut, join_ray, model_files
from dragoman.inference.ray_unit import SynthesisJob, versions
from dragoman.inference.scoring import PAIRS_AT_A_TIME, groups_of_pairs
from dragoman.inference.translator import CHARACTERS_AT_A_TIME, LINES_AT_A_TIME, groups_of
from real_text import real_lines
from small_run import small_run

LONG = ["x" * (CHARACTERS_AT_A_TIME // 2)] * 5
LINES = ["a line", *[""] * 5000, *LONG, *map(str, range(3 * PAIRS_AT_A_TIME))]


@pytest.mark.parametrize("cut", [groups_of, groups_of_pairs])
def test_units_cut_again_are_the_same_units(cut: Cut) -> None:
    units = [*cut(LINES)]
    assert [*chain.from_iterable(units)] == LINES
    # A node cuts its lines again, and an interrupted command those that are left.
    for number, unit in enumerate(units):
        assert [*cut(unit)] == [unit]
        assert [*cut(chain.from_iterable(units[number:]))] == units[number:]


def test_units_have_their_sizes() -> None:
    sizes = [len(unit) for unit in groups_of(LINES)]
    # 5,001 short lines, then two long ones fill a unit before it has its lines.
    assert sizes[:3] == [LINES_AT_A_TIME, LINES_AT_A_TIME, 5001 - 2 * LINES_AT_A_TIME + 2]
    assert [len(unit) for unit in groups_of_pairs(LINES[:PAIRS_AT_A_TIME])] == [PAIRS_AT_A_TIME]
    assert [*groups_of([])] == [*groups_of_pairs([])] == []


def test_a_node_opens_the_files_that_are_sent(tmp_path: Path) -> None:
    run = small_run()
    files, folders = model_files(run.path, ["best"])
    names = {"recipe.toml", "manifest.json", "source.model", "target.model"}
    assert names < {*files}
    assert not any("optimizer" in name for name in files)
    for name, file in files.items():
        (tmp_path / "node" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "node" / name).write_bytes(file.read_bytes())
    job = SynthesisJob(
        packages=versions("sentencepiece", "ctranslate2"),
        checkpoints=folders,
        overrides=("search.beam_size=1",),
        engine="ctranslate2",
        quantization=None,
        sampling=None,
        target_language="",
        direction="back",
        n_best=1,
    )
    sent = SynthesisJob.model_validate_json(job.model_dump_json())
    assert sent == job
    counts: Counter[str] = Counter()
    lines = real_lines("train", "en")[:200]
    with sent.open(tmp_path / "node", counts) as transform:
        written = [*chain.from_iterable(transform(lines, 1))]
    text, output = tmp_path / "text", tmp_path / "alone.tsv"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    dragoman.synthesize(run, text, output, overrides=["search.beam_size=1"], threads=1)
    assert "".join(written) == output.read_text(encoding="utf-8")
    assert counts["lines"] == 200


@pytest.mark.parametrize(
    "address", ["", "alpha", "alpha:", "http://alpha:6379", "a b:1", "ray://x:1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT of its head"), join_ray(address):
        pass


def test_an_address_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dragoman[ray]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = tmp_path / "text"
    text.write_text("a line\n", encoding="utf-8")
    with pytest.raises(MachineError, match=f"^ray 127.0.0.1:{port}: does not answer: Connection"):
        dragoman.synthesize(small_run(), text, tmp_path / "out", ray=f"127.0.0.1:{port}")
    assert not (tmp_path / "out").exists()
    with pytest.raises(MachineError, match="does not answer"), join_ray("127.0.0.1:99999"):
        pass
