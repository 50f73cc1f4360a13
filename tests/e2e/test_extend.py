"""The promises of docs/how-to/extend.md: one extension of each kind, and every command with it.

The code is taken from the page; pip installs its package into a temporary folder.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import dragoman
from parallel_text import sentences, write_lines
from tiny_recipe import TINY

PACKAGE = Path(dragoman.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "extend.md"
# file of the package -> (text, what a user puts in its place)
ADDED = {
    "corpus/pairs.py": [
        (
            '    b"BZh": ',
            '    b"\\x5d\\x00\\x00": lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE),\n'
            '    b"BZh": ',
        )
    ],
    "corpus/clean.py": [  # a pair is the last two columns
        ('source, *others = line.split("\\t")\n', 'source, *others = line.split("\\t")[-2:]\n')
    ],
    "corpus/config.py": [
        ('TEXT_FORMATS: Final = ("tmx", ', 'TEXT_FORMATS: Final = ("jsonl", "tmx", '),
        ('    tmx: str = ""\n', '    jsonl: str = ""\n    tmx: str = ""\n'),
    ],
    "corpus/sources.py": [
        (
            "from dragoman.corpus.manifest",
            "from dragoman.corpus.json_lines import JsonLines\nfrom dragoman.corpus.manifest",
        ),
    ],
}

TEXT = """
train = [
  {source = "a.en.lzma", target = "a.de"},
  {tsv = "b.tsv"},
  {jsonl = "c.jsonl.gz"},
]
"""
REST = """
[train]
max_steps = 8
log_every_steps = 2
validate_every_steps = 8
"""
RECIPE = TINY.replace('train = [{source = "train.en", target = "train.de"}]', TEXT) + REST


def merged(recipe: str, more: str) -> str:
    """Two recipes in one: sections of both have the keys of both."""

    def add(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        both = one | other
        for key in one.keys() & other.keys():
            both[key] = add(one[key], other[key])
        return both

    return tomli_w.dumps(add(tomllib.loads(recipe), tomllib.loads(more)))


def write_corpus(folder: Path) -> None:
    """20 pairs in each form: a packed text, columns after a number, and objects of JSON."""
    sources, targets = sentences(60)
    sources[3] += " ,,,"
    packed = lzma.compress("\n".join([*sources[:20], ""]).encode(), format=lzma.FORMAT_ALONE)
    (folder / "a.en.lzma").write_bytes(packed)
    write_lines(folder / "a.de", targets[:20])
    pairs = list(zip(sources, targets, strict=True))
    write_lines(
        folder / "b.tsv", [f"{n}\t{one}\t{two}" for n, (one, two) in enumerate(pairs[20:40])]
    )
    objects = [json.dumps({"target": two, "source": one}) for one, two in pairs[40:]]
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("\n".join(objects).encode()))


def page_files() -> dict[str, str]:
    """The files of the package on the page, by their names."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ title=(\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


@pytest.fixture(scope="session")
def extras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package of the page."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name, text in page_files().items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    install = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target)]
    subprocess.run([*install, str(source)], check=True)
    return target


@pytest.fixture
def own_package(tmp_path: Path) -> Path:
    """A copy of dragoman with one question and two corpus formats more, as in a clone."""
    copy = tmp_path / "own" / "dragoman"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    question, row, json_lines, reader = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    table = "CHECKS: Final[tuple[Check, ...]] = (\n"
    ADDED["reporting/checks.py"] = [(table, f"{question}\n\n{table}{row.rstrip()},\n")]
    (copy / "corpus/json_lines.py").write_text(json_lines, encoding="utf-8")
    table = "READERS: Final[dict[str, Callable[[str, Path, Direction], list[NamedPath]]]] = {\n"
    ADDED["corpus/sources.py"].append((table, table + reader))
    for name, changes in ADDED.items():
        text = (copy / name).read_text(encoding="utf-8")
        for before, after in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        (copy / name).write_text(text, encoding="utf-8")
    return copy.parent


