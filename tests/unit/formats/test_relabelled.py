"""A model that was trained under wrong languages: corrected where it is used, not trained again."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

import dragoman
from dragoman.base.errors import ConfigError
from dragoman.formats.bundle import Bundle
from dragoman.formats.card import relabelled
from dragoman.recipe.recipe import load_recipe
from dragoman.recipe.run_directory import RunDirectory
from real_text import real_lines
from served import served_bundle
from small_run import small_run


def mislabelled(folder: Path, wrong: str = "french") -> RunDirectory:
    """The small run as an earlier version let it be labelled; its target is German."""
    path = folder / "run"
    shutil.copytree(small_run().path, path, symlinks=True)
    for name in ("recipe.toml", "manifest.json"):
        text = (path / name).read_text()
        mended = text.replace('target_language = "de"', f'target_language = "{wrong}"')
        mended = mended.replace('"target_language": "de"', f'"target_language": "{wrong}"')
        assert mended != text
        (path / name).write_text(mended)
    return RunDirectory.open(path)


def test_an_export_has_the_right_languages_everywhere(tmp_path: Path) -> None:
    run = mislabelled(tmp_path)
    done = dragoman.export(run, output=tmp_path / "b", languages="en-pt_BR")
    bundle = Bundle.open(done.path)
    assert (bundle.info.source_language, bundle.info.target_language) == ("en", "pt-BR")
    assert str(bundle.recipe.corpus.directions[0]) == "en-pt-BR"
    assert str(bundle.manifest.config.directions[0]) == "en-pt-BR"
    texts = [path for path in done.path.iterdir() if path.suffix in (".json", ".md", ".toml")]
    assert len(texts) > 3
    assert not [path.name for path in texts if "french" in path.read_text()]
    assert "en to pt-BR" in bundle.card()
    assert 'target_language = "french"' in run.recipe_file.read_text()  # the record stays


@pytest.mark.system
def test_a_package_for_argos_is_named_after_the_right_languages(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = mislabelled(tmp_path, "fr")
    done = dragoman.export(run, to="argos", output=tmp_path / "a", languages="en-de")
    (package,) = done.path.glob("*.argosmodel")
    assert package.name == "en_de.argosmodel"
    with zipfile.ZipFile(package) as opened:
        name = next(name for name in opened.namelist() if name.endswith("metadata.json"))
        metadata = json.loads(opened.read(name))
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")


def test_scores_are_cut_into_words_of_the_right_language(tmp_path: Path) -> None:
    run = mislabelled(tmp_path, "fr")
    for side, name in (("en", "source"), ("de", "reference")):
        (tmp_path / name).write_text("\n".join(real_lines("valid", side)[:6]) + "\n")
    signatures = []
    for languages in ("", "en-zh"):
        found = dragoman.evaluate(
            run,
            source=tmp_path / "source",
            reference=tmp_path / "reference",
            languages=languages,
            overrides=["evaluate.bootstrap_samples=2"],
        )
        signatures.append(found.scores["bleu"].signature)
        assert found.translations == run.samples / f"source.{languages[3:] or 'fr'}"
    assert "tok:13a" in signatures[0]
    assert "tok:zh" in signatures[1]


def test_an_export_that_is_served_has_another_card_and_the_same_files() -> None:
    bundle = Bundle.open(served_bundle())
    assert relabelled(bundle, "") is bundle
    other = relabelled(bundle, "en-fr")
    assert other.info.languages == ("en", "fr")
    assert "en to fr" in other.card()
    assert "en to de" in bundle.card()
    assert other.weights_file == bundle.weights_file


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("en-french", "'french' is not a language code; did you mean fr"),
        ("english", "is not a pair of languages"),
        ("en-en_GB", "are the same language"),
    ],
)
def test_what_is_no_pair_is_refused(pair: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        dragoman.export(small_run(), output=tmp_path / "b", languages=pair)
    assert not (tmp_path / "b").exists()


def test_tokens_of_a_model_of_several_languages_cannot_be_renamed() -> None:
    several = load_recipe(
        {
            "name": "several",
            "corpus": {
                "valid_pairs": 5,
                "train": [
                    {"source": "a.en", "target": "a.de", "target_language": "de"},
                    {"source": "a.en", "target": "a.fr", "target_language": "fr"},
                ],
            },
        }
    )
    with pytest.raises(ConfigError, match="its vocabulary names these languages"):
        several.with_languages("en-it")
