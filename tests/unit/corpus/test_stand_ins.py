"""Pieces that stand for what is kept: in copies of pairs, in vocabularies and in rows."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Literal

import pytest

from dragoman.corpus import stand_ins
from dragoman.corpus.directions import Direction
from dragoman.corpus.links import Linked, Pair, same_words
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.subword import Subword
from parallel_text import small_corpus, write_pairs
from real_text import real_lines

KEPT = [
    "{name}", "{0}", "${x.y}", "{{ user }}", "{}", "%s", "%d", "%1$s", "%(count)d", "%5.2f", "%1",
    "%@", "$USER", "https://example.org/a?b=c&d=(e)&f", "http://localhost:8080", "www.debian.org",
    "jane.doe@mail.test", "&brand;", stand_ins.PLACEHOLDERS[3],
]  # fmt: skip
TEXT = [
    "100%ige", "5 % der", "50%d", "a {b c} d", "US$ 5", "$5", "R&D;", "name@", "@home", "{",
    "http://", "12:30", "Tom & Anna; so", "100%",
]  # fmt: skip


@pytest.mark.parametrize("thing", KEPT)
def test_what_is_kept_is_found_whole_inside_a_sentence(thing: str) -> None:
    for before, after in (("See ", " now."), ("", ": here"), ("(", ")"), ("See ", "."), ("", "")):
        found = stand_ins.KEPT.findall(f"{before}{thing}{after}")
        assert found == [thing], (before, after)


@pytest.mark.parametrize("text", TEXT)
def test_ordinary_text_is_not_kept(text: str) -> None:
    assert stand_ins.KEPT.findall(f"See {text} now.") == []


@pytest.mark.parametrize(
    "text",
    [
        "http://" + "." * 200_000,
        "a" * 200_000,
        "http://." * 50_000,
        "{" * 200_000,
        "%(" * 100_000,
        "{a" * 100_000,
        "a-" * 100_000,
    ],
)
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    stand_ins.KEPT.findall(text)  # in quadratic time it would take minutes


def same(pair: Pair) -> Linked:
    return same_words(pair, Direction("en", "de"))


def without_links(_pair: Pair) -> Linked:
    return Linked(([], []), [])


def test_both_sides_have_the_same_pieces_for_what_stands_once_on_both() -> None:
    pair = ("Click %s in LibreOffice 7.", "Klicken Sie in LibreOffice 7 auf %s.")
    copies = [stand_ins.placeholders(pair, same, Random(seed)) for seed in range(300)]
    shown = set()
    for copy in copies:
        assert copy is not None
        source, target = copy
        signs = [sign for sign in source if sign in stand_ins.ALL]
        assert sorted(signs) == signs, "in the order of the source"
        assert sorted(signs) == sorted(sign for sign in target if sign in stand_ins.ALL)
        assert "%s" not in source + target, "a placeholder of the text always becomes a piece"
        shown.add("".join("P" if letter in stand_ins.ALL else letter for letter in source))
    assert shown == {
        "Click P in LibreOffice 7.", "Click P in P 7.", "Click P in LibreOffice P.",
        "Click P in P P.",
    }  # fmt: skip
    for nothing in (
        ("Click here.", "Hier klicken."),
        ("In it.", "In ihm."),
        ("7 of 7", "7 von 7"),
        ("7 of 8", "9 von 10"),
    ):
        assert stand_ins.placeholders(nothing, without_links, Random(1)) is None, nothing


@pytest.mark.system
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_prepared_corpus_has_whole_pieces_for_them(
    kind: Literal["bpe", "unigram"], tmp_path: Path
) -> None:
    lines = tuple(real_lines("train", language)[:1500] for language in ("en", "de"))
    train = (write_pairs(tmp_path, "train", (lines[0], lines[1])),)
    subword = {"vocab_size": 600, "kind": kind}
    config = small_corpus(tmp_path, train=train, subword=subword, augment={"placeholders": 1.0})
    manifest = prepare(config, tmp_path / "out", workers=1)
    vocabulary = Subword.load(tmp_path / "out/source.model")
    assert vocabulary.stand_ins == {*stand_ins.PLACEHOLDERS}
    shards = TokenShards(tmp_path / "out/train")
    with_signs = 0
    for row in range(shards.num_pairs):
        source, target = shards.source(row).tolist(), shards.target(row).tolist()
        signs = [
            sorted(piece for piece in vocabulary.pieces(ids) if piece in stand_ins.ALL)
            for ids in (source, target)
        ]
        assert signs[0] == signs[1]
        with_signs += bool(signs[0])
        (text,) = vocabulary.decode([source])
        assert vocabulary.encode_plain([text]) == [source]
    assert with_signs == manifest.train.copies["placeholders"] > 100
    for split in ("valid", "test"):
        text = (tmp_path / "out" / split / "source.txt").read_text()
        assert stand_ins.ALL.isdisjoint(text)


def test_a_vocabulary_without_the_share_has_none(tmp_path: Path) -> None:
    prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)
    assert not Subword.load(tmp_path / "out/source.model").stand_ins
