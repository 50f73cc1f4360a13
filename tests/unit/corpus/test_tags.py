"""A tag of an entry: one piece of the vocabulary, before each of its sources and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from sentencepiece import SentencePieceProcessor

from dragoman.base.errors import ConfigError
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.normalize import normalize
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import UNK, TokenShards
from dragoman.corpus.subword import Subword
from dragoman.recipe.recipe import load_recipe
from real_text import real_lines
from rejected_pairs import read_rejected

TAG = "<bt>"


def corpus(folder: Path, kind: str = "bpe") -> CorpusConfig:
    """500 pairs, 500 tagged ones and a dev set of which one source is in the tagged ones."""
    english, german = real_lines("train", "en")[:1000], real_lines("train", "de")[:1000]
    rows = [f"{source}\t{target}\n" for source, target in zip(english, german, strict=True)]
    (folder / "real.tsv").write_text("".join(rows[:500]), "utf-8")
    (folder / "made.tsv").write_text("".join(rows[500:]), "utf-8")
    (folder / "dev.tsv").write_text(f"{english[700]}\tein anderer Satz\n", "utf-8")
    return CorpusConfig.model_validate(
        {
            "folder": str(folder),
            "train": [{"tsv": "real.tsv"}, {"tsv": "made.tsv", "tag": TAG}],
            "valid": [{"tsv": "dev.tsv"}],
            "source_language": "en",
            "target_language": "de",
            "subword": {"vocab_size": 800, "kind": kind},
        }
    )


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sources_of_a_tagged_entry_begin_with_its_tag(kind: str, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare(corpus(tmp_path, kind), prepared, workers=1)
    vocabulary = Subword.load(prepared / "source.model")
    shards = TokenShards(prepared / "train")
    texts = [normalize(line) for line in real_lines("train", "en")[:1000]]
    tagged = {f"{TAG} {text}" for text in texts[500:]}
    plain = {*texts[:500]}
    rows = [shards.source(pair).tolist() for pair in range(shards.num_pairs)]
    decoded = vocabulary.decode(rows)
    assert {*decoded} <= tagged | plain
    assert 300 < sum(text in tagged for text in decoded) < 500
    assert any(text in plain for text in decoded)
    processor = SentencePieceProcessor(model_file=str(prepared / "source.model"))
    for text, row in zip(decoded, rows, strict=True):
        assert row == processor.encode(text)  # word by word or whole, it is the same
        if text in tagged:
            assert TAG in vocabulary.pieces(row)
            assert UNK not in row


def test_a_source_of_the_dev_set_is_found_behind_a_tag(tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    prepare(corpus(tmp_path), prepared, workers=1)
    overlaps = [pair for pair in read_rejected(prepared, "train") if pair.filter == "overlap"]
    assert {pair.source for pair in overlaps} == {normalize(real_lines("train", "en")[700])}


def test_a_tag_is_a_word_and_its_absence_leaves_no_trace() -> None:
    assert TextFiles(tsv="a").model_dump() == {"tsv": "a"}
    assert TextFiles(tsv="a", tag=TAG).model_dump()["tag"] == TAG
    for tag in ("two words", "a\tb", "x" * 101):
        with pytest.raises(ValidationError):
            TextFiles(tsv="a", tag=tag)


@pytest.mark.parametrize("tag", ["bt", "<bt", "bt>", "<>", "a<bt>"])
def test_a_tag_that_words_may_hold_is_refused(tag: str) -> None:
    with pytest.raises(ConfigError, match="begin it with < and end it with >"):
        load_recipe({"corpus": {"train": [{"tsv": "en-de", "tag": tag}], "valid_pairs": 1}})


@pytest.mark.parametrize("tag", ["<pad>", "<unk>", "<s>", "</s>"])
def test_a_tag_that_every_vocabulary_has_is_refused(tag: str) -> None:
    with pytest.raises(ConfigError, match=f'tag = "{tag}" is a piece of every vocabulary'):
        load_recipe({"corpus": {"train": [{"tsv": "en-de", "tag": tag}], "valid_pairs": 1}})


def test_a_tag_with_capitals_is_refused_if_text_is_lowercased() -> None:
    corpus = {"train": [{"tsv": "en-de", "tag": "<BT>"}], "valid_pairs": 1}
    assert load_recipe({"corpus": corpus}).corpus.tags == ("<BT>",)
    with pytest.raises(
        ConfigError, match=r'tag = "<BT>" has capitals, and corpus\.lowercase .*"<bt>"'
    ):
        load_recipe({"corpus": corpus | {"lowercase": True}})
