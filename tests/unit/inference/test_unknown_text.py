"""Text of which a vocabulary knows no letter is returned as it is; nothing is invented."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.normalize import normalize
from dragoman.corpus.shards import UNK
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.inference.text import TextFormat, cut
from dragoman.inference.translator import EncodedTexts, TextTranslator, TorchEngine, advanced
from known_ends import known_sentences
from real_text import real_lines

OTHER_SCRIPTS = [
    *("bg", "ru", "uk", "el", "hi", "mr", "sa", "bn", "pa", "ta", "ur", "fa", "ar", "he", "hy"),
    *("am", "my", "km", "bo", "zh", "ja", "ko"),
]
BLANK = ["\x0c", "\x0b\x1c", "\x01\x02", "\u200b", "\u200e", "\xad \u2060", " \t ", ""]
BLANK += [
    "\u3164",
    "\uffa0\u3164",
    "\u1160",
    "\u115f\u1160 ",
    "\u3164\u200d",
    "\u3164\ufe0f",
    "\u2800",
]
"""The last ones are letters to Unicode: fillers of Hangul."""
SIGNS = ["\U0001f600", "\U0001f468\u200d\U0001f469 \u2764\ufe0f", "\U0001f3f4", "\u2603 \u2603!"]


@cache
def vocabulary(
    kind: Literal["bpe", "unigram"], *, token: str = "", has_bytes: bool = False
) -> Subword:
    text = normalize("\n".join([*real_lines("valid", "en"), *real_lines("valid", "de")]))
    config = SubwordConfig(vocab_size=1000, kind=kind, byte_fallback=has_bytes)
    tokens = [token] if token else []
    content = train_on_words(count_words(text.split("\n")), config, tokens=tokens)
    return Subword.parse(content, place=Path("source.model"))


def encoded(text: str, subword: Subword, text_format: TextFormat, token: str = "") -> EncodedTexts:
    """The rows that an engine would search; it is not asked here."""
    translator = TextTranslator(
        TorchEngine([]), (subword, subword), lowercase=False, max_source_pieces=200, token=token
    )
    return translator.encode([text], text_format)


def text_as_it_is(encoded: EncodedTexts) -> str:
    """The result of a text without rows."""
    _, found = advanced(encoded.assemble([], 1, most_rows=1))
    assert found is not None
    ((best,),) = found
    return best.text


@pytest.mark.parametrize("has_bytes", [False, True])
@pytest.mark.parametrize("token", ["", "<2de>"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_scripts_that_the_vocabulary_lacks(
    kind: Literal["bpe", "unigram"], token: str, has_bytes: bool
) -> None:
    known = vocabulary(kind, token=token, has_bytes=has_bytes)
    for language in OTHER_SCRIPTS:
        for sentence in known_sentences()[language]:
            found = encoded(sentence, known, "line", token)
            assert found.rows == [], (language, sentence)
            assert text_as_it_is(found) == sentence
    assert len(encoded("Öffnen Sie die Datei.", known, "line", token).rows) == 1


@pytest.mark.parametrize("token", ["", "<2de>"])
@pytest.mark.parametrize("text_format", ["line", "document", "markup"])
@pytest.mark.parametrize("text", [*BLANK, *SIGNS])
def test_blank_text_and_signs_stay_as_they_are(
    text: str, text_format: TextFormat, token: str
) -> None:
    found = encoded(text, vocabulary("bpe", token=token), text_format, token)
    assert found.rows == []
    assert text_as_it_is(found) == text


def test_a_known_letter_beside_them_is_enough() -> None:
    for text in ["\U0001f600 Hallo", "नमस्ते Datei", "Ж. Datei"]:
        assert len(encoded(text, vocabulary("unigram"), "line").rows) == 1, text


def test_a_text_that_is_mostly_unknown_stays_as_it_is() -> None:
    for text in ["Откройте файл README", "请打开 README 文件，然后重新启动计算机。", "你好 a"]:
        assert encoded(text, vocabulary("unigram"), "line").rows == [], text


def test_a_code_before_a_text_is_no_unknown_part_of_it() -> None:
    subword = vocabulary("unigram", token="<2de>")
    assert len(encoded("<2de> A 👍", subword, "line").rows) == 1
    assert encoded("<2de> 👍", subword, "line").rows == []
    assert len(encoded("<2de> ... Datei.", subword, "document").rows) == 2  # the code is not kept


def test_a_sentence_that_is_unknown_beside_others_stays_as_it_is() -> None:
    found = encoded("Datei öffnen. नमस्ते। <Ende", vocabulary("bpe"), "document")
    assert [part.num_rows for part in found.texts[0]] == [1, 0, 0, 0, 1]


def test_a_character_among_known_ones_is_spelt_in_bytes() -> None:
    known = vocabulary("bpe", has_bytes=True)
    for text in ["Grüße aus Kраков \U0001f600", "Die Datei heißt 你好."]:
        (row,) = encoded(text, known, "line").rows
        assert UNK not in row
        assert known.decode([row]) == [text]
    assert encoded("\x0c", known, "line").rows == []


@pytest.mark.parametrize("text_format", ["line", "document", "markup"])
@pytest.mark.parametrize(
    "text",
    [
        *("...", "-", "– –", "?!", "%", "* * *", "(…)", "。"),
        *("3.14", "12,500", "-7", "10:30", "50 %", "+49 (0)30 123-456", "1.2, (3)", "№ 5", "Ⅳ"),
    ],
)
def test_numbers_and_marks_alone_stay_as_they_are(text: str, text_format: TextFormat) -> None:
    found = encoded(text, vocabulary("bpe"), text_format)
    assert found.rows == []
    assert text_as_it_is(found) == text


@pytest.mark.parametrize("text", ["3 a", "a", "v1.2"])
def test_a_line_with_a_letter_may_be_translated(text: str) -> None:
    (part,) = cut(text, "line")
    assert part.translated
