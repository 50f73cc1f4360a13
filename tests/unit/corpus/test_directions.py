"""Several languages in one corpus: tokens, directions of dev and test, shares, bad recipes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from sentencepiece import SentencePieceProcessor

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.corpus import clean
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import (
    Direction,
    language_token,
    same_direction,
    target_of,
    tempered,
    token_for,
)
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.sources import Sources
from dragoman.corpus.split import read_directions, read_text
from dragoman.corpus.subword import Subword
from dragoman.corpus.workplace import FAILED
from dragoman.evaluation.sentences import cut_into_chunks
from dragoman.recipe.recipe import load_recipe
from parallel_text import sentences, write_lines
from rejected_pairs import read_rejected

ENGLISH = [" ".join(line) for line in zip(*[iter(sentences(1200)[0])] * 2, strict=True)]
IN = {
    "en": ENGLISH,
    "de": [" ".join(word[::-1] for word in line.split()) for line in ENGLISH],
    "fr": [" ".join(reversed(line.split())) for line in ENGLISH],
}
"""600 made-up sentences of each language."""


def entry(split: str, source: str, target: str) -> dict[str, str]:
    named = {"source": f"{split}.{source}", "target": f"{split}.{target}"}
    return named | {"source_language": source, "target_language": target}


def corpus(folder: Path, **changes: object) -> CorpusConfig:
    """English to German and French; 500 pairs each for training, 20 for dev."""
    for language, lines in IN.items():
        write_lines(folder / f"train.{language}", lines[:500])
        write_lines(folder / f"few.{language}", lines[500:550])
        write_lines(folder / f"valid.{language}", lines[550:570])
    settings: dict[str, object] = {
        "folder": str(folder),
        "train": [entry("train", "en", "de"), entry("train", "en", "fr")],
        "valid": [entry("valid", "en", "de"), entry("valid", "en", "fr")],
        "subword": {"vocab_size": 150},
    }
    return CorpusConfig.model_validate(settings | changes)


def sources(directory: Path) -> list[tuple[str, list[str]]]:
    """The first piece of every training source, and its other pieces."""
    vocabulary, shards = Subword.load(directory / "source.model"), TokenShards(directory / "train")
    rows = [vocabulary.pieces(shards.source(pair).tolist()) for pair in range(shards.num_pairs)]
    return [(row[0], row[1:]) for row in rows]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_token_inside_a_text_is_text(kind: str, tmp_path: Path) -> None:
    settings = corpus(tmp_path, subword={"vocab_size": 150, "kind": kind})
    english = [line.replace(" ", " <2de> ", 1) for line in IN["en"][:500]]
    write_lines(tmp_path / "train.en", [f"<2fr> {line}" for line in english])
    prepared = tmp_path / "prepared"
    prepare(settings, prepared, workers=1)
    vocabulary, shards = Subword.load(prepared / "source.model"), TokenShards(prepared / "train")
    assert shards.num_pairs == 1000
    texts = {f"<2{to}> <2fr> {line}" for to in ("de", "fr") for line in english}
    rows = [shards.source(pair).tolist() for pair in range(shards.num_pairs)]
    assert sorted(rows) == sorted(vocabulary.encode([*texts]))
    for row in rows:
        assert row[0] in vocabulary.tokens.values()
        assert not {*row[1:]} & {*vocabulary.tokens.values()}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_every_source_begins_with_the_token_of_its_target(kind: str, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare(corpus(tmp_path, subword={"vocab_size": 150, "kind": kind}), prepared, workers=1)
    assert Counter(first for first, _ in sources(prepared)) == {"<2de>": 500, "<2fr>": 500}
    shards = TokenShards(prepared / "train")
    vocabulary = Subword.load(prepared / "target.model")
    processor = SentencePieceProcessor(model_file=str(prepared / "source.model"))
    by_text = {
        f"<2{language}> {english}": target
        for language in ("de", "fr")
        for english, target in zip(IN["en"], IN[language], strict=True)
    }
    for pair, (token, _) in enumerate(sources(prepared)):
        text = processor.decode(shards.source(pair).tolist())
        assert [by_text[f"{token} {text}"]] == vocabulary.decode([shards.target(pair).tolist()])
        # As SentencePiece alone cuts the text, behind the token.
        ids = [processor.piece_to_id(token), *processor.encode(text)]
        assert shards.source(pair).tolist() == ids == vocabulary.encode([f"{token} {text}"])[0]


def test_no_text_is_cut_into_a_token(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare(corpus(tmp_path), prepared, workers=1)
    vocabulary = Subword.load(prepared / "source.model")
    (ids,) = vocabulary.encode(["<2de> a <2fr>"])
    assert [piece for piece in vocabulary.pieces(ids) if piece in vocabulary.tokens] == ["<2de>"]
    assert vocabulary.prefix("<2fr> a b") == ([vocabulary.tokens["<2fr>"]], "a b")
    assert vocabulary.prefix("<2xx> a b") == ([], "<2xx> a b")


def test_every_part_of_a_long_text_has_the_token(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare(corpus(tmp_path), prepared, workers=1)
    vocabulary = Subword.load(prepared / "source.model")
    text = " ".join(IN["en"][:5])
    chunks = cut_into_chunks(f"<2de> {text}", vocabulary, max_pieces=20)
    assert len(chunks) > 5
    assert {chunk[0] for chunk in chunks} == {vocabulary.tokens["<2de>"]}
    assert max(map(len, chunks)) <= 20
    assert " ".join(vocabulary.decode([chunk[1:] for chunk in chunks])) == text
    assert cut_into_chunks("<2de> ", vocabulary, max_pieces=20) == []


def test_a_model_without_a_joint_vocabulary_has_tokens_in_that_of_the_source(
    tmp_path: Path,
) -> None:
    prepared = tmp_path / "prepared"
    joint = {"vocab_size": 120, "joint": False}
    prepare(corpus(tmp_path, subword=joint), prepared, workers=1)
    assert [*Subword.load(prepared / "source.model").tokens] == ["<2de>", "<2fr>"]
    assert not Subword.load(prepared / "target.model").tokens


def test_one_target_of_several_sources_needs_no_token(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    config = corpus(
        tmp_path,
        train=[entry("train", "en", "de"), entry("train", "fr", "de")],
        valid=[entry("valid", "en", "de"), entry("valid", "fr", "de")],
    )
    prepare(config, prepared, workers=1)
    assert not Subword.load(prepared / "source.model").tokens
    assert Counter(read_directions(prepared / "valid")) == {("en", "de"): 20, ("fr", "de"): 20}


def test_dev_text_of_every_direction_is_known(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    zero_shot = entry("valid", "de", "fr")
    dev = [entry("valid", "en", "fr"), zero_shot, entry("valid", "en", "de")]
    config = corpus(tmp_path, valid=dev)
    prepare(config, prepared, workers=1)
    assert config.directions == (("en", "de"), ("en", "fr"), ("de", "fr"))
    assert config.train_directions == (("en", "de"), ("en", "fr"))
    found = zip(read_directions(prepared / "valid"), read_text(prepared / "valid"), strict=True)
    for number, (direction, (source, target)) in enumerate(found):
        row = 550 + number % 20
        assert source == f"<2{direction.target}> {IN[direction.source][row]}"
        assert target == IN[direction.target][row]
        assert direction == (("en", "fr"), ("de", "fr"), ("en", "de"))[number // 20]


def test_held_out_pairs_are_as_many_of_each_direction(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    few = [entry("train", "en", "de"), entry("few", "en", "fr")]
    prepare(corpus(tmp_path, train=few, valid=[], valid_pairs=7, test_pairs=3), prepared, workers=1)
    for split, pairs in (("valid", 7), ("test", 3)):
        directions = read_directions(prepared / split)
        assert Counter(directions) == {("en", "de"): pairs, ("en", "fr"): pairs}
        for direction, (source, _) in zip(directions, read_text(prepared / split), strict=True):
            assert source.startswith(f"<2{direction.target}> ")
    trained = {" ".join(row) for _, row in sources(prepared)}
    assert len(trained) == 500 + 50 - 20


def test_a_dev_sentence_is_found_behind_every_token(tmp_path: Path) -> None:
    config = corpus(tmp_path)
    dev = IN["en"][555]
    for language, line in (("en", dev), ("de", dev[::-1]), ("fr", dev.upper())):
        with (tmp_path / f"train.{language}").open("a") as file:
            file.write(f"{line}\n")
    prepare(config, tmp_path / "prepared", workers=1)
    rejected = [(one.filter, one.source) for one in read_rejected(tmp_path / "prepared", "train")]
    assert sorted(rejected) == [("overlap", dev)] * 2


BOTH_WAYS = [entry("train", "en", "de"), entry("train", "de", "en")]


@pytest.mark.parametrize("dev_of", [("en", "de"), ("de", "en")])
def test_a_given_pair_is_not_trained_on_backwards(dev_of: tuple[str, str], tmp_path: Path) -> None:
    train = [*BOTH_WAYS, entry("valid", *reversed(dev_of))]
    dev = [entry("valid", *dev_of), entry("few", *reversed(dev_of))]
    prepare(corpus(tmp_path, train=train, valid=dev), tmp_path / "prepared", workers=1)
    dropped = read_rejected(tmp_path / "prepared", "train")
    assert Counter((one.filter, one.score) for one in dropped) == {("overlap", 2.0): 20}
    assert len(sources(tmp_path / "prepared")) == 1000


@pytest.mark.parametrize("drop_overlap", [True, False])
def test_a_pair_that_was_held_out_is_not_trained_on_backwards(
    drop_overlap: bool, tmp_path: Path
) -> None:
    prepared = tmp_path / "prepared"
    sizes = {"valid": [], "valid_pairs": 7, "test_pairs": 3}
    filters = {"drop_overlap": drop_overlap}
    prepare(corpus(tmp_path, train=BOTH_WAYS, filters=filters, **sizes), prepared, workers=1)
    taken = [pair for split in ("valid", "test") for pair in read_text(prepared / split)]
    sides = {side.removeprefix("<2de> ").removeprefix("<2en> ") for pair in taken for side in pair}
    assert len(sides) == 2 * len(taken) == 40
    dropped = read_rejected(prepared, "train")
    assert Counter(one.filter for one in dropped) == {"held_out": 40}
    assert len(sources(prepared)) == 1000 - 40


def test_a_direction_without_training_pairs_is_refused(tmp_path: Path) -> None:
    train = [entry("train", "en", "de"), entry("valid", "en", "fr")]
    message = r"en to fr is left \(later filters 20\); look at .*, or leave the"
    with pytest.raises(CorpusError, match=message):
        prepare(corpus(tmp_path, train=train), tmp_path / "prepared", workers=1)
    failed = tmp_path / "prepared" / FAILED
    assert list(failed.parent.iterdir()) == [failed]
    assert Counter(one.filter for one in clean.read_rejected(failed / "train.tsv.zst")) == {
        "overlap": 20
    }
    write_lines(tmp_path / "same.fr", IN["en"][:500])
    train[1] = entry("train", "en", "fr") | {"target": "same.fr"}
    with pytest.raises(
        CorpusError, match=r"no training pair of en to fr is left \(identical 500\)"
    ):
        prepare(corpus(tmp_path, train=train), tmp_path / "prepared", workers=1)


@pytest.mark.parametrize("how", ["weight = 0", 'name = "none"'])
def test_a_direction_that_no_stage_draws_is_refused(how: str, tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    own = 'name = "some", weight = 1' if "weight" in how else 'name = "some"'
    stages = "" if "weight" in how else "stages = [{weights = {some = 1}}]\n"
    recipe.write_text(
        f'{stages}corpus = {{valid_pairs = 1, train = [{{tsv = "a", target_language = "de", '
        f'source_language = "en", {own}}}, {{tsv = "b", target_language = "fr", '
        f'source_language = "en", {how}}}]}}'
    )
    with pytest.raises(ConfigError, match="no stage draws a pair of en to fr"):
        load_recipe(recipe)


def corpus_of_files(config: CorpusConfig, train: object, valid: object) -> CorpusConfig:
    """The same section with other entries."""
    return CorpusConfig.model_validate(config.model_dump() | {"train": train, "valid": valid})


def test_shares_are_those_of_the_formula() -> None:
    # Arivazhagan et al. 2019: p_l^(1/T), here 0.8 and 0.2.
    assert tempered([80, 20], 1.0) == pytest.approx([0.8, 0.2])
    root = [math.sqrt(0.8), math.sqrt(0.2)]
    assert tempered([80, 20], 2.0) == pytest.approx([root[0] / sum(root), root[1] / sum(root)])
    assert tempered([80, 20], 1000.0) == pytest.approx([0.5, 0.5], abs=1e-3)
    assert tempered([10, 0], 5.0) == [1.0, 0.0]


def test_a_temperature_gives_a_language_of_little_text_longer_pieces(tmp_path: Path) -> None:
    few = [entry("train", "en", "de"), entry("few", "en", "fr")]
    sizes = {}
    for temperature in (None, 1.0, 100.0):
        prepared = tmp_path / f"{temperature}"
        settings = {"train": few, "temperature": temperature, "subword": {"vocab_size": 300}}
        prepare(corpus(tmp_path, **settings), prepared, workers=1)
        vocabulary = Subword.load(prepared / "target.model")
        sizes[temperature] = np.mean([len(row) for row in vocabulary.encode(IN["fr"][500:550])])
    assert sizes[None] == sizes[1.0]  # as much as there is
    assert sizes[100.0] < sizes[None]


def test_the_language_filter_expects_the_languages_of_the_entry(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    english = ["The house is old and the garden is very large."] * 3
    french = ["La maison est vieille et le jardin est très grand."] * 3
    german = ["Das Haus ist alt und der Garten ist sehr groß."] * 3
    for language, lines in (("en", english), ("fr", french), ("de", german)):
        for split in ("a", "b"):
            write_lines(tmp_path / f"{split}.{language}", [f"{n} {x}" for n, x in enumerate(lines)])
    write_lines(tmp_path / "wrong.fr", [f"7{n} {line}" for n, line in enumerate(german)])
    config = CorpusConfig.model_validate(
        {
            "folder": str(tmp_path),
            "train": [
                entry("a", "en", "de"),
                entry("a", "en", "fr"),
                {"source": "b.en", "target": "wrong.fr", "target_language": "fr",
                 "source_language": "en"},
            ],
            "valid_pairs": 1,
            "filters": {"max_language_log_odds": 1.5},
            "subword": {"vocab_size": 60},
        }
    )  # fmt: skip
    prepare(config, tmp_path / "prepared", workers=1)
    rejected = read_rejected(tmp_path / "prepared", "train")
    assert {(one.filter, one.file) for one in rejected if one.filter == "language"} == {
        ("language", "b.en")
    }
    assert sum(one.filter == "language" for one in rejected) == 3


def test_a_model_is_asked_for_a_language_it_has() -> None:
    several = [Direction("en", "de"), Direction("en", "fr")]
    tokens = ("<2de>", "<2fr>")
    assert token_for("fr", several, tokens) == "<2fr>"
    assert token_for("de", several[:1], ()) == ""
    assert token_for("", several[:1], ()) == ""
    assert language_token("pt-BR") == "<2pt-br>"
    for target in ("", "it"):
        with pytest.raises(ConfigError, match=r"^target language: .*de, fr"):
            token_for(target, several, tokens)
    with pytest.raises(ConfigError, match="does not translate into 'fr'"):
        token_for("fr", several[:1], ())


TRAIN = [{"tsv": "a"}, {"tsv": "b", "target_language": "fr"}]
VALID = [{"tsv": "c"}, {"tsv": "d", "target_language": "fr"}]
BOTH = {"source_language": "en", "target_language": "de", "train": TRAIN, "valid": VALID}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_language": None}, "target_language is not set, and the name a "),
        ({"valid": VALID[:1]}, "corpus.valid has no entry for en to fr"),
        ({"test": [{"tsv": "e", "target_language": "it"}]}, r"corpus.test\[0\] is en to it"),
        ({"train": [*TRAIN, {"tsv": "e", "target_language": "en"}]}, "translate en into itself"),
        (
            {"train": [*TRAIN, {"tsv": "e", "target_language": "deu"}]},
            "two ways .de, deu.: write both",
        ),
        ({"train": [*TRAIN, {"tsv": "e", "target_language": "EN"}]}, "translate en into itself"),
        ({"target_language": "en", "train": TRAIN[:1], "valid": VALID[:1]}, "into itself"),
        ({"target_language": "Auto", "train": TRAIN[:1], "valid": VALID[:1]}, 'called "auto"'),
        ({"train": [*TRAIN, {"tsv": "e", "tag": "<2de>"}]}, 'tag = "<2de>" is the token'),
        ({"temperature": 0.5}, "greater than or equal to 1"),
        ({"temperature": 5, "train": TRAIN[:1], "valid": VALID[:1]}, "there is one"),
        (
            {"temperature": 5, "train": [one | {"weight": 1} for one in TRAIN]},
            "temperature and weight both set the shares",
        ),
        (
            {"train": [*TRAIN, TRAIN[0] | {"target_language": "deu"}]},
            r"one target language in two ways \(de, deu\)",
        ),
        ({"train": [{"tsv": "a", "target_language": "no such"}]}, "target_language"),
    ],
)
def test_languages_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    settings = {key: one for key, one in (BOTH | changes).items() if one is not None}
    with pytest.raises(ValidationError, match=words):
        CorpusConfig.model_validate(settings)


def test_entries_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    config = corpus(tmp_path)
    wrong = entry("train", "en", "de") | {"target_language": "fr"}
    train = [entry("train", "en", "de"), entry("train", "en", "fr"), wrong]
    with pytest.raises(ConfigError, match=r"corpus.train\[2\]: takes train.de for fr") as error:
        prepare(corpus_of_files(config, train, config.valid), tmp_path / "prepared", workers=1)
    assert "corpus.train[0] takes it for de" in str(error.value)
    assert not (tmp_path / "prepared").exists()
    again = [entry("train", "en", "de"), entry("train", "en", "de") | {"source_language": "eng"}]
    Sources(corpus_of_files(config, again, []), downloads=tmp_path)


def test_an_imported_vocabulary_has_no_tokens_of_ours(tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        'corpus = {source_language = "en", train = [{tsv = "a", target_language = "de"}, '
        '{tsv = "b", target_language = "fr"}], valid_pairs = 1, subword = {kind = "imported"}}'
    )
    with pytest.raises(ConfigError, match="imported"):
        load_recipe(recipe)


@pytest.mark.parametrize(
    ("wanted", "own"),
    [
        ("DE", "de"),
        ("deu_Latn", "de"),
        ("nb", "no"),
        ("pt", "pt-BR"),
        ("zt", "zh-TW"),
        ("iw", "he"),
    ],
)
def test_a_target_is_found_by_any_code_of_its_language(wanted: str, own: str) -> None:
    codes = ("de", "no", "nn", "pt-BR", "zh-TW", "he", "sr-Cyrl")
    directions = [Direction("en", code) for code in codes]
    assert target_of(wanted, directions) == own
    assert token_for(wanted, directions, ["a token"]) == f"<2{own.lower()}>"
    for other in ("sr-Latn", "zh", "german"):
        with pytest.raises(ConfigError, match=f"does not translate into '{other}'"):
            target_of(other, directions)


def test_directions_of_the_same_languages_are_the_same() -> None:
    assert same_direction(("eng_Latn", "nb"), ("EN", "no"))
    assert not same_direction(("en", "sr"), ("en", "sr-Latn"))
