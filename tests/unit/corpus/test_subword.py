from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import sentencepiece

from dragoman.base.errors import CorpusError
from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.normalize import normalize
from dragoman.corpus.shards import BOS, EOS, PAD, UNK, TokenRows
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.corpus.vocabulary import RowEncoder
from real_text import real_lines


@pytest.fixture(scope="session")
def captions() -> list[str]:
    return normalize("\n".join([*real_lines("train", "en"), *real_lines("train", "de")])).split(
        "\n"
    )


def train(texts: list[str], **settings: object) -> bytes:
    return train_on_words(count_words(texts), SubwordConfig.model_validate(settings))


def load(folder: Path, model: bytes) -> Subword:
    (folder / "some.model").write_bytes(model)
    return Subword.load(folder / "some.model")


def rows(encoded: TokenRows) -> list[list[int]]:
    ends = np.cumsum(encoded.lengths)
    return [part.tolist() for part in np.split(encoded.ids, ends[:-1])]


def test_bpe_from_word_counts_equals_sentencepiece_bpe_from_sentences(
    captions: list[str],
) -> None:
    whole = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(captions),
        model_writer=whole,
        model_type="bpe",
        vocab_size=4000,
        character_coverage=1.0,
        normalization_rule_name="identity",
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    models = [
        sentencepiece.SentencePieceProcessor(model_proto=model)
        for model in (train(captions, vocab_size=4000), whole.getvalue())
    ]
    ours, theirs = [
        [(model.id_to_piece(i), model.get_score(i)) for i in range(4000)] for model in models
    ]
    assert ours == theirs


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_rows_equal_the_sentencepiece_encoding_of_whole_sentences(
    captions: list[str], tmp_path: Path, kind: Literal["bpe", "unigram"]
) -> None:
    config = SubwordConfig(kind=kind, vocab_size=2000)
    subword = load(tmp_path, train(captions[::10], **config.model_dump()))
    strange = ["", "a", "日本 b 語", "<s> </s> <unk>", "x" * 500, "new wörds ☃ here"]
    encoder = RowEncoder(subword, config)
    for texts in (captions[:3000] + strange, captions[2000:4000], strange):
        assert rows(encoder.encode(texts)) == subword.encode(texts)


def test_no_texts_are_no_rows(captions: list[str], tmp_path: Path) -> None:
    config = SubwordConfig(vocab_size=300)
    encoder = RowEncoder(load(tmp_path, train(captions[:300], **config.model_dump())), config)
    encoded = encoder.encode([])
    assert (len(encoded.ids), len(encoded.lengths)) == (0, 0)


def test_words_beyond_the_memory_are_encoded_all_the_same(
    captions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.corpus.vocabulary._KNOWN_WORDS", 50)
    config = SubwordConfig(vocab_size=1000)
    subword = load(tmp_path, train(captions[:2000], **config.model_dump()))
    encoder = RowEncoder(subword, config)
    for start in (0, 100, 50):
        texts = captions[start : start + 200]
        assert rows(encoder.encode(texts)) == subword.encode(texts)


def test_few_texts_and_many_give_the_same_ids_and_texts(
    captions: list[str], tmp_path: Path
) -> None:
    subword = load(tmp_path, train(captions[:2000], vocab_size=1000))
    texts = ["", " ", *captions[:40], "日本 ☃"]
    ids = subword.encode(texts)
    assert [subword.encode([text])[0] for text in texts] == ids
    assert [subword.decode([row])[0] for row in ids] == subword.decode(ids)


def test_decoding_gives_the_text_back_without_special_ids(
    captions: list[str], tmp_path: Path
) -> None:
    subword = load(tmp_path, train(captions, vocab_size=1000))
    ids = subword.encode(captions[:200])
    assert all(min(row) > EOS for row in ids)
    assert subword.decode(ids) == captions[:200]
    framed = [[BOS, *row, EOS, PAD, PAD] for row in ids]
    assert subword.decode(framed) == captions[:200]
    assert subword.decode([[UNK], []]) == ["", ""]
    assert subword.decode([]) == []
    assert subword.vocab_size == 1000
    assert "".join(subword.pieces(ids[0])).replace("▁", " ").strip() == captions[0]


def test_the_same_text_gives_the_same_bytes_in_any_order(captions: list[str]) -> None:
    texts = captions[:2000]
    assert train(texts, vocab_size=500) == train(texts[::-1], vocab_size=500)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_too_large_a_vocabulary_says_how_large_it_may_be(captions: list[str], kind: str) -> None:
    texts = captions[:300]
    with pytest.raises(
        CorpusError, match=r"corpus\.subword\.vocab_size: 90000 .*set it to"
    ) as error:
        train(texts, vocab_size=90_000, kind=kind)
    largest = int(error.value.remedy.split()[3])
    assert train(texts, vocab_size=largest, kind=kind)
    with pytest.raises(CorpusError):
        train(texts, vocab_size=largest + 1, kind=kind)


def test_too_small_a_vocabulary_says_how_large_it_must_be(captions: list[str]) -> None:
    with pytest.raises(CorpusError, match=r"20 is too small .* set it to more than") as error:
        train(captions[:300], vocab_size=20)
    smallest = int(error.value.remedy.split()[5].rstrip(","))
    assert train(captions[:300], vocab_size=smallest + 1)


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(CorpusError, match="no text to learn from"):
        train(["", ""], vocab_size=100)


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_a_broken_model_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "source.model").write_bytes(content)
    with pytest.raises(CorpusError, match=r"source\.model.*SentencePiece model"):
        Subword.load(tmp_path / "source.model")


def test_a_foreign_model_with_other_special_ids_is_refused(
    captions: list[str], tmp_path: Path
) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(captions[:300]), model_writer=model, vocab_size=300, minloglevel=2
    )
    with pytest.raises(CorpusError, match=r"has \(-1, 0, 1, 2\) as ids"):
        load(tmp_path, model.getvalue())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_rare_characters_are_spelt_in_bytes(captions: list[str], tmp_path: Path, kind: str) -> None:
    settings = {"kind": kind, "vocab_size": 800, "character_coverage": 0.99}
    tags = {"tags": ["<b>"], "tokens": ["<2de>"]}
    model = train_on_words(
        count_words(captions),
        SubwordConfig.model_validate({**settings, "byte_fallback": True}),
        **tags,
    )
    spelt, unknown = load(tmp_path, model), load(tmp_path, train(captions, **settings))
    rows_of_all = unknown.encode(captions)
    rare = [text for text, row in zip(captions, rows_of_all, strict=True) if UNK in row]
    assert rare
    assert spelt.decode(spelt.encode(rare)) == rare
    assert (spelt.tags, [*spelt.tokens]) == (("<b>",), ["<2de>"])
    assert len(spelt.unknown_ids) == 1 + 256
    assert not any(spelt.num_letters[number] for number in spelt.unknown_ids)
