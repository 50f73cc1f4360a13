"""Entries with names and weights: the shards say which pair comes from which entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dragoman.base.errors import CorpusError
from dragoman.cli import main
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.subword import Subword
from dragoman.recipe.recipe import digest, load_recipe
from parallel_text import sentences, small_corpus, write_pairs

A = {"source": "a.en", "target": "a.de"}
B = {"source": "b.en", "target": "b.de"}


def two_entries(folder: Path, *keys: dict[str, Any]) -> CorpusConfig:
    """400 and 150 pairs; keys: what is written beside each."""
    write_pairs(folder, "a", sentences(400, seed=1))
    write_pairs(folder, "b", sentences(150, seed=2))
    train = [entry | own for entry, own in zip((A, B), keys, strict=True)]
    return small_corpus(folder, train=train)


@pytest.mark.system
@pytest.mark.parametrize("workers", [1, 2])
def test_each_pair_is_of_the_entry_whose_file_holds_it(tmp_path: Path, workers: int) -> None:
    config = two_entries(tmp_path, {"weight": 1}, {"weight": 2, "name": "b"})
    prepare(config, tmp_path / "prepared", workers=workers)
    shards = TokenShards(tmp_path / "prepared" / "train")
    subword = Subword.load(tmp_path / "prepared" / "source.model")
    lines = {*(tmp_path / "b.en").read_text().splitlines()}
    rows = [shards.source(pair).tolist() for pair in range(shards.num_pairs)]
    is_in_b = [text in lines for text in subword.decode(rows)]
    assert shards.entries().tolist() == [int(one) for one in is_in_b]
    assert 100 < sum(is_in_b) < 151


def test_other_weights_and_names_need_no_second_preparation(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    first = prepare(two_entries(tmp_path, {"weight": 1}, {"weight": 2}), prepared, workers=1)
    assert "train/entries.npy" in first.files
    written = (prepared / "manifest.json").stat().st_mtime_ns
    for keys in ({"weight": 5}, {"weight": 0.5}), ({"name": "a"}, {"name": "b"}):
        again = prepare(two_entries(tmp_path, *keys), prepared, workers=1)
        assert again.digest == first.digest
    assert (prepared / "manifest.json").stat().st_mtime_ns == written


def test_other_weights_and_names_have_the_same_default_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two_entries(tmp_path, {}, {})
    recipe = """
        [corpus]
        train = [{source = "a.en", target = "a.de", A}, {source = "b.en", target = "b.de", B}]
        valid_pairs = 10
        subword.vocab_size = 120
    """

    def prepared(first: str, second: str) -> int:
        Path("r.toml").write_text(recipe.replace(", A", first).replace(", B", second))
        assert main(["prepare", "r.toml", "--workers", "1"]) == 0
        return len(list(Path("prepared").iterdir()))

    assert prepared("", "") == 1
    (plain,) = Path("prepared").iterdir()
    assert plain.name == f"r-{digest(load_recipe('r.toml').corpus)[:8]}"
    written = (plain / "manifest.json").stat().st_mtime_ns
    assert prepared(", weight = 1", ", weight = 2") == 2
    assert prepared(', name = "a", weight = 3', ", weight = 1") == 2
    assert (plain / "manifest.json").stat().st_mtime_ns == written
    said = ', target_language = "fr"'
    assert prepared(f'{said}, source_language = "de"', f'{said}, source_language = "en"') == 3
    assert (
        prepared(
            f'{said}, source_language = "de", weight = 1',
            f'{said}, source_language = "en", weight = 2',
        )
        == 3
    )


@pytest.mark.parametrize("key", ['tag = "<bt>"', 'translated = "target"'])
def test_dev_and_test_pairs_are_those_that_people_wrote(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two_entries(tmp_path, {}, {})
    recipe = """
        [corpus]
        train = [{source = "a.en", target = "a.de", KEY}, {source = "b.en", target = "b.de"}]
        valid_pairs = 20
        test_pairs = 20
        subword.vocab_size = 120
    """
    Path("r.toml").write_text(recipe.replace("KEY", key))
    assert main(["prepare", "r.toml", "--workers", "1"]) == 0
    (prepared,) = Path("prepared").iterdir()
    written = {*Path("b.en").read_text().splitlines()}
    for split in ("valid", "test"):
        sources = (prepared / split / "source.txt").read_text().splitlines()
        assert len(sources) == 20
        assert written.issuperset(sources)


def test_a_corpus_without_names_and_weights_stays_as_it_was(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    plain = prepare(two_entries(tmp_path, {}, {}), prepared, workers=1)
    assert "train/entries.npy" not in plain.files
    with pytest.raises(CorpusError, match=r"entries\.npy"):
        TokenShards(prepared / "train").entries()
    weighted = prepare(two_entries(tmp_path, {"weight": 1}, {"weight": 2}), prepared, workers=1)
    assert {"train/entries.npy"} == weighted.files.keys() ^ plain.files.keys()
    assert Manifest.load(prepared).digest == weighted.digest
    assert config_dump(plain.config) == [
        {key: entry[key] for key in ("source", "target")} for entry in (A, B)
    ]


def config_dump(config: CorpusConfig) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = config.model_dump(mode="json")["train"]
    return entries


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train": [A | {"weight": 1}, B]}, "every entry of corpus.train a weight, or none"),
        ({"train": [A | {"weight": 0}, B | {"weight": 0}]}, "all weights of corpus.train are 0"),
        ({"train": [A | {"weight": -1}, B]}, "greater than or equal to 0"),
        ({"train": [A | {"name": "x"}, B | {"name": "x"}]}, "two entries .* are called x"),
        ({"train": [A | {"name": "a b"}]}, "match pattern"),
        ({"train": [A], "valid": [B | {"weight": 1}]}, "belong to entries of corpus.train alone"),
        ({"train": [A], "test": [B | {"name": "b"}]}, "belong to entries of corpus.train alone"),
    ],
)
def test_weights_and_names_of_no_use_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        CorpusConfig.model_validate(changes)
