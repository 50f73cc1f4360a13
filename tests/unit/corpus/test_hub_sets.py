"""Text from data sets of the Hub, read by `datasets` from a server that answers as the Hub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dragoman.corpus.config import TextFiles
from dragoman.corpus.manifest import Manifest
from fake_data_sets import VERSION, FakeDataSets, fake_data_sets
from parallel_text import sentences

PAIRS = [("A dog sleeps.", "Ein Hund schläft."), ("Two men\ntalk.", "Zwei Männer reden.")]
TRANSLATIONS = [{"translation": {"de": german, "en": english}} for english, german in PAIRS]


@pytest.fixture
def hub() -> Iterator[FakeDataSets]:
    pytest.importorskip("datasets")
    with fake_data_sets() as hub:
        yield hub


def environment(hub: FakeDataSets, folder: Path) -> dict[str, str]:
    """That of a process to which this is the Hub: `datasets` reads it when it is imported."""
    return os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "HF_TOKEN": ""}


_FETCH = """
import json, sys
from dragoman.base.errors import DragomanError
from dragoman.corpus.config import TextFiles
from dragoman.corpus.hub_sets import fetch_from_hub
from pathlib import Path
for entry in map(TextFiles.model_validate, json.loads(sys.argv[1])):
    try:
        texts = fetch_from_hub(entry, Path("fetched"), source_language="en", target_language="de")
        said = ["", *(path.read_text() for path in texts)]
    except DragomanError as error:
        said = [type(error).__name__, str(error)]
    print(json.dumps(said))
