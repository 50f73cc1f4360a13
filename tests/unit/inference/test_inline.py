"""What a text must keep is never lost and never doubled, whatever the model does."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman
from dragoman.cli.command_line import main
from dragoman.corpus import stand_ins
from dragoman.corpus.normalize import normalize
from dragoman.formats.ctranslate2_engine import Candidate
from dragoman.inference import inline
from dragoman.inference.text import TextFormat, cut, paragraphs
from dragoman.inference.translator import Answers, EncodedTexts
from dragoman.model.config import SearchConfig
from real_text import real_lines
from served import keeping_bundle, serving
from small_run import keeping_run, small_run

P = stand_ins.PLACEHOLDERS
THINGS = (
    "{name}", "%s", "%(count)d", "{0}", "%1$s", "https://example.org/a?b=c", "info@example.org",
    "$USER", "{{ x }}", P[0],
)  # fmt: skip


def planted(seed: int) -> str:
    """A real sentence with up to eleven things in random places, also twice the same one."""
    chosen = random.Random(seed)
    words = chosen.choice(real_lines("test", "en")).replace("<", "").split(" ")
    for _ in range(chosen.choice((1, 1, 2, 3, 11))):
        thing = chosen.choice(THINGS)
        place = chosen.randrange(len(words) + 1)
        words.insert(place, chosen.choice((thing, f"({thing})", f"{thing},")))
    return " ".join(words)


def kept(text: str) -> Counter[str]:
    return Counter(stand_ins.KEPT.findall(text))


TEXTS = [planted(seed) for seed in range(150)]


@pytest.fixture(scope="module", params=["ctranslate2", "torch"])
def translator(request: pytest.FixtureRequest) -> Iterator[dragoman.Translator]:
    with dragoman.Translator(keeping_run(), engine=request.param) as opened:
        yield opened


@pytest.mark.parametrize("text_format", ["line", "document", "markup"])
def test_random_things_come_through_once_each(
    translator: dragoman.Translator, text_format: TextFormat
) -> None:
    texts = TEXTS if text_format == "line" else TEXTS[:50]
    for text, translation in zip(
        texts, translator.translate(texts, text_format=text_format), strict=True
    ):
        assert kept(translation) == kept(text), (text, translation)
        assert stand_ins.ALL.isdisjoint(translation.replace(P[0], "")), translation


def test_each_of_several_translations_has_them(translator: dragoman.Translator) -> None:
    for text, found in zip(TEXTS[:30], translator.translate(TEXTS[:30], n_best=3), strict=True):
        assert found
        for translation in found:
            assert kept(translation.text) == kept(text)


def test_servers_keep_them_in_both_interfaces_and_in_files() -> None:
    texts = TEXTS[:40]
    with serving(keeping_bundle(), "--threads", "1") as server:
        own = server.ask("/translate", {"text": texts, "alternatives": 1}).json["translations"]
        other = server.ask(
            "/libretranslate/translate", {"q": texts, "source": "en", "target": "de"}
        ).json["translatedText"]
        stream = server.ask("/translate/stream", {"text": "\n".join(texts)}).body.decode()
        subtitles = "1\n00:00:01,000 --> 00:00:02,000\n" + texts[0] + "\n"
        file = server.ask("/translate", {"text": subtitles, "format": "srt"}).json
    for text, one, line in zip(texts, own, other, strict=True):
        for translation in (one["text"], one["alternatives"][0]["text"], line):
            assert kept(translation) == kept(text), (text, translation)
    lines = [json.loads(line)["text"] for line in stream.splitlines()]
    assert kept("\n".join(lines)) == kept("\n".join(texts))
    assert kept(file["translations"][0]["text"]) == kept(texts[0])


def test_markdown_keeps_them(tmp_path: Path) -> None:
    source = tmp_path / "a.md"
    source.write_text("# Open {name}\n\n- Click %s, then `%s` and *{0}*.\n")
    out = tmp_path / "b.md"
    run = str(keeping_run().path)
    assert main(["translate", run, "--input", str(source), "--output", str(out)]) == 0
    assert kept(out.read_text()) == Counter({"{name}": 1, "%s": 2, "{0}": 1})


def test_a_model_without_the_pieces_translates_as_before() -> None:
    with dragoman.Translator(small_run()) as translator:
        (part,) = cut("Click {name}.", "line")
        assert part.things == ()
        assert translator.translate(["Click {name}."])


def test_in_markup_references_are_characters_and_unknown_names_are_kept() -> None:
    text = "Tom &amp; &brand; &lt;{a}&gt; https://a.org/?b=1&amp;c"
    (part,) = cut(text, "markup", stand_ins=stand_ins.ALL)
    assert part.source() == f"Tom & {P[0]} <{P[1]}> {P[2]}"
    assert part.written(f"{P[2]} & {P[1]} <{P[0]}") == (
        "https://a.org/?b=1&amp;c &amp; {a} &lt;&brand;"
    )


def test_a_text_with_more_things_than_pieces_is_cut_at_one() -> None:
    text = "Open " + ", ".join(f"{{{number}}}" for number in range(20)) + " now."
    parts = cut(text, "line", stand_ins=stand_ins.ALL)
    assert "".join(part.text for part in parts) == text
    assert [len(part.things) for part in parts if part.translated] == [8, 8, 2]
    assert [part.text for part in parts if "{8}" in part.text] == [" {8},"]


def read(text: str) -> list[str]:
    """The sentences of markup as the model reads them: 1 is a tag, ! its end, @ a placeholder."""
    table = dict.fromkeys(map(ord, P), "@")
    table |= {ord(sign): str(number) for number, sign in enumerate(stand_ins.OPENING)}
    table |= {ord(sign): "!" for sign in stand_ins.CLOSING}
    return [
        stand_ins.before_spaces(normalize(part.source())).translate(table)
        for part in cut(text, "markup", stand_ins=stand_ins.ALL)
        if part.translated
    ]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("<p>Click the <b>red</b> button.</p>", ["Click the0 red! button."]),
        ("Use <code>ls &lt;x&gt;</code>. Then <i>go</i>!", ["Use @.", "Then0 go!!"]),
        ("<b>Note</b> that", ["0 Note! that"]),
        ("<b>All is bold.</b> <i>And more.</i>", ["All is bold.", "And more."]),
        ("A <b><i>nested one</i> here</b> &amp; more", ["A01 nested one! here! & more"]),
        ("Hello <b>big. World</b> is", ["Hello @big.", "World@ is"]),
        ("One<br>two <img src=a> three", ["One", "two @ three"]),
        ("<doc>\n<x-p>Hi there</x-p>\n<x-p>Bye <x-q>now</x-q></x-p>\n</doc>",
         ["Hi there", "Bye0 now!"]),
        ("<span translate=no>Foo Bar</span> is good", ["@ is good"]),
        ("<b>e.g.</b> three. Dr. <i>Li</i> is here.", ["0 e.g.! three.", "Dr.0 Li! is here."]),
        ("<td>One</td><td>Two</td>", ["One", "Two"]),
        ("Press <kbd>A</kbd><kbd>B</kbd> now", ["Press @ now"]),
        ("Go <!-- quickly --> home", ["Go @ home"]),
    ],
)  # fmt: skip
def test_a_sentence_goes_through_tags_inside_a_line(text: str, sentences: list[str]) -> None:
    assert read(text) == sentences


WORDS = ["Click", "the", "red", "button.", "Then", "e.g.", "open", "it!", "(bar),", "&amp;", "y"]
TAGS = (
    "<b>", "</b>", "<i>", "</i>", '<a href="x>y">', "</a>", "<br>", "<img src=a>", "<p>", "</p>",
    "<code>q r</code>", '<span translate="no">Foo</span>', "<!-- c. -->", "{name}", "&nbsp;",
    "%s", "<x id=1/>", "\n", "</other>", "<pre>", "</pre>",
)  # fmt: skip
TAG = re.compile(r"<[^>]*>|\{name\}|%s")


def marked(seed: int) -> str:
    """Words with random tags between them and inside them."""
    chosen = random.Random(seed)
    return "".join(
        chosen.choice(TAGS)
        if chosen.random() < 0.4
        else chosen.choice(WORDS) + chosen.choice((" ", " ", ""))
        for _ in range(chosen.randrange(1, 40))
    )


def test_random_markup_is_cut_without_loss_and_comes_back() -> None:
    for seed in range(1500):
        text = marked(seed)
        parts = cut(text, "markup", stand_ins=stand_ins.ALL)
        assert "".join(part.text for part in parts) == text
        back = "".join(
            part.written(stand_ins.before_spaces(normalize(part.source().replace("\n", " "))))
            if part.translated
            else part.text
            for part in parts
        )
        assert TAG.findall(back) == TAG.findall(text)
        assert re.sub(r"\s|&nbsp;", "", back) == re.sub(r"\s|&nbsp;", "", text)
        assert "\n".join(paragraphs(text, "markup")) == text


def test_random_tags_come_through_once_each(translator: dragoman.Translator) -> None:
    texts = [marked(seed) for seed in range(60)]
    for text, translation in zip(
        texts, translator.translate(texts, text_format="markup"), strict=True
    ):
        assert Counter(TAG.findall(translation)) == Counter(TAG.findall(text)), (text, translation)
        assert stand_ins.ALL.isdisjoint(translation)


def test_servers_keep_tags_in_both_interfaces_and_in_files() -> None:
    texts = [marked(seed).replace("<pre>", "") for seed in range(100, 130)]
    page = "<p>" + "</p>\n<p>".join(text.replace("\n", " ") for text in texts) + "</p>"
    with serving(keeping_bundle(), "--threads", "1") as server:
        own = server.ask("/translate", {"text": texts, "format": "html"}).json["translations"]
        question = {"q": texts, "source": "en", "target": "de", "format": "html"}
        other = server.ask("/libretranslate/translate", question).json["translatedText"]
        stream = server.ask("/translate/stream", {"text": page, "format": "html"}).body.decode()
    for text, one, line in zip(texts, own, other, strict=True):
        for translation in (one["text"], line):
            assert Counter(TAG.findall(translation)) == Counter(TAG.findall(text)), text
    lines = [json.loads(line)["text"] for line in stream.splitlines()]
    assert Counter(TAG.findall("\n".join(lines))) == Counter(TAG.findall(page))


@pytest.mark.parametrize(
    "text",
    ["<b>" * 20_000, "<b>x " * 10_000 + "</b>" * 10_000, "<code>" * 10_000,
     "x <i>y</i>. " * 8_000, "<b>x" * 20_000],
)  # fmt: skip
def test_hostile_markup_is_cut_in_linear_time(text: str) -> None:
    assert "".join(part.text for part in cut(text, "markup", stand_ins=stand_ins.ALL)) == text


OPENING, CLOSING = stand_ins.OPENING, stand_ins.CLOSING
SHORT = str.maketrans(
    dict(zip("([{)]}@", (*OPENING[:3], *CLOSING[:3], P[0]), strict=True))
)  # fmt: skip
"""Brackets for tags and their ends, @ for a placeholder."""


@pytest.mark.parametrize(
    ("source", "translation", "holds"),
    [
        ("()", "()", True),
        ("()@", "@()", True),
        ("()", ")(", False),
        ("()[]", "([])", True),
        ("()[]", "([)]", False),
        ("()", "())", False),
        ("(", "(", True),
        ("(@", "@(", True),
        (")@", "@)", True),
        (")[]", "[)]", False),
        ("([", "[(", False),
    ],
)
def test_a_translation_has_each_piece_once_and_tags_nest(
    source: str, translation: str, holds: bool
) -> None:
    assert inline.agree(source.translate(SHORT), translation.translate(SHORT)) is holds


def test_tags_are_put_around_a_word_at_least() -> None:
    for seed in range(300):
        chosen = random.Random(seed)
        words = [chosen.choice(WORDS) for _ in range(chosen.randrange(1, 9))]
        for number in range(chosen.randrange(1, 4)):
            first = chosen.randrange(len(words))
            last = chosen.randrange(first, len(words))
            words[first] = OPENING[number] + words[first]
            words[last] += CLOSING[number]
        source = stand_ins.before_spaces(" ".join(words))
        translation = " ".join(chosen.choice(WORDS) for _ in range(chosen.randrange(1, 9)))
        found = inline.placed(source, translation)
        assert inline.signs_of(found) == inline.signs_of(source)
        text = inline.without_signs(stand_ins.beside_words(found))
        assert text.split() == translation.split(), (source, translation, found)


@pytest.mark.parametrize(
    ("source", "translation", "result"),
    [
        (f"Click {P[0]} now.", "Jetzt hier klicken.", f"Jetzt hier {P[0]} klicken."),
        (f"{P[0]} is open.", "Ist offen.", f"{P[0]} Ist offen."),
        (f"Open {P[0]}", "Offen", f"Offen {P[0]}"),
        (f"{P[0]} {P[1]}", "", f"{P[0]} {P[1]}"),
        (f"Open {P[0]} and {P[1]}", "打开文件然后再打开另一个文件然后再次打开", None),
    ],
)
def test_pieces_are_put_between_words_at_their_share_of_the_length(
    source: str, translation: str, result: str | None
) -> None:
    found = inline.placed(source, translation)
    assert result in (None, found.strip())
    assert inline.signs_of(found) == inline.signs_of(source)
    assert inline.without_signs(found).replace(" ", "") == translation.replace(" ", "")


def test_a_wider_search_is_asked_before_the_text_without_pieces() -> None:
    with dragoman.Translator(keeping_run()) as translator:
        opened = translator._opened.translator
    encoded: EncodedTexts = opened.encode(["Open {name} now."], "line")
    target = opened.subwords[1]
    (without,) = target.encode_plain(["Jetzt offen."])
    (twice,) = target.encode_plain([f"{P[0]} {P[0]} offen."])
    (right,) = target.encode_plain([f"Jetzt {P[0]} offen."])
    answers = Answers(encoded, SearchConfig(beam_size=2), 1)
    first = answers.wanted()
    assert first is not None
    assert (first.settings.beam_size, first.num_hypotheses) == (2, 1)
    answers.take([[Candidate(without, -1.0)]])
    second = answers.wanted()
    assert second is not None
    assert (second.rows, second.settings.beam_size, second.num_hypotheses) == (encoded.rows, 8, 8)
    answers.take([[Candidate(twice, -1.0), Candidate(right, -2.0), Candidate(without, -3.0)]])
    assert answers.wanted() is None
    assert answers.translations()[0][0].text == "Jetzt {name} offen."
    answers = Answers(encoded, SearchConfig(beam_size=2), 1)
    answers.take([[Candidate(without, -1.0)]])
    answers.take([[Candidate(twice, -1.0)]])
    third = answers.wanted()
    assert third is not None
    assert opened.subwords[0].decode([*third.rows]) == ["Open now."]
    answers.take([[Candidate(without, -1.0)]])
    assert answers.wanted() is None
    assert answers.translations()[0][0].text == "Jetzt {name} offen."
