"""Long texts are cut at sentences, words or pieces, and nothing of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.evaluation.sentences import cut_into_chunks
from real_text import real_lines

TEXT = (
    "A man sleeps in a green room on a couch. He dreams! Does he dream of dogs? Two dogs run: "
    'one says "Stop." The other does not. 一二三。四五六！七八九？ End'
)


@pytest.fixture(scope="module")
def subword() -> Subword:
    file = train_on_words(
        count_words([*TEXT.split(". "), "a b c d e f g h"]), SubwordConfig(vocab_size=90)
    )
    return Subword(SentencePieceProcessor(model_proto=file))


@pytest.mark.parametrize("max_pieces", [1, 2, 7, 20, 60, 10_000])
def test_chunks_are_short_enough_and_hold_the_whole_text(subword: Subword, max_pieces: int) -> None:
    text = " ".join([TEXT] * 5)
    chunks = cut_into_chunks(text, subword, max_pieces=max_pieces)
    assert all(0 < len(chunk) <= max_pieces for chunk in chunks)
    rebuilt = subword.decode([[piece for chunk in chunks for piece in chunk]])[0]
    assert rebuilt.replace(" ", "") == text.replace(" ", "")


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.text('abcdefgh.!?"', min_size=1, max_size=30), max_size=30),
    max_pieces=st.integers(1, 40),
)
def test_any_text_is_held_whole(subword: Subword, words: list[str], max_pieces: int) -> None:
    text = " ".join(words)
    chunks = cut_into_chunks(text, subword, max_pieces=max_pieces)
    assert all(0 < len(chunk) <= max_pieces for chunk in chunks)
    assert subword.decode([[piece for chunk in chunks for piece in chunk]]) == [text]


def test_sentences_that_fit_are_not_cut(subword: Subword) -> None:
    sentences = ["A man sleeps in a green room.", 'He says "Stop."', "Does he?", "End"]
    lengths = [len(ids) for ids in subword.encode(sentences)]
    chunks = cut_into_chunks(" ".join(sentences), subword, max_pieces=max(lengths))
    starts = {tuple(ids[:3]) for ids in subword.encode(sentences)}
    assert 1 < len(chunks) <= len(sentences)
    assert all(tuple(chunk[:3]) in starts for chunk in chunks)


def test_a_text_that_fits_is_one_chunk_and_no_text_is_none(subword: Subword) -> None:
    assert cut_into_chunks(TEXT, subword, max_pieces=10_000) == subword.encode([TEXT])
    assert cut_into_chunks("", subword, max_pieces=5) == []
    assert cut_into_chunks(" ", subword, max_pieces=5) == []


def test_real_text_joined_into_one_line_is_cut_between_its_sentences(
    subword: Subword,
) -> None:
    lines = real_lines("test", "en")[:50]
    lines = [line for line in lines if line.endswith(".")]
    longest = max(len(ids) for ids in subword.encode(lines))
    chunks = cut_into_chunks(" ".join(lines), subword, max_pieces=longest)
    assert all(text.endswith(".") for text in subword.decode(chunks))