def _dragoman(package: str | Path, folder: Path, *arguments: str, code: int = 0) -> str:
    """The output of the command, or its error text if it should fail."""
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.system
@pytest.mark.timeout(400)
def test_one_of_everything_is_prepared_trained_reported_and_planned(
    own_package: Path, extras: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    write_corpus(folder)
    values = merged(RECIPE, page_files()["own-part.toml"])
    (folder / "own.toml").write_text(values, encoding="utf-8")
    own = f"{own_package}{os.pathsep}{extras}"
    prepared = _dragoman(own, folder, "prepare", "own.toml", "--workers", "1")
    assert "commas" in prepared
    (corpus,) = (folder / "prepared").glob("*/manifest.json")
    manifest = json.loads(corpus.read_text(encoding="utf-8"))
    assert [one["lines"] for one in manifest["sources"]] == [20, 20, 20, 20]
    rejected = (corpus.parent / "rejected" / "filters.html").read_text(encoding="utf-8")
    assert "commas" in rejected
    trained = _dragoman(own, folder, "train", "own.toml", "--workers", "1", "--ranks", "2")
    assert "same_length" in trained
    (run,) = (folder / "runs").iterdir()
    events = [json.loads(line) for line in (run / "events/log.jsonl").read_text().splitlines()]
    metrics = {one["metric"] for one in events if one["kind"] == "metric_scored"}
    assert metrics == {"same_length"}
    curves = EventAccumulator(str(run / "tensorboard")).Reload()
    assert "eval_same_length" in curves.Tags()["scalars"]
    report = json.loads(_dragoman(own, folder, "report", "--json", str(run)))
    answers = {one["key"]: one for one in report["answers"]}
    rate = answers["learning_rate"]
    assert "0.001 * (1 - (step/8)^0.5)" in rate["says"]
    assert "warmup" not in rate["says"].split(";")[0]
    deviation = next(row for row in rate["evidence"] if row["name"].startswith("largest deviation"))
    assert deviation["value"] < 1e-6
    assert "commas" in json.dumps(answers["corpus"])
    assert (answers["validations"]["answer"], answers["validations"]["says"]) == (
        "measured",
        "2 times.",
    )
    _dragoman(own, folder, "report", str(run))
    page = (run / "report" / "report.html").read_text(encoding="utf-8")
    assert page.count("<li><a href=") == 13
    assert "How often was the model validated?" in page
    assert "all hosts" in _dragoman(
        own, folder, "plan", "own.toml", "--hosts", "2", "--link", "1Gbit", "--gpu", "cpu"
    )

    intervals = [one for one in events if one["kind"] == "train_interval"]
    num_parameters = sum(
        moment.size
        for name, moment in load_file(
            run / "checkpoints/step-0000008/optimizer.safetensors"
        ).items()
        if name.endswith("/exp_avg")
    )
    # Two ranks of a ring send each number once, in fp32.
    assert sum(one["sync_bytes"][0] for one in intervals) == 8 * 4 * num_parameters
    assert "flat" in json.dumps(answers["network"])

    _dragoman(own, folder, "export", str(run), "--to", "numpy", "--output", "numpy")
    with np.load(folder / "numpy" / "model.npz", allow_pickle=False) as arrays:
        assert sum(array.size for array in arrays.values()) == num_parameters
    card = (folder / "numpy" / "README.md").read_text(encoding="utf-8")
    assert "The weights are in `model.npz`." in card
    _dragoman(own, folder, "export", str(run), "--output", "folder")
    assert 'jsonl = "c.jsonl.gz"' in (folder / "folder/recipe.toml").read_text(encoding="utf-8")

    with (folder / "c.jsonl.gz").open("ab") as file:
        file.write(gzip.compress(b'\n{"source": "torn'))
    complaint = _dragoman(own, folder, "prepare", "own.toml", "--workers", "1", code=1)
    assert "c.jsonl.gz: line 21 is not an object with source and target" in complaint
    assert len(complaint.splitlines()) == 1

    # The unchanged dragoman does not know this schedule, and reports on the run all the same.
    theirs = json.loads(_dragoman(PACKAGE.parent, folder, "report", "--json", str(run)))
    (rate,) = (one for one in theirs["answers"] if one["key"] == "learning_rate")
    assert rate["answer"] == "measured"
    assert "schedule of this run is not known" in rate["says"]


@pytest.mark.smoke
def test_a_part_of_an_installed_package_is_found_by_its_name(extras: Path) -> None:
    program = """
from dragoman.corpus.filters import ADDED, FilterConfig, filters_of
from dragoman.evaluation.config import EvaluateConfig
from dragoman.evaluation.metrics import METRICS, score_all
from dragoman.formats.kinds import FORMATS
from dragoman.training.schedule import ScheduleConfig, learning_rate
config = ScheduleConfig(kind="sqrt_decay", peak_learning_rate=2.0, added={"power": 2})
print(learning_rate(5, config, d_model=1, max_steps=10))
print([one.name for one in filters_of(FilterConfig(added={"commas": 1}))][-1])
scores = score_all(["a", "bc"], ["b", "c"], EvaluateConfig(metrics=("same_length",)))
print(scores["same_length"].value, FORMATS["numpy"].weights, FORMATS.names()[-1])
for wrong in (lambda: ScheduleConfig(kind="x"), lambda: FilterConfig(added={"x": 1})):
    try: wrong()
    except ValueError as error: print("literal_error" in str(error))
"""
    for folder, code in ((extras, 0), (extras.parent, 1)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{folder}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        said = ["1.5", "commas", "50.0 model.npz numpy", "True", "True"]
        assert done.stdout.splitlines() == ([] if code else said)
    words = ["export", "--help"]
    assert "numpy" in _dragoman(f"{PACKAGE.parent}{os.pathsep}{extras}", extras, *words)
