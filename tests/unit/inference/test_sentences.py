"""Where sentences end, and that nothing is lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.evaluation.sentences import split_sentences
from dragoman.inference.text import TextFormat, cut
from known_ends import known_paragraphs


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A man. A dog runs!", ["A man.", "A dog runs!"]),
        ("He said “Stop.” Then he left.", ["He said “Stop.”", "Then he left."]),
        ("Dr. Who met J. S. Bach.", ["Dr. Who met J. S. Bach."]),
        ("Am 3. Mai, z. B. hier. Und dort.", ["Am 3. Mai, z. B. hier.", "Und dort."]),
        ("It costs 3.50 euros. Cheap!", ["It costs 3.50 euros.", "Cheap!"]),
        ("one\ntwo", ["one", "two"]),
        ("one.\ntwo", ["one.", "two"]),
        ("see no. \n nine", ["see no.", "nine"]),
        ("一。二！", ["一。", "二！"]),
        ("Really?! Yes…  No", ["Really?!", "Yes…", "No"]),
        ("version 1. and more", ["version 1. and more"]),
        ("in vol. 4. On Jan. 5, Gov. Smith left.", ["in vol. 4. On Jan. 5, Gov. Smith left."]),
        ("Smith et al. (2020) and MR. BROWN.", ["Smith et al. (2020) and MR. BROWN."]),
        ("Nach ART. 5 Abs. 2 gilt das.", ["Nach ART. 5 Abs. 2 gilt das."]),
        ("Laut Gem. § 5 gilt: max. €5.", ["Laut Gem. § 5 gilt: max. €5."]),
        ("Vol. IV and No. #5. He ran. I won.", ["Vol. IV and No. #5.", "He ran.", "I won."]),
        ("देखें पृ. ५ और खं. (२)।", ["देखें पृ. ५ और खं. (२)।"]),
        ("They counted the votes. 20 were lost.", ["They counted the votes.", "20 were lost."]),
        ("„Halt!“ Er ging. »Nein.« Ja.", ["„Halt!“", "Er ging.", "»Nein.«", "Ja."]),
        ("« Il pleut. » Elle part.", ["« Il pleut. »", "Elle part."]),
        ("“Really?” he asked. Oh! yes", ["“Really?” he asked.", "Oh!", "yes"]),
        ("３．５です。１．はじめ．次．終", ["３．５です。", "１．はじめ．", "次．", "終"]),
        ("He paid; she left: all went", ["He paid; she left: all went"]),
        ("See a.b.c?q=1 and x!y", ["See a.b.c?q=1 and x!y"]),
        ("ფაილი ვერ მოიძებნა. სცადეთ! გსურთ?", ["ფაილი ვერ მოიძებნა.", "სცადეთ!", "გსურთ?"]),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert [sentence for sentence, _ in split_sentences(text)] == sentences


@pytest.mark.parametrize("language", known_paragraphs())
def test_known_ends_in_every_language(language: str) -> None:
    paragraph, sentences = known_paragraphs()[language]
    assert [sentence for sentence, _ in split_sentences(paragraph)] == sentences
    assert "".join(map("".join, split_sentences(paragraph))) == paragraph


@given(st.text(alphabet="aB. !?\n\t\"'”1。…։।۔．»«;:αրr3-", max_size=60))
def test_the_parts_put_together_are_the_text(text: str) -> None:
    assert "".join(sentence + space for sentence, space in split_sentences(text)) == text


@given(st.text(alphabet="ab<>/&;. !-\n", max_size=60), st.sampled_from(["document", "markup"]))
def test_no_format_loses_anything(text: str, text_format: TextFormat) -> None:
    assert "".join(part.text for part in cut(text, text_format)) == text


def test_tags_are_kept_and_text_between_them_is_translated() -> None:
    text = '<p class="a">One.  Two &amp; three</p>\n\n<!-- no --><script>x < 1</script> <br> 17 %'
    parts = cut(text, "markup")
    assert [part.source() for part in parts if part.translated] == ["One.", "Two & three"]
    assert "".join(part.text for part in parts) == text
    assert parts[1].written("<1 & 2>") == "&lt;1 &amp; 2&gt;"


@pytest.mark.parametrize(
    "markup",
    [
        "<dl><dt translate=no>Keep<dd>Go.</dl>",
        "<table><tr><td class=notranslate>Keep<tr><td>Go.</table>",
        "<table><tr><th translate=no>Keep<td>Go.</table>",
        "<p translate=no>Keep<h2>Go.</h2>",
        "<p class=notranslate>Keep<ul><li>Go.</ul>",
        "<select><option translate=no>Keep<optgroup><option>Go.</select>",
        "<table translate=no><tr><td>Keep<table><tr><td>Keep</table>Keep</table>Go.",
    ],
)
def test_an_element_ends_where_html_lets_its_end_tag_be_left_out(markup: str) -> None:
    assert [part.text for part in cut(markup, "markup") if part.translated] == ["Go."]


@pytest.mark.system
@pytest.mark.parametrize(
    "run", ["!", " ", '!"', ".) ", "\n ", "。", "Dr. ", "! »", '।" ', "。 ", "５．"]
)
def test_megabytes_of_the_same_lose_nothing(run: str) -> None:
    # With a pattern that looks at each mark anew this would take the better part of an hour.
    text = run * (2_000_000 // len(run))
    assert "".join(part for pair in split_sentences(text) for part in pair) == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a<!-- b > c -->d", ["<!-- b > c -->"]),
        ("a<!-- b > c", ["<!-- b >"]),
        ("a<!DOCTYPE html>b<?php x > y ?>c", ["<!DOCTYPE html>", "<?php x > y ?>"]),
        ("<STYLE>a<b</Style >c", ["<STYLE>a<b</Style >"]),
        ("<script>a<b>c", ["<script>", "<b>"]),
        ("<scripted>a</scripted>", ["<scripted>", "</scripted>"]),
        ("<ſcript>a", []),
        ("1 < 2 <3> a<b", []),
        ("<a <b>c", ["<b>"]),
    ],
)
def test_tags_are_recognised_among_other_angle_brackets(text: str, kept: list[str]) -> None:
    found = []
    for part in cut(text, "markup"):
        inside = [part.text[thing.start : thing.end] for thing in part.things]
        found += inside if part.translated else [part.text]
    assert [one for one in found if one.startswith("<")] == kept


@pytest.mark.parametrize(
    "run", ["<!--", "<!", "<?", "<script ", "<style>", "</", "<a", "&#", "-->"]
)
def test_markup_that_never_ends_loses_nothing(run: str) -> None:
    # With a pattern that looks for the end from each beginning anew this would take very long.
    text = run * (300_000 // len(run))
    assert "".join(part.text for part in cut(text, "markup")) == text


@pytest.mark.parametrize(
    ("number", "character"),
    [("9" * 5000, "\ufffd"), ("0" * 5000, "\ufffd"), ("0" * 5000 + "65", "A"), ("8364", "€")],
)
def test_references_of_any_length_are_read(number: str, character: str) -> None:
    (part,) = cut(f"a&#{number};b", "markup")
    assert part.source() == f"a{character}b"
