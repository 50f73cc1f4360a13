"""Sources with target words beside their own, in one pair and in a prepared corpus."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from random import Random

import pytest

from dragoman.base.errors import DragomanError
from dragoman.corpus.directions import Direction
from dragoman.corpus.links import Linked, Pair, same_words
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.stand_ins import PLACEHOLDERS, TERM, TERM_END
from dragoman.corpus.subword import Subword
from dragoman.corpus.terms import Forms, terms
from parallel_text import small_corpus, write_pairs
from real_text import real_lines

SHOWN = re.compile(rf"{TERM} ([^{TERM_END}]+){TERM_END}")
PAIR = ("Open all Zellen of the table in Calc.", "Öffnen Sie alle Zellen der Tabelle in Calc.")


def same(pair: Pair) -> Linked:
    return same_words(pair, Direction("en", "de"))


def test_the_target_words_are_shown_as_they_are_or_in_another_form() -> None:
    forms = Forms(["Eine Zelle, viele ZELLEN, Zellkern, Zellenbereiche", "Calc"])
    make = partial(terms, forms, has_placeholders=False)
    shown: set[str] = set()
    copies = [make(PAIR, same, Random(seed)) for seed in range(300)]
    assert copies.count(None) < 30
    for copy in filter(None, copies):
        assert copy[1] == PAIR[1]
        assert SHOWN.sub("", copy[0]) == PAIR[0]
        shown |= {*SHOWN.findall(copy[0])}
    cells = {"Zellen", "Zelle", "ZELLEN"}
    whole = {f"{form} der Tabelle in Calc" for form in cells}
    assert shown == cells | whole | {"in", "Calc", "in Calc"}
    assert make(("Click here.", "Hier klicken."), same, Random(1)) is None


def test_a_term_holds_no_placeholder() -> None:
    copies = [terms(Forms([]), PAIR, same, Random(seed), has_placeholders=True)
              for seed in range(300)]  # fmt: skip
    sources = [copy[0] for copy in copies if copy is not None]
    with_both = [text for text in sources if any(sign in text for sign in PLACEHOLDERS)]
    assert with_both
    assert not any(sign in words for text in sources for words in SHOWN.findall(text)
                   for sign in PLACEHOLDERS)  # fmt: skip


def test_a_short_word_and_one_alone_have_no_other_form() -> None:
    forms = Forms(["der die das dem Zelle"])
    assert [forms.other(word, Random(1)) for word in ("der", "Zelle")] == ["der", "Zelle"]


def test_a_prepared_corpus_shows_words_that_the_table_links(tmp_path: Path) -> None:
    lines = tuple(real_lines("train", language)[:7000] for language in ("en", "de"))
    train = (write_pairs(tmp_path, "train", (lines[0], lines[1])),)
    subword = {"vocab_size": 2000}
    config = small_corpus(tmp_path, train=train, subword=subword, augment={"terms": 0.3})
    manifest = prepare(config, tmp_path / "out", workers=1)
    assert manifest.train.copies["terms"] > 0.2 * manifest.train.kept
    vocabulary = Subword.load(tmp_path / "out/source.model")
    assert vocabulary.stand_ins == {TERM, TERM_END}
    shards = TokenShards(tmp_path / "out/train")
    as_in_target = in_another_form = with_terms = 0
    for row in range(shards.num_pairs):
        source, target = vocabulary.decode(
            [shards.source(row).tolist(), shards.target(row).tolist()]
        )
        assert TERM not in target
        assert source.count(TERM) == source.count(TERM_END) == len(SHOWN.findall(source))
        for words in SHOWN.findall(source):
            if words in target:
                as_in_target += 1
            else:
                in_another_form += 1
        with_terms += TERM in source
    assert with_terms == manifest.train.copies["terms"]
    assert 0.1 * as_in_target < in_another_form < 0.7 * as_in_target
    for split in ("valid", "test"):
        assert TERM not in (tmp_path / "out" / split / "source.txt").read_text()


def test_two_vocabularies_are_refused(tmp_path: Path) -> None:
    with pytest.raises((ValueError, DragomanError), match="joint"):
        small_corpus(tmp_path, augment={"terms": 0.1}, subword={"joint": False})
