"""The promises of docs/how-to/extend.md: one extension of each kind, and every command with it.

The code of a strategy, a question, a corpus format and an export format is taken from the page.
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
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import dragoman
from parallel_text import sentences, write_lines
from tiny_recipe import TINY

PACKAGE = Path(dragoman.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "extend.md"
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
            '    """A rate by the share of the run that is done."""\n'
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
    "corpus/clean.py": [  # a pair is the last two columns
        ('source, *others = line.split("\\t")\n', 'source, *others = line.split("\\t")[-2:]\n')
    ],
    "corpus/config.py": [
        ('TEXT_FORMATS: Final = ("tmx", ', 'TEXT_FORMATS: Final = ("jsonl", "tmx", '),
        ('    tmx: str = ""\n', '    jsonl: str = ""\n    tmx: str = ""\n'),
    ],
    "distributed/config.py": [
        ('"powersgd", "auto"]', '"powersgd", "flat", "auto"]'),
    ],
    "distributed/strategies.py": [
        (
            "from dragoman.distributed.gradient_sync",
            "from dragoman.distributed.flat import FlatSync\n"
            "from dragoman.distributed.gradient_sync",
        ),
        (
            '    "powersgd": _powersgd,\n',
            '    "powersgd": _powersgd,\n'
            '    "flat": lambda config, model, world: FlatSync(model, world),\n',
        ),
    ],
    "formats/kinds.py": [('"argos", "web"]', '"argos", "web", "numpy"]')],
    "formats/writers.py": [
        (
            "from dragoman.formats.onnx import",
            "from dragoman.formats.numpy_arrays import NumpyWriter\n"
            "from dragoman.formats.onnx import",
        ),
        ('    "web": WebWriter,\n', '    "web": WebWriter,\n    "numpy": NumpyWriter,\n'),
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
[corpus.filters]
max_commas = 2
[schedule]
kind = "sqrt_decay"
peak_learning_rate = 0.01
[train]
max_steps = 8
log_every_steps = 2
validate_every_steps = 8
[evaluate]
bleu_pairs = 5
[distributed]
strategy = "flat"
"""
RECIPE = TINY.replace('train = [{source = "train.en", target = "train.de"}]', TEXT) + REST


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


@pytest.fixture
def own_package(tmp_path: Path) -> Path:
    """A copy of dragoman with one of everything added, as a user of a clone would."""
    copy = tmp_path / "own" / "dragoman"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    _schedule, strategy, question, json_lines, reader, export_format, writer = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    head = "from dragoman.reporting.verdict import Verdict\n"
    ADDED["reporting/verdicts.py"] = [
        (
            head,
            head.replace(" Verdict", " Verdict, evidence") + "from dragoman.base import units\n",
        ),
        ("QUESTIONS: tuple[", f"{question}\n\nQUESTIONS: tuple["),
        ("    totals.duration,\n", "    totals.duration,\n    validations,\n"),
    ]
    (copy / "corpus/json_lines.py").write_text(json_lines, encoding="utf-8")
    (copy / "distributed/flat.py").write_text(strategy, encoding="utf-8")
    (copy / "formats/numpy_arrays.py").write_text(writer, encoding="utf-8")
    formats = "FORMATS: Final[dict[Kind, ExportFormat]] = {\n"
    ADDED["formats/kinds.py"].append((formats, formats + export_format))
    table = "READERS: Final[dict[str, Callable[[str, Path, Direction], list[NamedPath]]]] = {\n"
    ADDED["corpus/sources.py"].append((table, table + reader))
    for name, changes in ADDED.items():
        text = (copy / name).read_text(encoding="utf-8")
        for before, after in changes:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        (copy / name).write_text(text, encoding="utf-8")
    return copy.parent


