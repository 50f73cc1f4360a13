"""A line, a document or markup: the parts that are translated, and the parts that are kept."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dragoman.evaluation.sentences import split_sentences

TextFormat = Literal["line", "document", "markup"]
"""line: a text is one sentence. document: it is split into sentences; the space between them and
parts without letters are kept. markup: as a document; the tags of HTML or XML are kept as well."""

_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_TAG_WITH_VALUES = re.compile(
    r"""<[A-Za-z](?:[^<>"'=]|=\s*+(?:"[^"]*+"|'[^']*+'|))*+>"""  # < and > may stand in quotes
)
_LONGEST_QUOTED = 1000
"""Quotes count only in the first characters of a tag, this many, so that each < of hostile text is
cheap."""
_RAW = re.compile(r"<(script|style)\b", re.IGNORECASE | re.ASCII)
_RAW_END = {
    name: re.compile(rf"</{name}\s*+>", re.IGNORECASE | re.ASCII) for name in ("script", "style")
}
_NUMBER = re.compile(r"&#0*([0-9]{1,8})[0-9]*+")
_SPACES = re.compile(r"(?:\s|&(?:nbsp|#0*+160|#[xX]0*+[aA]0);)++")
_DELIMITED = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", "?>"))


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text; escaped: it is markup, in which < and & are written &lt; and &amp;."""

    text: str
    translated: bool
    escaped: bool = False

    def source(self) -> str:
        """The text to translate."""
        if not self.escaped:
            return self.text
        # Python refuses numbers of thousands of digits; with eight it is no longer a character.
        return html.unescape(_NUMBER.sub(r"&#\1", self.text))

    def written(self, translation: str) -> str:
        """The translation in the form of the part: escaped in markup."""
        return html.escape(translation, quote=False) if self.escaped else translation


def cut(text: str, text_format: TextFormat) -> list[TextPart]:
    """The parts of a text, in order."""
    if text_format == "line":
        return [TextPart(text, translated=True)]
    if text_format == "document":
        return list(_sentences(text, escaped=False))
    parts: list[TextPart] = []
    start = 0
    for tag_start, tag_end in _tags(text):
        parts += _sentences(text[start:tag_start], escaped=True)
        parts.append(TextPart(text[tag_start:tag_end], translated=False))
        start = tag_end
    return [*parts, *_sentences(text[start:], escaped=True)]


def paragraphs(text: str, text_format: TextFormat) -> list[str]:
    """The lines of a text; in markup, one does not end within a tag, a comment or a script."""
    if text_format != "markup":
        return text.split("\n")
    ends = []
    start = 0
    for tag_start, tag_end in [*_tags(text), (len(text), len(text))]:
        ends += [start + found.start() for found in re.finditer("\n", text[start:tag_start])]
        start = tag_end
    starts = [0, *(end + 1 for end in ends)]
    return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True)]


def _tags(text: str) -> Iterator[tuple[int, int]]:
    """(Start, end) of tags, comments, and scripts and styles with their content.

    A missing end is searched for only once, not again from each beginning, so hostile text takes
    linear time.
    """
    missing: set[str] = set()
    position = text.find("<")
    while position >= 0:
        end = _end_of_tag(text, position, missing)
        if end is not None:
            yield position, end
        position = text.find("<", position + 1 if end is None else end)


def _end_of_tag(text: str, start: int, missing: set[str]) -> int | None:
    """The end of the tag, comment or section that begins with this <; None if there is none."""
    for opening, closing in _DELIMITED:
        if text.startswith(opening, start) and closing not in missing:
            found = text.find(closing, start + len(opening))
            if found >= 0:
                return found + len(closing)
            missing.add(closing)
    raw = _RAW.match(text, start)
    if raw is not None and (name := raw[1].lower()) not in missing:
        end = _RAW_END[name].search(text, raw.end())
        if end is not None:
            return end.end()
        missing.add(name)
    # A tag whose quotes do not match is still a tag.
    tag = _TAG_WITH_VALUES.match(text, start, start + _LONGEST_QUOTED) or _TAG.match(text, start)
    return tag.end() if tag is not None else None


def _sentences(text: str, *, escaped: bool) -> Iterator[TextPart]:
    start, end = len(text) - len(text.lstrip()), len(text)
    if escaped:  # &nbsp; is space too
        start = 0
        for found in _SPACES.finditer(text):
            if found.start() == 0:
                start = found.end()
            elif found.end() == len(text):
                end = found.start()
    if start:
        yield TextPart(text[:start], translated=False)
    for sentence, space in split_sentences(text[start:end]):
        if sentence:
            part = TextPart(sentence, translated=True, escaped=escaped)
            # Look at the text as it is displayed: &nbsp; and &copy; have letters, but are not
            # letters.
            has_words = any(character.isalpha() for character in part.source())
            yield part if has_words else TextPart(sentence, translated=False)
        if space:
            yield TextPart(space, translated=False)
    if end < len(text):
        yield TextPart(text[end:], translated=False)
