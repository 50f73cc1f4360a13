"""Confidence: measured on a real run, and seen in `translate`, the server and its page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.cli.command_line import main
from dragoman.evaluation.confidence import CONFIDENCE_FILE
from dragoman.formats.bundle import Bundle
from dragoman.recipe.run_directory import RunDirectory
from real_text import real_lines
from served import served_bundle, serving
from small_run import small_run

RIGHT = 13
"""A chrF that some translations of a model that has trained for seconds reach."""


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    """Dev and test text, each as the command takes it."""
    for split in ("valid", "test"):
        for language in ("en", "de"):
            lines = real_lines("test", language)
            own = lines[:200] if split == "valid" else lines[200:400]
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in own))
    dev, test = (
        ",".join(str(tmp_path / f"{split}.{language}") for language in ("en", "de"))
        for split in ("valid", "test")
    )
    return dev, test


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.open(shutil.copytree(small_run().path, tmp_path / "run"))


def calibrate(model: Path, texts: tuple[str, str]) -> list[str]:
    return ["calibrate", str(model), "--dev", texts[0], "--test", texts[1], "--right", str(RIGHT)]


def test_a_run_says_how_sure_it_is_and_so_do_its_exports(
    run: RunDirectory, texts: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = texts[1].partition(",")[0]
    command = ["translate", str(run.path), "--input", source, "--confidence"]
    assert main(command) == 2
    assert "calibrate it first" in capsys.readouterr().err
    earlier = dragoman.export(run, to="ctranslate2", quantization="int8").path
    assert main(["export", str(run.path), "--to", "argos"]) == 0
    capsys.readouterr()
    assert main([*calibrate(run.path, texts), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["green"]["sentences"] + measured["red"]["sentences"] > 0
    assert main(command) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    for colour in ("green", "yellow", "red"):
        found = sum(line[0] == colour for line in lines)
        assert found == measured[colour]["sentences"]
    assert all(0 <= float(line[1]) <= 1 and len(line) == 3 for line in lines)
    assert main(["translate", str(earlier), "--input", source, "--confidence"]) == 0
    assert not (run.path / "export" / "argos" / CONFIDENCE_FILE).exists()
    output = tmp_path / "export"
    assert main(["export", str(run.path), "--to", "ctranslate2", "--output", str(output)]) == 0
    capsys.readouterr()
    assert main(["translate", str(output), "--input", source, "--confidence"]) == 0
    again = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert again == lines
    other_scale = ["--confidence", "--set", "search.length_penalty_alpha=0"]
    assert main(["translate", str(output), "--input", source, *other_scale]) == 2
    assert "leave the length penalty as it was" in capsys.readouterr().err
    assert main(["export", str(run.path), "--to", "ctranslate2", "--output", str(output)]) == 0


def test_other_weights_than_those_that_were_measured_say_nothing(
    run: RunDirectory, texts: tuple[str, str], tmp_path: Path
) -> None:
    assert main(calibrate(run.path, texts)) == 0
    file = run.path / CONFIDENCE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"checkpoint": "0" * 64}))
    with dragoman.Translator(run) as translator:
        assert translator.translate(["A man."], n_best=1)[0][0].confidence is None
    output = tmp_path / "export"
    dragoman.export(run, to="ctranslate2", output=output)
    assert not (output / CONFIDENCE_FILE).exists()


def test_a_server_colours_each_sentence(
    browser: Any, texts: tuple[str, str], tmp_path: Path
) -> None:
    bundle = shutil.copytree(served_bundle(), tmp_path / "calibrated")
    assert main(calibrate(bundle, texts)) == 0
    Bundle.open(bundle)  # its digests are right
    text = "A man in a red shirt. Two dogs are running in the snow.\n7"
    with serving(bundle) as server:
        asked = {"text": text, "segments": True, "alternatives": 1}
        (answer,) = json.loads(server.ask("/translate", asked).body)["translations"]
        segments = answer["segments"]
        assert "".join(one["text"] for one in segments) == answer["text"]
        sure = [one["confidence"] for one in segments if one["confidence"] is not None]
        assert len(sure) == 2
        assert answer["confidence"] == min(sure)
        assert answer["alternatives"][0]["colour"] in ("green", "yellow", "red")
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("#from option", state="attached")
        assert not page.is_visible("#legend")
        page.fill("#source", text)
        page.wait_for_selector("#time:text-matches('s$')")
        assert page.is_visible("#legend")
        colours = page.eval_on_selector_all(
            "#result span[class]", "found => found.map((one) => one.className)"
        )
        assert colours == [one["colour"] for one in segments if one["colour"]]
        assert page.text_content("#result") == answer["text"]
        shown = page.eval_on_selector_all(
            "#legend span, #result span[class]",
            "found => found.map((one) => [one.className, getComputedStyle(one).textDecoration])",
        )
        styles = dict(shown)
        assert len(set(styles.values())) == 3  # colour and line of each kind differ
        assert all(styles[kind] == style for kind, style in shown)
        assert "of 100" in page.get_attribute("#result span[class]", "title")
        page.fill("#source", "")
        page.wait_for_selector("#legend", state="hidden")


def test_a_model_that_nobody_has_measured_has_no_colours() -> None:
    with serving(served_bundle()) as server:
        body = json.loads(server.ask("/translate", {"text": "A man."}).body)
    (answer,) = body["translations"]
    assert (answer["confidence"], answer["colour"], answer["segments"]) == (None, None, None)


def test_an_export_without_text_and_colours_of_documents_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(served_bundle())
    assert main(["calibrate", bundle]) == 2
    assert "an export has no text of its own" in capsys.readouterr().err
    (tmp_path / "text.md").write_text("# A man\n")
    document = ["translate", bundle, "--input", str(tmp_path / "text.md"), "--confidence"]
    assert main(document) == 2
    assert "no confidence" in capsys.readouterr().err
    assert main(["translate", bundle, "--n-best", "2", "--confidence"]) == 2
    assert "of the best translation alone" in capsys.readouterr().err
