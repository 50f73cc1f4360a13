"""`corpus.reverse`: a recipe with both sides of its text swapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.cli import main
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import Direction
from dragoman.corpus.prepare import prepare
from dragoman.corpus.split import read_text
from dragoman.recipe.recipe import digest, dump_toml, load_recipe
from parallel_text import write_lines
from real_text import real_lines

SIDES = {language: real_lines("train", language)[:400] for language in ("en", "de")}
MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4"><header srclang="en" segtype="sentence" datatype="plaintext"
creationtool="t" creationtoolversion="1" adminlang="en" o-tmf="t"/><body>{units}</body></tmx>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same pairs in every form."""
    for language, lines in SIDES.items():
        write_lines(tmp_path / f"a.{language}", lines)
    pairs = list(zip(*SIDES.values(), strict=True))
    write_lines(tmp_path / "a.tsv", [f"{english}\t{german}" for english, german in pairs])
    write_lines(tmp_path / "back.tsv", [f"{german}\t{english}" for english, german in pairs])
    write_lines(tmp_path / "scored.tsv", [f"{english}\t{german}\t1" for english, german in pairs])
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{english}</seg></tuv>'
        f'<tuv xml:lang="de"><seg>{german}</seg></tuv></tu>\n'
        for english, german in pairs
        if not set("&<>") & set(english + german)
    )
    (tmp_path / "a.tmx").write_text(MEMORY.format(units=units), encoding="utf-8")
    return tmp_path


FILES = {"source": "a.en", "target": "a.de"}


def corpus(folder: Path, entry: dict[str, Any], **changes: Any) -> CorpusConfig:
    """The entry as training text and as dev set, English to German."""
    section = {
        "folder": str(folder),
        "source_language": "en",
        "target_language": "de",
        "train": [entry],
        "valid": [entry],
        "subword": {"vocab_size": 300},
        "filters": {"drop_overlap": False},
    }
    return load_recipe({"name": "a", "corpus": section | changes}).corpus


def read(config: CorpusConfig, directory: Path) -> list[tuple[str, str]]:
    prepare(config, directory, workers=1)
    return read_text(directory / "valid")


@pytest.mark.parametrize("entry", [FILES, {"tsv": "a.tsv"}, {"tmx": "a.tmx"}])
def test_every_form_of_text_is_read_the_other_way_round(
    entry: dict[str, Any], folder: Path
) -> None:
    forward = read(corpus(folder, entry), folder / "forward")
    config = corpus(folder, entry, reverse=True)
    assert config.directions == (Direction("de", "en"),)
    backward = read(config, folder / "backward")
    assert len(forward) > 300
    assert forward[0][0] in SIDES["en"]
    assert backward == [(target, source) for source, target in forward]


def test_scores_of_columns_still_count(folder: Path) -> None:
    entry = {"tsv": "scored.tsv", "scores": [{"column": 3, "at_least": 1.0}]}
    config = corpus(folder, entry, reverse=True, valid=[FILES])
    assert prepare(config, folder / "kept", workers=1).train.pairs > 300
    entry["scores"] = [{"column": 3, "at_least": 2.0, "at_most": 3.0}]
    config = corpus(folder, entry, reverse=True, valid=[FILES])
    with pytest.raises(CorpusError):
        prepare(config, folder / "dropped", workers=1)


def test_every_key_of_an_entry_is_swapped_and_its_share_and_tag_stay(folder: Path) -> None:
    mixed = [
        {"source": "a.en", "target": "a.de", "weight": 2.0, "name": "first"},
        {"tsv": "a.tsv", "tag": "<bt>", "translated": "source", "weight": 0.0},
        {"tsv": "back.tsv", "reverse": True, "weight": 1.0},
        {"tmx": "a.tmx", "target_language": "fr", "weight": 1.0},
        {"mtdata": "Statmt-europarl-7-deu-eng", "source_language": "de", "target_language": "en",
         "weight": 1.0},
    ]  # fmt: skip
    config = corpus(folder, FILES, train=mixed, reverse=True, valid=[], valid_pairs=5)
    assert [one.model_dump() for one in config.train] == [
        {"source": "a.de", "target": "a.en", "weight": 2.0, "name": "first"},
        {"tsv": "a.tsv", "reverse": True, "tag": "<bt>", "translated": "target", "weight": 0.0},
        {"tsv": "back.tsv", "weight": 1.0},
        {"tmx": "a.tmx", "source_language": "fr", "weight": 1.0},
        {"mtdata": "Statmt-europarl-7-deu-eng", "source_language": "en", "target_language": "de",
         "weight": 1.0},
    ]  # fmt: skip
    assert config.train_directions == (
        Direction("de", "en"),
        Direction("fr", "en"),
        Direction("en", "de"),
    )


def test_the_shards_are_those_of_a_recipe_that_was_swapped_by_hand(folder: Path) -> None:
    by_key = corpus(folder, FILES, reverse=True)
    swapped = {"source": "a.de", "target": "a.en"}
    by_hand = corpus(folder, swapped, source_language="de", target_language="en")
    assert digest(by_key) == digest(by_hand)
    assert digest(by_key) != digest(corpus(folder, FILES))
    prepare(by_hand, folder / "kept", workers=1)
    before = (folder / "kept" / "manifest.json").stat().st_mtime_ns
    prepare(by_key, folder / "kept", workers=1)
    assert (folder / "kept" / "manifest.json").stat().st_mtime_ns == before


def test_a_recorded_recipe_is_not_swapped_again(folder: Path) -> None:
    section = corpus(folder, {"tsv": "a.tsv"}, reverse=True)
    recipe = load_recipe(
        {"name": "a", "corpus": {"reverse": True, "folder": str(folder)} | FORWARD}
    )
    (folder / "recorded.toml").write_text(dump_toml(recipe))
    again = load_recipe(folder / "recorded.toml")
    assert again == recipe
    assert again.corpus.directions == section.directions == (Direction("de", "en"),)
    twice = load_recipe(folder / "recorded.toml", ["corpus.reverse=true"])
    assert twice.corpus.directions == (Direction("en", "de"),)
    assert twice.corpus.train[0].reverse is False


FORWARD: dict[str, Any] = {
    "source_language": "en",
    "target_language": "de",
    "train": [{"tsv": "a.tsv"}],
    "valid_pairs": 20,
}


@pytest.mark.system
def test_a_dry_run_shows_the_other_direction(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.toml").write_text(
        "[corpus]\nsource_language = 'en'\ntarget_language = 'de'\n"
        "train = [{source = 'a.en', target = 'a.de'}]\nvalid_pairs = 10\n[train]\nmax_steps = 10\n"
    )
    small = ["model.d_model=32", "model.num_heads=2", "model.d_ffn=64", "model.encoder_layers=1"]
    small += ["model.decoder_layers=1", "corpus.subword.vocab_size=500", "data.batch_tokens=256"]
    sets = [word for value in ("corpus.reverse=true", *small) for word in ("--set", value)]
    assert main(["run", str(folder / "a.toml"), "--dry-run", "--recipe", *sets]) == 0
    shown = capsys.readouterr().out
    assert 'source = "a.de"' in shown
    assert 'source_language = "de"' in shown
    assert "de to en" in shown


def test_a_mistake_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="reverse is for the columns of a tsv"):
        corpus(folder, FILES | {"reverse": True})
    with pytest.raises(ConfigError, match=r"corpus\.reverse"):
        corpus(folder, FILES, reverse="yes")
    with pytest.raises(ConfigError, match=r"corpus\.train"):
        corpus(folder, FILES, reverse=True, train=["a.en"])
