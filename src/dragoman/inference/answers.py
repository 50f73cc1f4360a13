"""Judges the answers of a teacher: which are translations, and what is wrong with the others.

Chat models explain, apologise, answer in another language, or in Markdown. Such answers are not
repaired, beyond quotation marks around all of it and what a model thinks aloud: they are counted.
"""

from __future__ import annotations

import re
from typing import Final

from dragoman.corpus.language import other_language_log_odds
from dragoman.corpus.normalize import normalize
from dragoman.inference.chat import Answer
from dragoman.inference.synthesize import fault

REASONS: Final = (
    "broken", "not_allowed", "cut_off", "refused", "empty", "explained", "markdown", "length",
    "copied", "repeating", "language",
)  # fmt: skip
"""The reasons to drop an answer, in the order in which they are checked.

broken: there was none to read. not_allowed: the server refuses this line. cut_off: it has the most
tokens. refused: the model does not want to. explained: it has more lines than one, or words before
the translation. length: it is over four times as long as the text, or less than a quarter.
language: it is in another language.
"""
_THOUGHT: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_QUOTES: Final = ('""', "''", "“”", "„“", "«»", "‘’", "「」")
_REFUSAL: Final = re.compile(
    r"(?:i(?:'|’)?m (?:sorry|unable|not able)|i (?:am (?:sorry|unable|not able)|cannot|can(?:'|’)t|"
    r"won(?:'|’)t|apologi[sz]e)|sorry,|as an ai|unfortunately, i)\b",
    re.IGNORECASE,
)
_LEAD: Final = re.compile(
    r"(?:(?:sure|certainly|of course)[,!.:]|here(?:'|’)?s? (?:is )?(?:the|your|a) translat|"
    r"(?:the )?(?:\w+ )?translat(?:ion|ed text)(?: \w+){0,4}\s*:|note:)",
    re.IGNORECASE,
)
_MARKDOWN: Final = re.compile(r"```|\*\*|^#{1,6} |^[-*] ")
_LENGTHS: Final = 4.0
_JUDGED_BYTES: Final = 20
_LANGUAGE_BYTES: Final = 40
"""Shorter answers may be in any language, as far as py3langid can tell."""
_LOG_ODDS: Final = 3.0


def translation_of(answer: Answer, text: str) -> str:
    """The translation in an answer: without thoughts, and without quotation marks around it."""
    words = _THOUGHT.sub("", answer.text).strip()
    pair = words[:1] + words[-1:]
    if len(words) > 2 and pair in _QUOTES and text[:1] != words[:1]:
        words = words[1:-1].strip()
    return words


def fault_of(answer: Answer, text: str, language: str | None) -> str | None:
    """The reason to drop an answer, one of REASONS; None if there is none.

    language: that of the translation, if it can be identified. Raises MachineError then without
    py3langid.
    """
    if answer.finish in ("broken", "not_allowed", "refused"):
        return answer.finish
    if answer.finish == "length":
        return "cut_off"
    words = translation_of(answer, text)
    if _REFUSAL.match(words) and not _REFUSAL.match(text):
        return "refused"
    if not words:
        return "empty"
    if "\n" in words or (_LEAD.match(words) and not _LEAD.match(text)):
        return "explained"
    if _MARKDOWN.search(words) and not _MARKDOWN.search(text):
        return "markdown"
    sizes = sorted((len(text.encode()), len(words.encode())))
    if sizes[1] > _JUDGED_BYTES and sizes[1] > _LENGTHS * sizes[0]:
        return "length"
    words = normalize(words)
    if (reason := fault(normalize(text), words)) is not None:
        return reason
    if language is None or len("".join(filter(str.isalpha, words)).encode()) < _LANGUAGE_BYTES:
        return None
    return "language" if other_language_log_odds([words], language)[0] > _LOG_ODDS else None
