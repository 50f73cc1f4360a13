"""What a text must keep is never lost and never doubled, whatever the model does."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.cli.command_line import main
from dragoman.corpus import stand_ins
from dragoman.corpus.normalize import normalize
from dragoman.formats.ctranslate2_engine import Candidate
from dragoman.inference import inline
from dragoman.inference.tags import CLOSING, OPENING, AttendedRow, with_tags, without_tags
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


@pytest.mark.system
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


@pytest.mark.system
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


def test_a_model_without_placeholders_keeps_tags_alone() -> None:
    (part,) = cut("Click {name}.", "line")
    assert part.things == ()
    text = "Click <b>{name}</b> or <code>ls</code> and <i>go</i>."
    parts = cut(text, "markup")
    assert "".join(part.text for part in parts) == text
    assert [part.text for part in parts if part.translated] == [
        "Click <b>{name}</b> or", "and <i>go</i>.",
    ]  # fmt: skip
    with dragoman.Translator(small_run()) as translator:
        assert translator.translate(["Click {name}."])
        (found,) = translator.translate([text], text_format="markup")
    assert TAG.findall(found.replace("{name}", "")) == TAG.findall(text.replace("{name}", ""))


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
    """The sentences of markup: 1 is a tag, ! its end, @ a placeholder."""
    table = dict.fromkeys(map(ord, P), "@")
    table |= {ord(sign): str(number) for number, sign in enumerate(OPENING)}
    table |= {ord(sign): "!" for sign in CLOSING}
    return [
        normalize(part.source()).translate(table)
        for part in cut(text, "markup", stand_ins=stand_ins.ALL)
        if part.translated
    ]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("<p>Click the <b>red</b> button.</p>", ["Click the 0red! button."]),
        ("Use <code>ls &lt;x&gt;</code>. Then <i>go</i>!", ["Use @.", "Then 0go!!"]),
        ("<b>Note</b> that", ["0Note! that"]),
        ("<b>All is bold.</b> <i>And more.</i>", ["All is bold.", "And more."]),
        ("A <b><i>nested one</i> here</b> &amp; more", ["A 01nested one! here! & more"]),
        ("Hello <b>big. World</b> is", ["Hello 0big.", "World! is"]),
        ("One<br>two <img src=a> three", ["One", "two 0 three"]),
        ("<doc>\n<x-p>Hi there</x-p>\n<x-p>Bye <x-q>now</x-q></x-p>\n</doc>",
         ["Hi there", "Bye 0now!"]),
        ("<span translate=no>Foo Bar</span> is good", ["@ is good"]),
        ("<b>e.g.</b> three. Dr. <i>Li</i> is here.", ["0e.g.! three.", "Dr. 0Li! is here."]),
        ("<td>One</td><td>Two</td>", ["One", "Two"]),
        ("Press <kbd>A</kbd><kbd>B</kbd> now", ["Press @ now"]),
        ("Go <!-- quickly --> home", ["Go 0 home"]),
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
            part.written(normalize(part.source().replace("\n", " ")))
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


@pytest.mark.system
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


@pytest.mark.system
@pytest.mark.parametrize(
    "text",
    ["<b>" * 20_000, "<b>x " * 10_000 + "</b>" * 10_000, "<code>" * 10_000,
     "x <i>y</i>. " * 8_000, "<b>x" * 20_000],
)  # fmt: skip
def test_hostile_markup_is_cut_in_linear_time(text: str) -> None:
    assert "".join(part.text for part in cut(text, "markup", stand_ins=stand_ins.ALL)) == text


def test_a_long_sentence_is_cut_at_each_tag() -> None:
    for words, things in ((20, [2]), (2000, [0, 0, 0])):
        text = "some words " * words + "<b>here</b> now"
        parts = cut(text, "markup")
        assert "".join(part.text for part in parts) == text
        assert [len(part.things) for part in parts if part.translated] == things


SIGNS = {"<b>": OPENING[0], "</b>": CLOSING[0], "<i>": OPENING[1], "</i>": CLOSING[1]}
"""In the tests below <x> is a tag without an end."""


def signed(text: str) -> str:
    """A text with characters in place of its tags."""
    for tag, sign in {**SIGNS, "<x>": OPENING[2]}.items():
        text = text.replace(tag, sign)
    return text


def attended(text: str, translation: str, looks_at: dict[str, str]) -> AttendedRow:
    """A row whose pieces are words, each of which looks at one of the text or at all."""
    source = re.findall(r"\w+|[^\w\s]", without_tags(signed(text)))
    target = re.findall(r"\w+|[^\w\s]", translation)
    weights = np.array(
        [[1.0 if looks_at.get(word) == other else 0.01 for other in source] for word in target]
    )
    return AttendedRow(source, target, translation, weights.astype(np.float32))


GOES = {
    "Klicke": "Click",
    "auf": "Click",
    "rote": "red",
    "Feld": "field",
    "jetzt": "now",
    "das": "the",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Click the <b>red</b> field now.", "Klicke jetzt auf das <b>rote</b> Feld."),
        ("Click the red field <b>now</b>.", "Klicke <b>jetzt</b> auf das rote Feld."),
        ("Click <b>the red field</b> now.", "Klicke jetzt auf <b>das rote Feld</b>."),
        ("Click <b>the <i>red</i> field</b> now.",
         "Klicke jetzt auf <b>das <i>rote</i> Feld</b>."),
        ("<b><i>Click</i></b> the red field now.",
         "<b><i>Klicke</i></b> jetzt auf das rote Feld."),
        ("Click the <b>red</b> <i>field</i> now.",
         "Klicke jetzt auf das <b>rote</b> <i>Feld</i>."),
        ("<b>Click the red field now.</b>", "<b>Klicke jetzt auf das rote Feld.</b>"),
        ("Click the <x> red field now.", "Klicke jetzt auf das <x> rote Feld."),
        ("Click the <x>red field now.", "Klicke jetzt auf das <x>rote Feld."),
        ("Click the <b></b>red field now.", "Klicke jetzt auf das <b></b>rote Feld."),
        ("Click the red</b> field now.", "Klicke jetzt auf das rote</b> Feld."),
        ("Click the red field now<x>.", "Klicke jetzt auf das rote Feld<x>."),
        ("Click the red field now<b>.</b>", "Klicke jetzt auf das rote Feld<b>.</b>"),
        ("Click the r<b>e</b>d field now.", "Klicke jetzt auf das <b>rote</b> Feld."),
    ],
)  # fmt: skip
def test_a_tag_stands_around_the_words_that_look_at_its_words(text: str, expected: str) -> None:
    row = attended(text, without_tags(signed(expected)), GOES)
    assert with_tags(signed(text), [row]) == signed(expected)


def test_words_that_tags_have_parted_stay_apart() -> None:
    for text, plain in {
        "<b>One</b><i>Two</i>": "One Two", "x<b>2</b>y": "x2y", "a<x>b": "a b", "a <x> b": "a b",
        "a<b> b</b>": "a b", "Foo<b>Bar</b>": "FooBar", "<x>a": "a", "a <x>": "a ",
    }.items():  # fmt: skip
        assert without_tags(signed(text)) == plain, text


def test_each_piece_of_a_script_without_spaces_may_have_a_tag() -> None:
    pieces = ["打开", "红色", "文件"]
    row = AttendedRow(["Open", "red", "file"], pieces, "打开红色文件", np.eye(3, dtype=np.float32))
    assert with_tags(signed("Open <b>red</b> file"), [row]) == signed("打开<b>红色</b>文件")


def test_a_placeholder_keeps_its_tag_whatever_the_attention_is() -> None:
    row = AttendedRow(["a", P[0]], [P[0], "b"], f"{P[0]} b", np.eye(2, dtype=np.float32))
    assert with_tags(signed(f"a <b>{P[0]}</b>"), [row]) == signed(f"<b>{P[0]}</b> b")


def test_a_word_that_is_there_twice_in_other_case_is_linked_by_attention() -> None:
    text, translation = (
        "The <b>Region</b> service for region names",
        "Regionen für Namen der Region",
    )
    row = attended(text, translation, {"Regionen": "Region", "Region": "region", "Namen": "names"})
    assert with_tags(signed(text), [row]) == signed("<b>Regionen</b> für Namen der Region")


def test_no_tag_is_lost_and_tags_nest_with_any_attention() -> None:
    for seed in range(300):
        chosen = random.Random(seed)
        (part, *_) = [
            one for one in cut(f"A {marked(seed)}", "markup", stand_ins=stand_ins.ALL)
            if one.translated
        ]  # fmt: skip
        text = normalize(part.source().replace("\n", " "))
        source = without_tags(text).split()
        target = [chosen.choice(WORDS) for _ in range(chosen.randrange(9))]
        attention = np.random.default_rng(seed).random((len(target), len(source)), np.float32)
        translation = " ".join(target)
        found = with_tags(text, [AttendedRow(source, target, translation, attention)])
        signs = [sign for sign in found if sign in (*OPENING, *CLOSING)]
        assert sorted(signs) == sorted(sign for sign in text if sign in (*OPENING, *CLOSING))
        assert nest(signs), (text, found)
        assert re.sub(r"\s", "", without_tags(found)) == re.sub(r"\s", "", translation)


def test_tags_with_their_partners_in_other_sentences_keep_their_order_and_nest() -> None:
    """Two elements end in this sentence, and two begin; five are inside it."""
    signs = [CLOSING[0], CLOSING[1], OPENING[2], OPENING[3]]
    whole = [(OPENING[number], CLOSING[number]) for number in range(4, 9)]
    for seed in range(300):
        chosen = random.Random(seed)
        things = [*signs]
        for begin, end in whole:
            words = " ".join(chosen.choices(WORDS, k=chosen.randrange(1, 4)))
            things.insert(chosen.randrange(len(things) + 1), f"{begin}{words}{end}")
        text = " ".join(f"{thing} {chosen.choice(WORDS)}" for thing in things)
        source = without_tags(text).split()
        target = [chosen.choice(WORDS) for _ in range(chosen.randrange(12))]
        attention = np.random.default_rng(seed).random((len(target), len(source)), np.float32)
        found = with_tags(text, [AttendedRow(source, target, " ".join(target), attention)])
        assert [sign for sign in found if sign in signs] == signs, (text, found)
        around = f"{OPENING[1]}{OPENING[0]}{found}{CLOSING[3]}{CLOSING[2]}"
        assert nest([one for one in around if one in (*OPENING, *CLOSING)]), (text, found)


def test_a_tag_around_a_part_of_a_word_that_stays_stays_there() -> None:
    for text, expected in (
        ("H<b>2</b>O melts", "H<b>2</b>O schmilzt"),
        ("Note<b>1</b> melts", "Note<b>1</b> schmilzt"),
        ("<b>H2</b>O melts", "<b>H2</b>O schmilzt"),
    ):
        row = attended(text, without_tags(signed(expected)), {"schmilzt": "melts"})
        assert with_tags(signed(text), [row]) == signed(expected)


def nest(signs: list[str]) -> bool:
    """Whether tags with an end nest."""
    stack: list[str] = []
    for sign in signs:
        if sign in OPENING and CLOSING[OPENING.index(sign)] in signs:
            stack.append(sign)
        elif sign in CLOSING and OPENING[CLOSING.index(sign)] in signs and (
            not stack or stack.pop() != OPENING[CLOSING.index(sign)]
        ):  # fmt: skip
            return False
    return not stack


def test_both_engines_attend_alike_and_put_tags_alike() -> None:
    texts = [marked(seed) for seed in range(40)]
    found = []
    for engine in ("ctranslate2", "torch"):
        with dragoman.Translator(keeping_run(), engine=engine) as translator:
            opened = translator._opened.translator
            rows = opened.encode(["Open the red file now.", "A dog."], "line").rows
            targets = opened.subwords[1].encode_plain(["Zwei Hunde laufen.", "Ein Hund"])
            attention = opened.engine.attention(rows, targets)
            found.append((attention, translator.translate(texts, text_format="markup")))
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert ours.min() >= 0
        assert np.all(ours.sum(1) < 1 + 1e-5)
    assert found[0][0][0].shape == (len(targets[0]), len(rows[0]))
    assert found[0][1] == found[1][1]


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
    assert inline.placeholders_of(found) == inline.placeholders_of(source)
    assert inline.without_placeholders(found).replace(" ", "") == translation.replace(" ", "")


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
    assert answers.translations(opened.engine)[0][0].text == "Jetzt {name} offen."
    answers = Answers(encoded, SearchConfig(beam_size=2), 1)
    answers.take([[Candidate(without, -1.0)]])
    answers.take([[Candidate(twice, -1.0)]])
    third = answers.wanted()
    assert third is not None
    assert opened.subwords[0].decode([*third.rows]) == ["Open now."]
    answers.take([[Candidate(without, -1.0)]])
    assert answers.wanted() is None
    assert answers.translations(opened.engine)[0][0].text == "Jetzt {name} offen."


def test_an_entity_is_none_of_the_signs_of_the_search() -> None:
    """A text may spell such a sign by its number. It is text then, and nothing replaces it."""
    with dragoman.Translator(keeping_run()) as translator:
        for number in (0x10FA00, 0x10FA10, 0x10FA20):
            text = f"Open {{name}} <b>here</b> &#x{number:X}; in the file &#{number};."
            (translation,) = translator.translate([text], text_format="markup")
            assert kept(translation)["{name}"] == 1, translation
            assert (translation.count("<b>"), translation.count("</b>")) == (1, 1), translation


@pytest.mark.parametrize(
    ("text", "things"),
    [
        ("打开https://example.org/a", ["https://example.org/a"]),
        ("請看https://example.jp/をご覧ください。", ["https://example.jp/"]),
        ("请访问https://example.cn/，谢谢", ["https://example.cn/"]),
        ("siehe https://example.org/größe.", ["https://example.org/größe"]),
        ("an jürgen.müller@example.de", ["jürgen.müller@example.de"]),
        ("почта@пример.рф есть", ["почта@пример.рф"]),
        ("在&brand;中", ["&brand;"]),
        ("请联系me@example.org", ["me@example.org"]),
        ("VISIT HTTPS://EXAMPLE.ORG/ABC NOW.", ["HTTPS://EXAMPLE.ORG/ABC"]),
        ("allow&brand; and xhttp://no", ["&brand;"]),
    ],
)
def test_what_is_kept_beside_letters(text: str, things: list[str]) -> None:
    assert stand_ins.KEPT.findall(text) == things
