"""COMET rates in a process of its own; its paired tests are those of the other metrics."""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import main
from dragoman.evaluation.comet import open_comet
from dragoman.evaluation.paired import CometScores, PairedScore, compare_translations
from real_text import real_lines

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def comet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Python that has unbabel-comet, and a checkpoint that it made."""
    return made(tmp_path_factory.mktemp("comet") / "tiny")


@pytest.fixture(scope="module")
def without_references(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """As `comet`, with a checkpoint that needs no references."""
    return made(tmp_path_factory.mktemp("comet") / "alone", "--without-references")


def made(folder: Path, *options: str) -> tuple[Path, Path]:
    named = os.environ.get("DRAGOMAN_COMET_PYTHON")
    if not named:
        pytest.skip(
            "unbabel-comet needs older packages: put it into a virtual environment of its own "
            "(pip install unbabel-comet 'setuptools<81') and set DRAGOMAN_COMET_PYTHON"
        )
    program = str(REPOSITORY / "tests" / "tiny_comet.py")
    done = subprocess.run(
        [named, "-I", program, str(folder), *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Path(named), folder / "checkpoints" / "model.ckpt"


@pytest.mark.system
def test_ratings_are_those_of_the_package(comet: tuple[Path, Path]) -> None:
    sources, references = real_lines("test", "en")[:20], real_lines("test", "de")[:20]
    translations = ["", *references[1:10], *sources[10:]]
    with open_comet(*comet, threads=1) as rater:
        found = rater.scores(sources, translations, references)
        again = rater.scores(sources[:3], translations[:3], references[:3])
    assert len(found) == 20
    assert len(set(found)) > 15
    assert again == pytest.approx(found[:3], abs=1e-5)
    program = (
        "import json, sys; from comet.models import load_from_checkpoint as load; "
        "rows = json.load(sys.stdin); model = load(sys.argv[1], local_files_only=True); "
        "print(json.dumps(model.predict(rows, gpus=0, progress_bar=False).scores))"
    )
    rows = [
        {"src": source, "mt": translation, "ref": reference}
        for source, translation, reference in zip(sources, translations, references, strict=True)
    ]
    by_hand = subprocess.run(
        [comet[0], "-I", "-c", program, comet[1]],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found == pytest.approx(json.loads(by_hand.stdout), abs=1e-5)


@pytest.mark.system
def test_pairs_are_scored_without_references(
    without_references: tuple[Path, Path], comet: tuple[Path, Path], tmp_path: Path
) -> None:
    python, checkpoint = without_references
    pairs = [*zip(real_lines("test", "en")[:5], real_lines("test", "de")[:5], strict=True)]
    text = tmp_path / "pairs.tsv"
    text.write_text("".join("\t".join(pair) + "\n" for pair in [*pairs, ("", "x")]), "utf-8")
    output = tmp_path / "scored.tsv"
    command = ["score", str(checkpoint), str(text), "--comet", str(python), "--output", str(output)]
    assert main(command) == 0
    program = (
        "import json, sys; from comet.models import load_from_checkpoint as load; "
        "rows = json.load(sys.stdin); model = load(sys.argv[1], local_files_only=True); "
        "print(json.dumps(model.predict(rows, gpus=0, progress_bar=False).scores))"
    )
    by_hand = subprocess.run(
        [python, "-I", "-c", program, checkpoint],
        input=json.dumps([{"src": source, "mt": target} for source, target in pairs]),
        capture_output=True,
        text=True,
        check=True,
    )
    *rows, unscored = [line.split("\t") for line in output.read_text("utf-8").splitlines()]
    assert [(source, target) for source, target, _ in rows] == pairs
    expected = json.loads(by_hand.stdout)
    assert [float(score) for *_, score in rows] == pytest.approx(expected, abs=1e-5)
    assert unscored == ["", "x", ""]
    with pytest.raises(dragoman.ConfigError, match="pairs have none"):
        dragoman.score(comet[1], text, tmp_path / "other", comet=python)
    with pytest.raises(dragoman.ConfigError, match="reverse"):
        dragoman.score(checkpoint, text, tmp_path / "other", comet=python, reverse=checkpoint)


@pytest.mark.system
def test_compare_prints_it(
    comet: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"en": real_lines("test", "en")[:25], "de": real_lines("test", "de")[:25]}
    texts["a"], texts["b"] = texts["en"], texts["de"]
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    systems = [str(tmp_path / name) for name in ("a", "b")]
    test = f"{tmp_path / 'en'},{tmp_path / 'de'}"
    assert main(["compare", *systems, "--test", test, "--comet", ",".join(map(str, comet))]) == 0
    printed = capsys.readouterr().out
    assert "COMET|checkpoint:" in printed
    assert "|unbabel-comet:2." in printed


def means(first: list[float], second: list[float]) -> PairedScore:
    lines = [str(number) for number in range(len(first))]
    found = compare_translations(
        lines, lines, lines, sources=lines, comet=CometScores(first, second, "COMET|x")
    )
    return found.scores["comet"]


def test_means_are_tested_as_published() -> None:
    """All 1,024 exchanges of 10 sentences can be tried (Riezler and Maxwell 2005)."""
    rng = random.Random(1)
    first = [rng.random() for _ in range(10)]
    second = [min(1.0, score + rng.gauss(0.1, 0.2)) for score in first]
    found = means(first, second)
    assert found.first == pytest.approx(100 * statistics.mean(first))
    assert found.second == pytest.approx(100 * statistics.mean(second))
    assert found.signature.startswith("COMET|x|nrefs:1|bs:1000|")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    observed = abs(sum(differences))
    larger = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True))) > observed + 1e-9
        for signs in itertools.product((1, -1), repeat=10)
    ]
    assert found.p_randomisation == pytest.approx(statistics.mean(larger), abs=0.02)
    resampled = [abs(statistics.mean(rng.choices(differences, k=10))) for _ in range(4000)]
    centre = statistics.mean(resampled)
    p_value = statistics.mean(one - centre > observed / 10 for one in resampled)
    assert found.p_bootstrap == pytest.approx(p_value, abs=0.03)
    assert means(first, first).winner is None


def test_a_better_rating_alone_makes_no_winner() -> None:
    lines = real_lines("test", "de")[:30]
    other = [f"{line} x" for line in lines]
    for rated, winner in ((0.9, "first"), (0.1, None)):
        found = compare_translations(
            lines, other, lines, sources=lines, comet=CometScores([rated] * 30, [0.5] * 30, "")
        )
        assert found.winner == winner


def test_missing_programs_files_and_packages_are_named(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.ckpt"
    checkpoint.write_bytes(b"")
    translations = tmp_path / "lines"
    translations.write_text("one\n")

    def compare(python: str | Path, trained: Path) -> None:
        dragoman.compare(
            translations,
            translations,
            tests=[(translations, translations)],
            comet=(python, trained),
        )

    with pytest.raises(dragoman.ConfigError, match="lost: no such program"):
        compare(tmp_path / "lost", checkpoint)
    with pytest.raises(dragoman.ConfigError, match=r"lost\.ckpt: no such file"):
        compare(sys.executable, tmp_path / "lost.ckpt")
    with pytest.raises(dragoman.MachineError, match="No module named 'comet'"):
        compare(sys.executable, checkpoint)
    with pytest.raises(SystemExit):
        main(["compare", "a", "b", "--comet", "python"])