"""


def fetched(hub: FakeDataSets, folder: Path, *entries: Mapping[str, object]) -> list[list[str]]:
    """Of each entry "" and its two texts, or the kind of the error and its words."""
    command = [sys.executable, "-c", _FETCH, json.dumps(entries)]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment(hub, folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.system
def test_both_texts_of_a_row_are_fetched_once(hub: FakeDataSets, tmp_path: Path) -> None:
    hub.add("Toy/pairs", {"de-en": {"train": TRANSLATIONS}})
    entry = {"hf": "Toy/pairs", "config": "de-en"}
    texts = ["", "A dog sleeps.\nTwo men talk.\n", "Ein Hund schläft.\nZwei Männer reden.\n"]
    assert fetched(hub, tmp_path, entry) == [texts]
    receipt = tmp_path / "fetched/Toy--pairs/de-en/train/en-de/fetched.json"
    assert list(json.loads(receipt.read_text())["downloads"].values()) == [VERSION]
    hub.asked.clear()
    assert fetched(hub, tmp_path, entry) == [texts]
    assert hub.asked == []


@pytest.mark.system
def test_columns_are_found_by_language_or_by_name(hub: FakeDataSets, tmp_path: Path) -> None:
    rows = [{"id": 1, "eng_Latn": english, "deu_Latn": german} for english, german in PAIRS]
    hub.add("Toy/columns", {"default": {"train": rows, "validation": rows[1:]}})
    rows = [{"text": english, "label": german} for english, german in PAIRS]
    hub.add("Toy/named", {"default": {"train": [*rows, {"text": None, "label": "Ja."}]}})
    hub.add("Toy/gaps", {"default": {"train": [{"translation": None}, *TRANSLATIONS]}})
    by_language, by_name, swapped, gaps = fetched(
        hub,
        tmp_path,
        {"hf": "Toy/columns", "split": "validation"},
        {"hf": "Toy/named", "columns": ["text", "label"]},
        {"hf": "Toy/named", "columns": ["label", "text"]},
        {"hf": "Toy/gaps"},
    )
    assert by_language == ["", "Two men talk.\n", "Zwei Männer reden.\n"]
    assert [text.split("\n")[2:] for text in by_name[1:]] == [["", ""], ["Ja.", ""]]
    assert swapped == ["", by_name[2], by_name[1]]
    assert [text.split("\n")[0] for text in gaps[1:]] == ["", ""]
    assert gaps[1].split("\n")[1:3] == ["A dog sleeps.", "Two men talk."]


@pytest.mark.system
def test_what_cannot_be_had_is_one_line_with_a_remedy(hub: FakeDataSets, tmp_path: Path) -> None:
    french = [{"translation": {"de": "Ja.", "fr": "Oui."}}]
    hub.add("Toy/pairs", {"de-en": {"train": TRANSLATIONS}, "de-fr": {"train": french}})
    hub.add("Toy/pears_of_all", {"default": {"train": TRANSLATIONS}})
    hub.add("Toy/numbers", {"default": {"train": [{"en": "A", "de": 1, "translation": "x"}]}})
    hub.add("Toy/shared", {"default": {"train": TRANSLATIONS}})
    hub.answers["Toy/shared"] = (403, "GatedRepo")
    hub.add("Toy/broken", {"de-en": {"train": TRANSLATIONS}})
    hub.files["Toy/broken"]["de-en/train-00000-of-00001.parquet"] = b"PAR1" + b"x" * 100 + b"PAR1"
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"hf": "Toy/pears"}, "ConfigError", "Toy/pears_of_all"),
        ({"hf": "Toy/pairs"}, "ConfigError", "de-en, de-fr"),
        ({"hf": "Toy/pairs", "config": "en-de"}, "ConfigError", "de-en"),
        ({"hf": "Toy/pairs", "config": "de-en", "split": "test"}, "ConfigError", "train"),
        ({"hf": "Toy/pairs", "config": "de-fr"}, "ConfigError", "columns"),
        ({"hf": "Toy/pairs", "config": "de-en", "columns": ["a", "b"]}, "ConfigError", "'a'"),
        ({"hf": "Toy/numbers"}, "ConfigError", "'de' is no text"),
        ({"hf": "Toy/shared"}, "ConfigError", "hf auth login"),
        ({"hf": "Toy/broken", "config": "de-en"}, "CorpusError", "cannot be read"),
        ({"hf": "Toy/here"}, "ConfigError", "is also a folder"),
    ]
    (tmp_path / "Toy/here").mkdir(parents=True)
    answers = fetched(hub, tmp_path, *(entry for entry, _, _ in cases))
    for (entry, kind, words), (said_kind, said) in zip(cases, answers, strict=True):
        assert (said_kind, said.startswith(f"hf {entry['hf']}: ")) == (kind, True), said
        assert words in said
        assert "\n" not in said
    assert not list(tmp_path.rglob("fetched.json"))


def test_a_hub_that_does_not_answer_is_the_machines_fault(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    nobody = FakeDataSets(url="http://127.0.0.1:9")
    ((kind, said),) = fetched(nobody, tmp_path, {"hf": "Toy/pairs"})
    assert kind == "MachineError"
    assert "cannot be reached" in said


@pytest.mark.parametrize(
    "entry",
    [
        {"hf": "../x"},
        {"hf": "a/../b"},
        {"hf": "a/b/c"},
        {"hf": "a/b", "config": "../x"},
        {"hf": "a/b", "split": "a/b"},
        {"hf": "a/b", "tsv": "c.tsv"},
        {"tsv": "c.tsv", "split": "train"},
        {"hf": "a/b", "columns": ["a"]},
    ],
)
def test_an_entry_that_is_none_is_refused(entry: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"hf|config|split|columns"):
        TextFiles.model_validate(entry)


@pytest.mark.system
def test_a_recipe_is_prepared_from_the_hub(hub: FakeDataSets, tmp_path: Path) -> None:
    pairs = zip(*sentences(640), strict=True)
    rows = [{"translation": {"en": english, "de": german}} for english, german in pairs]
    hub.add("Toy/pairs", {"de-en": {"train": rows[40:], "validation": rows[:40]}})
    (tmp_path / "hub.toml").write_text(
        """
        name = "hub"
        [corpus]
        source_language = "en"
        target_language = "de"
        train = [{hf = "Toy/pairs", config = "de-en"}]
        valid = [{hf = "Toy/pairs", config = "de-en", split = "validation"}]
        test_pairs = 10
        subword.vocab_size = 120
        """
    )
    command = [sys.executable, "-m", "dragoman", "prepare", "hub.toml", "--prepared", "out"]
    subprocess.run(command, cwd=tmp_path, env=environment(hub, tmp_path), check=True)
    manifest = Manifest.load(tmp_path / "out")
    assert manifest.splits["valid"].pairs == 40
    assert [source.name for source in manifest.sources] == [
        f"Toy--pairs/de-en/{split}/text.{language}"
        for split in ("train", "validation")
        for language in ("en", "de")
    ]