def _dragoman(package: Path, folder: Path, *arguments: str, code: int = 0) -> str:
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
    own_package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    write_corpus(folder)
    (folder / "own.toml").write_text(RECIPE, encoding="utf-8")
    prepared = _dragoman(own_package, folder, "prepare", "own.toml", "--workers", "1")
    assert "commas" in prepared
    (corpus,) = (folder / "prepared").glob("*/manifest.json")
    manifest = json.loads(corpus.read_text(encoding="utf-8"))
    assert [one["lines"] for one in manifest["sources"]] == [20, 20, 20, 20]
    rejected = (corpus.parent / "rejected" / "filters.html").read_text(encoding="utf-8")
    assert "commas" in rejected
    trained = _dragoman(own_package, folder, "train", "own.toml", "--workers", "1", "--ranks", "2")
    assert "same_length" in trained
    (run,) = (folder / "runs").iterdir()
    events = [
        json.loads(line) for line in (run / "events/rank-0000.jsonl").read_text().splitlines()
    ]
    metrics = {one["metric"] for one in events if one["kind"] == "metric_scored"}
    assert metrics == {"same_length"}
    curves = EventAccumulator(str(run / "tensorboard")).Reload()
    assert "eval_same_length" in curves.Tags()["scalars"]
    report = json.loads(_dragoman(own_package, folder, "report", "--json", str(run)))
    answers = {one["key"]: one for one in report["answers"]}
    rate = answers["learning_rate"]
    assert "0.01 * (1 - (step/8)^0.5)" in rate["says"]
    assert "warmup" not in rate["says"].split(";")[0]
    deviation = next(row for row in rate["evidence"] if row["name"].startswith("largest deviation"))
    assert deviation["value"] < 1e-6
    assert "commas" in json.dumps(answers["corpus"])
    assert (answers["validations"]["answer"], answers["validations"]["says"]) == (
        "measured",
        "2 times.",
    )
    _dragoman(own_package, folder, "report", str(run))
    page = (run / "report" / "report.html").read_text(encoding="utf-8")
    assert "13 answers" in page
    assert "How often was the model validated?" in page
    assert "s/step" in _dragoman(
        own_package, folder, "plan", "own.toml", "--ranks", "1+1", "--link", "1Gbit", "--gpu", "cpu"
    )

    intervals = [one for one in events if one["kind"] == "train_interval"]
    num_parameters = sum(
        weight.size
        for weight in load_file(run / "checkpoints/step-0000008/model.safetensors").values()
    )
    # Two ranks of a ring send each number once, in fp32.
    assert sum(one["sync_bytes"] for one in intervals) == 8 * 4 * num_parameters
    assert "flat" in json.dumps(answers["network"])

    _dragoman(own_package, folder, "export", str(run), "--to", "numpy", "--output", "numpy")
    with np.load(folder / "numpy" / "model.npz", allow_pickle=False) as arrays:
        assert sum(array.size for array in arrays.values()) == num_parameters
    card = (folder / "numpy" / "README.md").read_text(encoding="utf-8")
    assert "numpy.load('THIS_FOLDER/model.npz')" in card
    _dragoman(own_package, folder, "export", str(run), "--to", "bundle", "--output", "bundle")
    assert 'jsonl = "c.jsonl.gz"' in (folder / "bundle/recipe.toml").read_text(encoding="utf-8")

    with (folder / "c.jsonl.gz").open("ab") as file:
        file.write(gzip.compress(b'\n{"source": "torn'))
    complaint = _dragoman(own_package, folder, "prepare", "own.toml", "--workers", "1", code=1)
    assert "c.jsonl.gz: line 21 is not an object with source and target" in complaint
    assert len(complaint.splitlines()) == 1

    # The unchanged dragoman does not know this schedule, and reports on the run all the same.
    theirs = json.loads(_dragoman(PACKAGE.parent, folder, "report", "--json", str(run)))
    (rate,) = (one for one in theirs["answers"] if one["key"] == "learning_rate")
    assert rate["answer"] == "measured"
    assert "schedule of this run is not known" in rate["says"]
