"""Languages by the names of files and corpora: told where the name is clear, never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.corpus.names import language_of_file, languages_of_corpus
from dragoman.recipe.recipe import Recipe, digest, load_recipe


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *[("a.en", "en"), ("a.EN", "en"), ("train.en.gz", "en"), ("folder.fr/a.de.txt.xz", "de")],
        *[("corpus.en-fr.en", "en"), ("corpus.en-fr.fr", "fr"), ("newstest2014-deen.de", "de")],
        *[("train.fr_FR", "fr-FR"), ("train.pt-BR", "pt-BR"), ("train-pt-BR.txt", "pt-BR")],
        *[("train_en.txt", "en"), ("en.txt", "en"), ("a.zh_Hans", "zh-Hans"), ("a.hsb", "hsb")],
        *[("a.eng_Latn", "eng_Latn"), ("a.deu", "de"), ("a.nds.zst", "nds")],
        *[("a.src", ""), ("a.tgt", ""), ("a.txt", ""), ("a.new", ""), ("a.ref", ""), ("a", "")],
        *[("a.pt_br", ""), ("a.ko-kr.txt", ""), ("fr_ca.gz", ""), ("a.zh_cn", "")],
        *[("source", ""), ("train.tok", ""), ("a.bpe", ""), ("a.out", ""), ("a.xx", "")],
    ],
)
def test_the_ending_of_a_file_tells_its_language(name: str, code: str) -> None:
    assert language_of_file(name) == code


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        *[("en-fr.tmx", ("en", "fr")), ("corpus.en-fr.tmx.gz", ("en", "fr"))],
        *[("de-en.txt.zip", ("de", "en")), ("Statmt-europarl-7-deu-eng", ("de", "en"))],
        *[("ELRC-x-1-eng_GB-nob_NO", ("en-GB", "nb-NO")), ("pt-BR-en.tsv", ("pt-BR", "en"))],
        *[("en-US_de-DE.tmx", ("en-US", "de-DE")), ("OPUS-x-v1-eng-zho", ("en", "zh"))],
        *[("src-tgt.tsv", ("", "")), ("a-b.tsv", ("", "")), ("en-en.tmx", ("", ""))],
        *[("pt-br-en.tsv", ("", "")), ("en-pt-br.tmx", ("", "")), ("fr_ca_en.tsv", ("", ""))],
        *[("my-set.tsv", ("", "")), ("new-de.tsv", ("", "")), ("memory.tmx", ("", ""))],
    ],
)
def test_the_name_of_a_corpus_tells_two_languages(name: str, codes: tuple[str, str]) -> None:
    assert languages_of_corpus(name) == codes


def recipe_of(*train: dict[str, str], **corpus: Any) -> Recipe:
    return load_recipe({"name": "a", "corpus": {"train": [*train], "valid_pairs": 5, **corpus}})


FILES = {"source": "a.en", "target": "a.fr"}


@pytest.mark.parametrize(
    ("train", "corpus", "pair"),
    [
        ([FILES], {}, "en-fr"),
        ([{"source": "corpus.en-fr.fr.gz", "target": "corpus.en-fr.en.gz"}], {}, "fr-en"),
        ([{"tsv": "fr-en.tsv.gz"}], {}, "fr-en"),
        ([{"tmx": "en-fr.tmx"}], {"source_language": "fr"}, "fr-en"),
        ([{"moses": "de-en.txt.zip"}], {"target_language": "de"}, "en-de"),
        ([{"mtdata": "Statmt-europarl-7-deu-eng"}], {"source_language": "en"}, "en-de"),
        ([{"mtdata": "X-y-1-deu-eng"}, {"source": "a.en", "target": "a.de"}], {}, "en-de"),
        ([FILES, {"tsv": "more.tsv"}], {}, "en-fr"),
        ([FILES], {"target_language": "fr_CA"}, "en-fr-CA"),
        ([{"tsv": "a.tsv"}], {"source_language": "EN", "target_language": "zh_hant"}, "en-zh-Hant"),
        ([{"tsv": "a.en-de.tsv", "reverse": True}], {}, "de-en"),
        ([{"tsv": "a.en-de.tsv"}], {"reverse": True}, "de-en"),
        ([FILES], {"reverse": True}, "fr-en"),
        ([{"tmx": "de-en.tmx"}], {"source_language": "en", "reverse": True}, "de-en"),
        (
            [{"tsv": "a.tsv"}],
            {"source_language": "eng_Latn", "target_language": "fra_Latn"},
            "eng_Latn-fra_Latn",
        ),
    ],
)
def test_languages_that_are_not_set_follow_from_names(
    train: list[dict[str, Any]], corpus: dict[str, Any], pair: str
) -> None:
    (direction,) = recipe_of(*train, **corpus).corpus.directions
    assert str(direction) == pair


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ([{"tsv": "a.tsv"}], "source_language is not set, and the name a.tsv"),
        ([{"source": "a.src", "target": "a.fr"}], "source_language is not set"),
        ([{"source": "a.en", "target": "a.tgt"}], "target_language is not set, and the name a.tgt"),
        ([{"tmx": "de-en.tmx"}], "is a name for both directions"),
        ([{"mtdata": "Statmt-europarl-7-deu-eng"}], 'write source_language = "de" or "en"'),
        (
            [FILES, {"source": "b.en", "target": "b.de"}],
            r"corpus.train[0] is fr and corpus.train[1]",
        ),
    ],
)
def test_languages_that_nothing_tells_are_asked_for(
    train: list[dict[str, str]], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        recipe_of(*train)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("french", "did you mean fr?"), ("xx", "write an ISO 639"), ("eng-lish", "ISO 639")],
)
@pytest.mark.parametrize("place", ["section", "entry", "override"])
def test_what_is_no_code_is_refused_with_the_nearest(
    code: str, remedy: str, place: str, tmp_path: Any
) -> None:
    file = tmp_path / "mine.toml"
    section = f'target_language = "{code}"\n' if place == "section" else ""
    entry = f', target_language = "{code}"' if place == "entry" else ""
    file.write_text(
        f'[corpus]\nvalid_pairs = 5\ntrain = [{{source = "a.en", target = "a.de"{entry}}}]\n'
        + section
    )
    overrides = [f"corpus.target_language={code}"] if place == "override" else []
    with pytest.raises(ConfigError) as error:
        load_recipe(file, overrides)
    assert error.value.problem == f"{code!r} is not a language code"
    assert remedy in error.value.remedy
    where = {"section": f"{file}:4", "entry": f"{file}:3", "override": f"{overrides[:1]}"}
    assert error.value.place == where[place].replace("['", "").replace("']", "")


def test_a_recipe_says_what_names_told() -> None:
    assert recipe_of(FILES).corpus.told_by_names == "en to fr, by the names a.en and a.fr"
    stated = recipe_of(FILES, source_language="en", target_language="fr")
    assert stated.corpus.told_by_names == ""
    assert digest(stated) == digest(recipe_of(FILES))  # the same run either way
