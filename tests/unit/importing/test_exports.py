"""An imported model is exported as it is, without training on from it."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dragoman
from dragoman.cli import main
from dragoman.formats.bundle import Bundle
from dragoman.formats.kinds import Kind
from foreign_models import marian_folder
from real_text import real_lines

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with a model of others, its import and some sentences."""
    place = tmp_path_factory.mktemp("imported")
    folder = marian_folder(place / "opus", loud=True)
    assert main(["import", str(folder), "--to", str(place / "own"), "--licence", "CC-BY 4.0"]) == 0
    (place / "some.en").write_text("\n".join(real_lines("test", "en")[:20]) + "\n")
    return place


@pytest.fixture(scope="module")
def for_dutch(imported: Path) -> Path:
    """A model of several languages that was imported for one."""
    folder = marian_folder(imported / "multi", codes=(">>deu<<", ">>nld<<"), loud=True)
    return dragoman.import_model(folder, imported / "dutch", target_language="nld").path


@pytest.mark.system
@pytest.mark.parametrize("to", ["ctranslate2", "huggingface", "argos", "onnx"])
def test_an_imported_model_is_exported_with_a_card_that_names_its_origin(
    imported: Path, tmp_path: Path, to: Kind
) -> None:
    options = ["--output", str(tmp_path / to), "--sentences", str(imported / "some.en")]
    if to == "argos":  # its int8 is 0.2 nats off with random weights, more or less by processor
        options += ["--quantization", "float32"]
    assert main(["export", str(imported / "own"), "--to", to, *options]) == 0
    info = Bundle.open(tmp_path / to).info
    assert (info.imported, info.licence, info.run, info.checkpoint) == ("opus", "CC-BY 4.0", "", "")
    assert info.verified.sentences == 20
    card = (tmp_path / to / "README.md").read_text()
    assert "made by others and imported from the folder `opus`" in card
    assert f"{info.verified.identical} of 20 translations are equal" in card
    assert ("digests.json" in card) == (to != "argos")


def test_argos_refuses_codes_before_it_asks_for_a_language(imported: Path, tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "codes", codes=(">>deu<<", ">>nld<<"), loud=True)
    bundle = dragoman.import_model(folder, tmp_path / "bundle").path
    with pytest.raises(dragoman.ConfigError, match="import the model again for one target"):
        dragoman.export(
            bundle, to="argos", output=tmp_path / "argos", sentences=imported / "some.en",
            target_language="deu",
        )  # fmt: skip
    assert not (tmp_path / "argos").exists()


def test_an_imported_model_is_exported_as_it_came(
    imported: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = dragoman.export(
        imported / "own", to="huggingface", output=tmp_path / "back",
        sentences=imported / "some.en", licence="Another.",
    )  # fmt: skip
    assert capfd.readouterr() == ("", "")
    assert done.verified.identical == 20
    assert Bundle.open(done.path).info.licence == "Another."
    before, after = (load_file(one / "model.safetensors") for one in (imported / "opus", done.path))
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=0)
    assert json.loads((done.path / "vocab.json").read_bytes()) == json.loads(
        (imported / "opus" / "vocab.json").read_bytes()
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "has no place for exports; name a new folder as the output"),
        ({"output": "new"}, "has no dev set; name a file of source sentences"),
        (
            {"output": "new", "checkpoint": "last"},
            "an imported model has no checkpoint last; leave",
        ),
        ({"output": "new", "sentences": "some.en", "to": "web"}, "its vocabulary was imported"),
    ],
)
def test_a_refused_export_of_an_import_names_the_missing_part(
    imported: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], problem: str
) -> None:
    monkeypatch.chdir(imported)
    before = sorted(imported.rglob("*"))
    arguments = {"to": "onnx", **options}
    with pytest.raises(dragoman.DragomanError, match=problem) as error:
        dragoman.export("own", **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    with pytest.raises(dragoman.CheckpointError, match="is an export, which has no record"):
        dragoman.report("own")
    with pytest.raises(dragoman.CheckpointError, match="import it first"):
        dragoman.export("opus", to="onnx")
    assert sorted(imported.rglob("*")) == before


def test_nothing_is_printed_unless_asked(
    imported: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by transformers either: it shows progress, and advises packages that nobody needs."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    transformers.utils.logging.enable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            dragoman.export(
                imported / "own", to="huggingface", output=tmp_path / "back",
                sentences=imported / "some.en",
            )  # fmt: skip
        assert transformers.utils.logging.is_progress_bar_enabled(), "as the caller had it"
    finally:
        transformers.utils.logging.disable_progress_bar()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("to", ["huggingface", "onnx", "ctranslate2"])
def test_a_card_says_how_a_text_gets_the_language_of_the_import(
    for_dutch: Path, tmp_path: Path, to: Kind
) -> None:
    """Without its code such a model writes another language, and a card is all that others have."""
    expected = {
        "huggingface": 'tokenizer([">>nld<< ',
        "onnx": "The first id is that of",
        "ctranslate2": "that token is the first piece of every source: `>>nld<<`",
    }
    sentences = for_dutch.with_name("some.en")
    done = dragoman.export(for_dutch, to=to, output=tmp_path / to, sentences=sentences)
    card = (done.path / "README.md").read_text("utf-8")
    assert expected[to] in card
    assert ">>nld<<" in card


def test_a_language_of_the_model_but_not_of_the_import_has_its_own_error(for_dutch: Path) -> None:
    for language, problem in (
        (
            "deu",
            "the model was not imported for 'deu'; write >>deu<< at the start of each text, or",
        ),
        ("fra", "the model does not translate into 'fra'; name one of its target languages: nld"),
    ):
        with pytest.raises(dragoman.ConfigError, match="target language: ") as error:
            dragoman.translate(for_dutch, ["Hello."], target_language=language)
        assert problem in str(error.value)
    assert len(dragoman.translate(for_dutch, ["Hello."], target_language="nld")) == 1


def test_a_folder_is_compared_only_once_it_is_imported(imported: Path) -> None:
    tests = [(imported / "some.en", imported / "some.en")]
    with pytest.raises(dragoman.CheckpointError, match="import it first"):
        dragoman.compare(imported / "own", imported / "opus", tests=tests)
