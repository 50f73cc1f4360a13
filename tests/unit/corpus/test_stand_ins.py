"""Pieces that stand for what is kept: in copies of pairs, in vocabularies and in rows."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from dragoman.base.errors import DragomanError
from dragoman.corpus import stand_ins
from dragoman.corpus.directions import Direction
from dragoman.corpus.links import Linked, Pair, same_words
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.subword import Subword
from dragoman.inference import inline
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


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("the (red) cat", "the( red) cat"),
        ("(red) cat", "( red) cat"),
        ("a (cat)", "a( cat)"),
        ("a [(red) cat] x", "a[( red) cat] x"),
        ("a (red) [cat].", "a( red)[ cat]."),
        ("un(believ)able", "un(believ)able"),
        ("(cat)", "( cat)"),
        ("a (P), b", "a( P), b"),
    ],
)
def test_the_pieces_of_tags_stand_before_spaces_and_come_back(written: str, read: str) -> None:
    signs = "()[]"
    pieces = [stand_ins.TAGS[number] for number in (0, stand_ins.MOST, 1, stand_ins.MOST + 1)]
    table = str.maketrans(dict(zip(signs, pieces, strict=True)))
    assert stand_ins.before_spaces(written.translate(table)) == read.translate(table)
    assert stand_ins.beside_words(read.translate(table)) == written.translate(table)
    assert stand_ins.before_spaces(read.translate(table)) == read.translate(table)


def test_tags_stand_around_words_that_translate_each_other() -> None:
    pair = ("Open Writer or Calc with LibreOffice 7.", "Mit LibreOffice 7 Writer oder Calc öffnen.")
    opening, closing = stand_ins.OPENING, stand_ins.CLOSING
    shown: set[tuple[str, ...]] = set()
    for seed in range(400):
        copy = stand_ins.tags(pair, same, Random(seed))
        assert copy is not None
        signs = [[sign for sign in side if sign in stand_ins.ALL] for side in copy]
        assert sorted(signs[0]) == sorted(signs[1])
        assert inline.agree("".join(signs[0]), "".join(signs[1]))
        if len(signs[0]) == 2 and signs[0][0] in opening and signs[0][1] in closing:
            shown.add(tuple(inline.by_signs(stand_ins.beside_words(side))[2] for side in copy))
    assert {("Writer", "Writer"), ("LibreOffice 7", "LibreOffice 7")} <= shown
    assert ("Writer or Calc", "Writer oder Calc") in shown
    names = {"Writer", "Calc", "LibreOffice", "7"}
    for source, target in shown:
        assert names.intersection(source.split()) == names.intersection(target.split())
    assert stand_ins.tags(("Click here.", "Hier klicken."), same, Random(1)) is None


def test_a_table_links_words_of_two_languages(tmp_path: Path) -> None:
    lines = tuple(real_lines("train", language)[:7000] for language in ("en", "de"))
    train = (write_pairs(tmp_path, "train", (lines[0], lines[1])),)
    changes = {"placeholders": 0.3, "tags": 0.3}
    subword = {"vocab_size": 2000}
    config = small_corpus(tmp_path, train=train, subword=subword, augment=changes)
    manifest = prepare(config, tmp_path / "out", workers=1)
    kept = manifest.train.kept
    for name in changes:
        assert manifest.train.copies[name] > 0.2 * kept, "most of the drawn pairs have copies"
    vocabulary = Subword.load(tmp_path / "out/source.model")
    shards = TokenShards(tmp_path / "out/train")
    around = Counter[tuple[str, str]]()
    for row in range(shards.num_pairs):
        texts = vocabulary.decode([shards.source(row).tolist(), shards.target(row).tolist()])
        signs = [inline.signs_of(text) for text in texts]
        assert inline.agree(*signs), texts
        if re.fullmatch(f"[{stand_ins.OPENING[0]}-{stand_ins.OPENING[-1]}].", signs[0]):
            inner = [inline.by_signs(stand_ins.beside_words(text))[2] for text in texts]
            around[inner[0].lower(), inner[1].lower()] += 1
    words = {"cell": "zelle", "table": "tabelle", "text": "text", "and": "und", "the": "die"}
    for source, target in words.items():
        found = {other: count for (one, other), count in around.items() if one == source}
        assert not found or max(found, key=lambda one: found[one]).startswith(target[:3]), found
    assert sum(around.values()) > 200


def test_tags_are_refused_without_placeholders(tmp_path: Path) -> None:
    with pytest.raises((ValueError, DragomanError), match="placeholders"):
        small_corpus(tmp_path, augment={"tags": 0.1})


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
