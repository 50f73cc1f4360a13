"""What translates a text: by the language that is named, or by that of what is translated."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from dragoman.inference.documents import TextDocumentFormat, cut_document
from dragoman.inference.text import TextFormat
from dragoman.serve.directions import (
    Direction,
    Wanted,
    detected,
    directions,
    translate_document,
)
from dragoman.serve.models import ModelDescription, Models, ServedModel

GERMAN = "Ein Mann mit einem roten Hut spielt vor dem Haus auf einer Gitarre."
ENGLISH = "A man with a red hat is playing a guitar in front of the house."
PORTUGUESE = "Um homem com um chapéu vermelho toca violão na frente de uma casa grande."
NORWEGIAN = "En mann spiller gitar foran et stort hus."
SERBIAN = "Човек са црвеним шеширом свира гитару испред велике куће."
CROATIAN = "Djevojčica sjedi na klupi i čita knjigu. Nitko ne zna gdje je vlak za Zagreb."
SERBIAN_LATIN = "Čovek sa crvenim šeširom svira gitaru ispred velike kuće na uglu ulice."
TRADITIONAL = "一個戴紅帽子的男人在一棟大房子前彈吉他,孩子們聽著音樂。"
SIMPLIFIED = "一个戴红帽子的男人在一栋大房子前弹吉他,孩子们听着音乐。"
UZBEK_CYRILLIC = "Барча одамлар эркин, қадр-қиммат ва ҳуқуқларда тенг бўлиб туғиладилар."
STYLES = ".page-header { color: red; margin: 0 auto; background: url(the-value.png) }\n" * 80
SCRIPT = "for (const value of the.list) { console.log('this is what the page shows'); }\n" * 80


def models(*pairs: str) -> Models:
    """Models that are only listed."""
    nothing: Any = None
    listed = []
    for pair in pairs:
        source, _, target = pair.partition(">")
        description = ModelDescription(
            name=pair, source=source, target=target, parameters=1, quantization="float32",
            licence="", beam_size=1, card="",
        )  # fmt: skip
        listed.append(ServedModel(description, nothing, nothing, nothing))
    return Models(listed)


def chosen(
    served: Models,
    *texts: str,
    to: str | None,
    libre: bool = False,
    source: str = "auto",
    text_format: TextFormat = "document",
) -> list[Direction]:
    wanted = Wanted(source, to, keeps_target=libre, missing=400 if libre else 404)
    return asyncio.run(directions(served, wanted, [[text] for text in texts], text_format))


def ways(found: Sequence[Direction]) -> list[str]:
    return [f"{one.chain.pair.source}>{one.chain.pair.target}" for one in found]


TWO_WAYS = models("en>de", "de>en")
OF_STRANGERS = models("en>de", "de>en", "pt>zh", "nb>fr", "sr>fr")

MARKED_UP = {
    "a style sheet": f"<style>{STYLES}</style><p>{GERMAN}</p>",
    "a script": f"<script>{SCRIPT}</script><p>{GERMAN}</p>",
    "a comment": f"<!-- {SCRIPT} --><p>{GERMAN}</p>",
    "an attribute": f'<p title="{ENGLISH * 80}">{GERMAN}</p>',
    "code": "<p>Der Hund <code>for the value in this list of all names</code> schläft.</p>",
    "not to be translated": f'<p>Der Hund <i translate="no">{ENGLISH}</i> schläft im Garten.</p>',
}


@pytest.mark.parametrize("text", MARKED_UP.values(), ids=MARKED_UP)
def test_only_what_is_translated_of_html_is_judged(text: str) -> None:
    assert ways(chosen(TWO_WAYS, text, to="en", text_format="markup")) == ["de>en"]
    (stays,) = chosen(TWO_WAYS, text, to="de", text_format="markup", libre=True)
    assert ways([stays]) == ["de>de"]
    found = asyncio.run(detected(OF_STRANGERS, [text]))
    assert found[0].language == "de"
    assert found[0].confidence > 50


FENCE = "```\nfor the value in this list of all names: print(value)\n```\n\n" * 80
NOTE = "NOTE this is what the translator wrote about the film\n\n" * 80
DOCUMENTS: dict[str, tuple[TextDocumentFormat, str]] = {
    "Markdown": ("markdown", f"---\ntitle: {ENGLISH}\n---\n\n{FENCE}{GERMAN}\n"),
    "subtitles": ("vtt", f"WEBVTT\n\n{NOTE}00:01.000 --> 00:02.000\n<v The man>{GERMAN}\n"),
    "HTML": ("html", f"<style>{STYLES}</style>\n<p>{GERMAN}</p>\n"),
}


@pytest.mark.parametrize(("form", "text"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_only_what_is_translated_of_a_document_is_judged(
    form: TextDocumentFormat, text: str
) -> None:
    document = cut_document(text, form)
    pieces, text_format = [document.texts()], document.text_format
    found = asyncio.run(directions(TWO_WAYS, Wanted("auto", "en"), pieces, text_format))
    assert ways(found) == ["de>en"]
    (stays,) = asyncio.run(directions(TWO_WAYS, Wanted("auto", "de"), pieces, text_format))
    assert asyncio.run(translate_document(stays, document)) == text


@pytest.mark.parametrize("libre", [False, True])
@pytest.mark.parametrize(
    ("text", "language"), [(PORTUGUESE, "pt"), (NORWEGIAN, "nb"), (SERBIAN, "sr")]
)
@pytest.mark.parametrize("target", ["en", "de"])
def test_a_language_that_does_not_lead_to_the_target_is_named(
    text: str, language: str, target: str, libre: bool
) -> None:
    with pytest.raises(HTTPException) as named:
        chosen(OF_STRANGERS, text, to=target, source=language, libre=libre)
    with pytest.raises(HTTPException) as refused:
        chosen(OF_STRANGERS, GERMAN, text, to=target, libre=libre)
    assert refused.value.status_code == named.value.status_code == (400 if libre else 404)
    assert refused.value.detail.startswith("no model for these languages: text 2 is in")
    assert f" is in {language}, by " in refused.value.detail


@pytest.mark.parametrize("libre", [False, True])
def test_text_in_the_target_language_stays_with_its_confidence(libre: bool) -> None:
    stays, translated = chosen(OF_STRANGERS, GERMAN, ENGLISH, to="de-DE", libre=libre)
    assert ways([stays, translated]) == ["de>de", "en>de"]
    assert stays.detected is not None
    assert stays.detected.language == "de"
    assert stays.detected.confidence > 90
    ((kept,),) = asyncio.run(stays.chain.translate([GERMAN], text_format="document"))
    assert kept.text == GERMAN
    one_target = chosen(models("en>de", "fr>de"), GERMAN, to=None)
    assert ways(one_target) == ["de>de"], "the only target need not be named"


@pytest.mark.parametrize("libre", [False, True])
@pytest.mark.parametrize(
    ("text", "served", "language"),
    [
        (SERBIAN_LATIN, "sr", "sr-Latn"),
        (CROATIAN, "sr", "sr-Latn"),
        (SERBIAN, "sr-Latn", "sr-Cyrl"),
        (SERBIAN, "hr", "sr-Cyrl"),
        (TRADITIONAL, "zh", "zh-Hant"),
        (SIMPLIFIED, "zh-TW", "zh-Hans"),
        (UZBEK_CYRILLIC, "uz", "uz-Cyrl"),
    ],
)
def test_text_in_another_script_of_a_served_language_is_refused(
    text: str, served: str, language: str, libre: bool
) -> None:
    listed = models(f"{served}>en", "de>en", "ru>en", "ja>en", f"en>{served}")
    for target in ("en", served):
        with pytest.raises(HTTPException) as named:
            chosen(listed, text, to=target, source=language, libre=libre)
        with pytest.raises(HTTPException) as refused:
            chosen(listed, GERMAN if target == "en" else ENGLISH, text, to=target, libre=libre)
        assert refused.value.status_code == named.value.status_code == (400 if libre else 404)
        assert f"text 2 is in {language}, by " in refused.value.detail
    best = asyncio.run(detected(listed, [text]))[0]
    assert best.language == language
    assert best.confidence > 50
    both = models(f"{served}>en", f"{language}>en", "de>en", "ru>en", "ja>en")
    assert ways(chosen(both, text, to="en")) == [f"{language}>en"]


INVISIBLE = {
    "references": GERMAN.replace(" ", "&nbsp;"),
    "narrow spaces": GERMAN.replace(" ", "\u2009"),
    "zero width spaces": "\u200b".join(GERMAN),
    "soft hyphens": "\u00ad".join(GERMAN),
    "joiners": "\u200d\u200c".join(GERMAN),
    "marks of direction": "\u200e".join(GERMAN),
    "word joiners": "\u2060\ufeff".join(GERMAN),
    "tags in words": re.sub("(.)(.)", r"\1<b>\2</b>", GERMAN),
    "soft breaks": "<wbr>".join(GERMAN),
    "comments": "<!-- the value -->".join(GERMAN),
    "variation selectors": "\ufe0f\u034f".join(GERMAN),
    "fillers": "\u115f\u180b".join(GERMAN),
    "controls": "\x01\x7f".join(GERMAN),
    "less and greater": f"1 < 2. {GERMAN} 3 > 2.",
    "numbers": GERMAN.replace("a", "&#97;").replace("e", "&#x65;"),
}


@pytest.mark.parametrize("text_format", ["document", "markup"])
@pytest.mark.parametrize("text", INVISIBLE.values(), ids=INVISIBLE)
def test_what_no_reader_sees_does_not_change_the_language(
    text: str, text_format: TextFormat
) -> None:
    served = models("de>en", "nl>en", "sv>en", "fr>en", "en>de")
    (direction,) = chosen(served, text, to="en", text_format=text_format)
    assert direction.detected is not None
    assert direction.detected.language == "de"
    assert direction.detected.confidence > 90


@pytest.mark.parametrize(
    ("served", "text"),
    [
        *[
            ("sr", text)
            for text in (
                "Инсталирајте Microsoft Visual Studio Community и затим покрените PowerShell.",
                "Нови превод у %(translation)s",
                "Пошаљите поруку на office.support@informacionitehnologije.rs",
                "Преузмите датотеку {file_name} са https://example.org/downloads/latest/index",
            )
        ],
        *[
            ("zh", text)
            for text in ("2020–2021 年的工作", "价格：¥5、¥6、¥7", "• 开始\n• 保存\n• 退出")
        ],
        *[("zh-TW", text) for text in ("我在 Café 工作", "他（tā）很好", "［工作］")],
        ("hr", CROATIAN),
        ("zh", SIMPLIFIED),
    ],
)
def test_names_signs_and_placeholders_do_not_decide_a_script(served: str, text: str) -> None:
    others = {"hr": ["sr>en"], "zh": ["yue>en"]}.get(served, [])
    listed = models(f"{served}>en", "de>en", "en>de", "fi>en", *others)
    assert ways(chosen(listed, text, to="en")) == [f"{served}>en"]
    best = asyncio.run(detected(listed, [text]))[0]
    assert best.language == served


@pytest.mark.parametrize("libre", [False, True])
@pytest.mark.parametrize(
    ("served", "text", "close"),
    [
        (("sr>en", "en>hr"), SERBIAN_LATIN, "hr"),
        (("sr>en", "en>hr"), CROATIAN, "hr"),
        (("zh>en", "en>yue"), TRADITIONAL, "yue"),
        (("yue>en", "en>zh"), SIMPLIFIED, "zh"),
    ],
)
def test_a_close_variety_of_another_direction_hides_no_text(
    served: tuple[str, ...], text: str, close: str, libre: bool
) -> None:
    listed = models(*served, "de>en", "ja>en")
    with pytest.raises(HTTPException) as refused:
        chosen(listed, text, to="en", libre=libre)
    assert f"the text is in {close}, by " in refused.value.detail


@pytest.mark.parametrize("first", ["sr>en", "sr-Latn>en"])
def test_of_two_served_scripts_that_of_the_words_counts(first: str) -> None:
    listed = models(first, "sr>en" if first != "sr>en" else "sr-Latn>en", "de>en")
    text = "Инсталирајте Microsoft Visual Studio Community Edition и затим покрените PowerShell."
    assert ways(chosen(listed, text, to="en")) == ["sr>en"]
    assert ways(chosen(listed, "Ovo je „Политика“, novine iz Beograda.", to="en")) == ["sr-Latn>en"]


@pytest.mark.parametrize(
    "text",
    [
        "{num, plural, =0 {Keine Nachrichten} one {Eine Nachricht} other {# Nachrichten}}",
        "\\textbf{Wichtig:} \\emph{Sicherheitshinweise} \\underline{beachten} und lesen",
        "_Datei öffnen und schlie_ßen",
        "Bitte\\nwarten\\nSie\\nhier",
    ],
)
def test_words_beside_signs_of_programs_count(text: str) -> None:
    listed = models("de>en", "en>de", "pt>en", "nl>en", "sr>en")
    (direction,) = chosen(listed, text, to="en", libre=True)
    assert ways([direction]) == ["de>en"]


def test_words_of_two_cells_stay_two_words() -> None:
    cells = "".join(f"<td>{word}</td>" for word in GERMAN.split())
    (direction,) = chosen(TWO_WAYS, f"<tr>{cells}</tr>", to="en", text_format="markup")
    assert direction.detected is not None
    assert direction.detected.confidence > 90


@pytest.mark.parametrize("text", ["Hund", "Save", "OK", "42", "😀", "", "12:30 - 13:00"])
def test_a_text_too_short_to_be_sure_takes_what_leads_to_the_target(text: str) -> None:
    assert ways(chosen(OF_STRANGERS, text, to="de")) == ["en>de"]
    assert ways(chosen(OF_STRANGERS, text, to="en")) == ["de>en"]
    (libre,) = chosen(OF_STRANGERS, text, to="de", libre=True)
    assert libre.detected is not None
    assert libre.detected.language in ("en", "de")
    assert libre.detected.confidence < 50


def test_a_close_variety_is_taken_for_the_language_of_a_model() -> None:
    """The detector takes one for another."""
    served = models("hr>en", "en>bs", "sr-Latn>fr")
    found = asyncio.run(detected(served, [CROATIAN]))
    assert sum(one.confidence for one in found) > 50
    for pair in ("hr>en", "bs>en", "sr-Latn>en"):
        others = {"hr>fr", "bs>fr", "sr-Latn>fr"} - {pair.replace("en", "fr")}
        assert ways(chosen(models(pair, *sorted(others)), CROATIAN, to="en")) == [pair]


def test_the_only_source_may_be_a_language_that_nobody_can_identify() -> None:
    served = models("tlh>en", "en>de")
    text = "tlhIngan maH! taHjaj!"
    assert ways(chosen(served, text, to="en", libre=True)) == ["tlh>en"]
    assert ways(chosen(models("tlh>x-mine"), text, to=None)) == ["tlh>x-mine"]
    with pytest.raises(HTTPException) as refused:
        chosen(models("tlh>x-mine", "x-a>x-mine"), text, to=None)
    assert refused.value.status_code == 501
