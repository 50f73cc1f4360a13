"""Units of work: where lines are cut, and what is sent."""

from __future__ import annotations

import pickle
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

import dragoman
from dragoman.inference.ray_lines import Cut, UnitTask, model_files, open_synthesis
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
    open_lines = partial(
        open_synthesis,
        checkpoints=folders,
        overrides=("search.beam_size=1",),
        engine="ctranslate2",
        threads=1,
        quantization=None,
        sampling=None,
        target="",
        direction="back",
        n_best=1,
    )
    lines = real_lines("train", "en")[:200]
    written, counts = pickle.loads(pickle.dumps(UnitTask(open_lines, files)))((lines, 1))
    text, output = tmp_path / "text", tmp_path / "alone.tsv"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    dragoman.synthesize(run, text, output, overrides=["search.beam_size=1"], threads=1)
    assert "".join(written) == output.read_text(encoding="utf-8")
    assert counts["lines"] == 200
