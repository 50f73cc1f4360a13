"""What of a text is translated, and what is kept as it is."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dragoman.serve.sentences import split_sentences

Layout = Literal["line", "document", "markup"]
"""line: a text is one sentence. document: it is split into sentences; the space between them and
what has no letters are kept. markup: as a document, and the tags of HTML or XML stay as well."""

_TAG = re.compile(
    r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<![^>]*>|<\?.*?\?>|</?[A-Za-z][^<>]*>",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of text; escaped: it is markup, in which < and & are written &lt; and &amp;."""

    text: str
    translated: bool
    escaped: bool = False

    def source(self) -> str:
        """What is to be translated."""
        return html.unescape(self.text) if self.escaped else self.text

    def written(self, translation: str) -> str:
        """A translation as it stands in the text."""
        return html.escape(translation, quote=False) if self.escaped else translation


def cut(text: str, layout: Layout) -> list[Part]:
    """The parts of a text, in order."""
    if layout == "line":
        return [Part(text, translated=True)]
    if layout == "document":
        return list(_sentences(text, escaped=False))
    parts: list[Part] = []
    start = 0
    for match in _TAG.finditer(text):
        parts += _sentences(text[start : match.start()], escaped=True)
        parts.append(Part(match[0], translated=False))
        start = match.end()
    return [*parts, *_sentences(text[start:], escaped=True)]


def _sentences(text: str, *, escaped: bool) -> Iterator[Part]:
    kept = text.lstrip()
    if len(kept) < len(text):
        yield Part(text[: len(text) - len(kept)], translated=False)
    for sentence, space in split_sentences(kept):
        if sentence:
            has_words = any(character.isalpha() for character in sentence)
            yield Part(sentence, translated=has_words, escaped=escaped)
        if space:
            yield Part(space, translated=False)
