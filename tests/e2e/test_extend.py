"""What docs/how-to/extend.md promises: one of everything, each in one file, and a run with it."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from parallel_text import sentences, write_pairs
from tiny_recipe import TINY

PACKAGE = Path(dragoman.__file__).parent
# file of the package -> (text, what a user puts in its place)
ADDED = {
    "training/schedule.py": [
        ('"constant"] = "inverse_sqrt"', '"constant", "sqrt_decay"] = "inverse_sqrt"'),
        (
            "SCHEDULES: dict[str, Schedule] = {\n",
            "def sqrt_decay(step: int, config: ScheduleConfig, run: Run) -> float:\n"
            "    share = step / run.total_steps\n"
            "    return config.peak_learning_rate * (1 - share**config.decay_power)\n\n\n"
            "SCHEDULES: dict[str, Schedule] = {\n"
            '    "sqrt_decay": Schedule('
            'sqrt_decay, "{peak:g} * (1 - (step/{total})^{decay_power:g})", ends=True),\n',
        ),
        (
            "    noam_scale: float",
            "    decay_power: float = Field(default=0.5, gt=0.0)\n"
            '    """Of the share of the run that is gone."""\n'
            "    noam_scale: float",
        ),
    ],
    "corpus/filters.py": [
        (
            "    drop_identical: bool = True\n",
            "    max_commas: int = Field(default=100, ge=0)\n"
            '    """Commas of the source side."""\n'
            "    drop_identical: bool = True\n",
        ),
        (
            "EMPTY = Filter",
            "def commas(pairs: Columns) -> Scores:\n"
            '    return _array(text.count(",") for text in pairs.sources)\n\n\n'
            "EMPTY = Filter",
        ),
        (
            "    EMPTY,\n",
            '    EMPTY,\n    Filter("commas", commas, lambda c: c.max_commas),\n',
        ),
    ],
    "evaluation/metrics.py": [
        (
            "METRICS: dict[str, Callable[..., Score]] = {",
            "def same_length(hypotheses, references, *, lowercase=False, bootstrap_samples=0):\n"
            "    same = [len(one) == len(two) for one, two in zip(hypotheses, references)]\n"
            "    share = 100 * sum(same) / len(same)\n"
            '    return Score(share, None, None, "same_length|version:1")\n\n\n'
            'METRICS: dict[str, Callable[..., Score]] = {"same_length": same_length, ',
        )
    ],
    "corpus/pairs.py": [
        (
            '    b"BZh": ',
            '    b"\\x5d\\x00\\x00": lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE),\n'
            '    b"BZh": ',
        )
    ],
}


@pytest.fixture
def own_package(tmp_path: Path) -> Path:
    """A copy of dragoman with one of everything added, as a user of a clone would."""
    copy = tmp_path / "own" / "dragoman"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in ADDED.items():
        text = (copy / name).read_text(encoding="utf-8")
        for before, after in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        (copy / name).write_text(text, encoding="utf-8")
    return copy.parent


def _dragoman(package: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(400)
def test_one_of_everything_is_prepared_trained_reported_and_planned(
    own_package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    write_pairs(folder, "train", sentences(60))
    source = (folder / "train.en").read_text(encoding="utf-8")
    lines = source.splitlines()
    lines[3] += " ,,,"
    packed = lzma.compress("\n".join([*lines, ""]).encode(), format=lzma.FORMAT_ALONE)
    (folder / "train.en.lzma").write_bytes(packed)
    recipe = TINY.replace("train.en", "train.en.lzma") + (
        "[corpus.filters]\nmax_commas = 2\n"
        '[schedule]\nkind = "sqrt_decay"\npeak_learning_rate = 0.01\n'
        "[train]\nmax_steps = 8\nlog_every_steps = 2\nvalidate_every_steps = 8\n"
        "[evaluate]\nbleu_pairs = 5\n"
    )
    (folder / "own.toml").write_text(recipe, encoding="utf-8")
    prepared = _dragoman(own_package, folder, "prepare", "own.toml", "--workers", "1")
    assert "commas" in prepared
    _dragoman(own_package, folder, "train", "own.toml", "--workers", "1")
    (run,) = (folder / "runs").iterdir()
    events = [
        json.loads(line) for line in (run / "events/rank-0000.jsonl").read_text().splitlines()
    ]
    metrics = {one["metric"] for one in events if one["kind"] == "metric_scored"}
    assert metrics == {"same_length"}
    report = json.loads(_dragoman(own_package, folder, "report", "--json", str(run)))
    answers = {one["key"]: one for one in report["answers"]}
    rate = answers["learning_rate"]
    assert "0.01 * (1 - (step/8)^0.5)" in rate["says"]
    assert "warmup" not in rate["says"].split(";")[0]
    deviation = next(row for row in rate["evidence"] if row["name"].startswith("largest deviation"))
    assert deviation["value"] < 1e-6
    assert "commas" in json.dumps(answers["corpus"])
    assert "s/step" in _dragoman(
        own_package, folder, "plan", "own.toml", "--ranks", "1+1", "--link", "1Gbit", "--gpu", "cpu"
    )

    # The unchanged dragoman does not know this schedule, and reports on the run all the same.
    theirs = json.loads(_dragoman(PACKAGE.parent, folder, "report", "--json", str(run)))
    (rate,) = (one for one in theirs["answers"] if one["key"] == "learning_rate")
    assert rate["answer"] == "measured"
    assert "schedule of this run is not known" in rate["says"]
