"""A line, a document or markup: the parts that are translated, and the parts that are kept."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Literal

from dragoman.corpus.normalize import normalize
from dragoman.evaluation.sentences import split_sentences
from dragoman.inference.inline import Thing, by_signs, things_in, would_merge

TextFormat = Literal["line", "document", "markup"]
"""line: a text is one sentence; without letters and digits it stays as it is. document: it is split
into sentences; the space between them and parts without letters are kept. markup: as a document;
the tags of HTML or XML are kept as well, and what an element says shall not be translated. There a
line end is a space, except in pre and textarea."""

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
_NAME = re.compile(r"</?([A-Za-z][^\s/>]*+)")
_ATTRIBUTE = re.compile(
    r"""\s(translate|class)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))""", re.IGNORECASE
)
_KEPT: Final = frozenset(("code", "kbd", "samp", "var"))
"""Elements whose text is for machines, or comes from one."""
_LINES_COUNT: Final = frozenset(("pre", "textarea"))
"""Elements in which a line end is seen."""
_VOID: Final = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
     "track", "wbr")
)  # fmt: skip
"""Elements of HTML that have no end tag."""
_ENDS_LINE: Final = frozenset(
    ("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details",
     "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2",
     "h3", "h4", "h5", "h6", "head", "header", "hr", "html", "legend", "li", "main", "menu",
     "nav", "ol", "optgroup", "option", "p", "pre", "script", "section", "select", "style",
     "summary", "table", "tbody", "td", "textarea", "tfoot", "th", "thead", "title", "tr", "ul")
)  # fmt: skip
"""Elements of HTML at whose beginning and end a line or a cell ends."""
_CELL_ENDS: Final = frozenset(("td", "th", "tr", "tbody", "tfoot"))
_TERM_ENDS: Final = frozenset(("dt", "dd"))
_ENDED_BY: Final = {
    "p": frozenset(
        ("address", "article", "aside", "blockquote", "details", "div", "dl", "fieldset",
         "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main",
         "menu", "nav", "ol", "p", "pre", "section", "table", "ul")
    ),
    "li": frozenset(("li",)),
    "dt": _TERM_ENDS,
    "dd": _TERM_ENDS,
    "tr": frozenset(("tr", "tbody", "tfoot")),
    "td": _CELL_ENDS,
    "th": _CELL_ENDS,
    "option": frozenset(("option", "optgroup")),
}  # fmt: skip
"""Elements of HTML whose end tag may be left out, and the elements whose beginning ends them."""
_NUMBER = re.compile(r"&#0*([0-9]{1,8})[0-9]*+")
_REFERENCE = re.compile(r"&(?:#0*+[0-9]{1,8}|#[xX]0*+[0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});?")
_ANY_TAG: Final = re.compile("</?[A-Za-z!][^<>]*>")
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u034f\u115f\u1160\u180b-\u180f\ufe00-\ufe0f"
    "\U000e0000-\U000e0fff]"
)
"""Controls and, with the category Cf, what Unicode's property Default_Ignorable has."""
_DELIMITED = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", "?>"))


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text; escaped: it is markup, in which < and & are written &lt; and &amp;.

    things: what is kept of a part that is translated, each by a piece that stands for it.
    """

    text: str
    translated: bool
    escaped: bool = False
    things: tuple[Thing, ...] = ()

    def source(self) -> str:
        """The text to translate."""
        source = []
        position = 0
        for thing in self.things:
            source += [self._shown(self.text[position : thing.start]), thing.sign]
            position = thing.end
        return "".join([*source, self._shown(self.text[position:])])

    def written(self, translation: str) -> str:
        """The translation in the form of the part: escaped in markup, with the things kept."""
        kept = {thing.sign: self.text[thing.start : thing.end] for thing in self.things}
        if not kept:
            return self._escaped(translation)
        written = ""
        for text in by_signs(translation):
            following = kept[text] if text in kept else self._escaped(text)
            written += f" {following}" if would_merge(written, following) else following
        return written

    def _shown(self, text: str) -> str:
        return _unescaped(text) if self.escaped else text

    def _escaped(self, text: str) -> str:
        return html.escape(text, quote=False) if self.escaped else text


def cut(text: str, text_format: TextFormat, *, with_things: bool = False) -> list[TextPart]:
    """The parts of a text, in order. with_things: find what is kept of those to translate."""
    parts = _parts(text, text_format)
    if with_things:
        parts = (stretch for part in parts for stretch in _stretches(part) if stretch.text)
    return list(parts)


def _stretches(part: TextPart) -> Iterator[TextPart]:
    """A part with what is kept of it; it is cut at a thing for which no piece is left.

    Marks beside that thing are kept with it, so that no letter comes beside it.
    """
    text = part.text
    while part.translated and (things := things_in(text, escaped=part.escaped)):
        own = [thing for thing in things if thing.sign]
        start = end = len(text)
        if len(own) < len(things):
            start, end = things[len(own)].start, things[len(own)].end
            while start > own[-1].end and _is_mark(text[start - 1]):
                start -= 1
            following = things[len(own) + 1].start if len(own) + 1 < len(things) else len(text)
            while end < following and _is_mark(text[end]):
                end += 1
        words = text[:start].rstrip()
        first = len(words) - len(words.lstrip())
        moved = (Thing(one.start - first, one.end - first, one.sign) for one in own)
        yield TextPart(text[:first], translated=False)
        yield replace(part, text=words[first:], things=tuple(moved))
        yield TextPart(text[len(words) : end], translated=False)
        text = text[end:]
    if text != part.text:
        yield TextPart(text[: len(text) - len(text.lstrip())], translated=False)
        text = text.lstrip()
    yield replace(part, text=text)


def _is_mark(character: str) -> bool:
    return not (character.isalnum() or character.isspace())


def beginning(texts: Iterable[str], text_format: TextFormat, most_characters: int) -> str:
    """What is translated of the texts, as a reader sees it, up to this many characters.

    Text that is kept, such as code or a style sheet, does not count. Clients send HTML as plain
    text, too; its tags and references are none.
    """
    words: list[str] = []
    room = most_characters
    for text in texts:
        for part in _parts(text, text_format):
            shown = part.source()[:room] if part.translated else _seen_between(part.text)
            words.append(shown)
            room -= len(shown) if part.translated else 0
            if not room:
                return _as_seen("".join(words))
        words.append(" ")
    return _as_seen("".join(words))


def _seen_between(kept: str) -> str:
    """What a reader sees of kept text between words: nothing of a tag inside a line, else space."""
    name = _NAME.match(kept)
    inside_line = kept.startswith("<!--") or (name and name[1].lower() not in _ENDS_LINE)
    return "" if inside_line else " "


def _as_seen(text: str) -> str:
    """Text without tags, with the characters that references stand for, and nothing invisible."""
    text = _unescaped(_ANY_TAG.sub(lambda tag: _seen_between(tag[0]), text))
    text = _UNSEEN.sub("", normalize(text))
    return "".join(one for one in text if unicodedata.category(one) != "Cf")


def _parts(text: str, text_format: TextFormat) -> Iterator[TextPart]:
    if text_format == "line":
        yield TextPart(text, translated=any(map(str.isalnum, text)))
    elif text_format == "document":
        yield from _sentences(text)
    else:
        for _, parts in _elements(text):
            yield from parts


def paragraphs(text: str, text_format: TextFormat) -> list[str]:
    """The lines of a text, which can be cut one by one.

    In markup, one does not end within a sentence, a tag, a comment, a script, or an element that is
    kept or in which lines count.
    """
    if text_format != "markup":
        return text.split("\n")
    ends = []
    start = 0
    for is_plain, parts in _elements(text):
        for part in parts:
            if is_plain and not part.translated and part.text.isspace():
                ends += [start + found.start() for found in re.finditer("\n", part.text)]
            start += len(part.text)
    starts = [0, *(end + 1 for end in ends)]
    return [text[start:end] for start, end in zip(starts, [*ends, len(text)], strict=True)]


@dataclass(frozen=True, slots=True)
class _Element:
    """An open element. kept: its text is not translated. has_lines: its line ends are seen."""

    name: str
    kept: bool = False
    has_lines: bool = False
    is_plain: bool = True
    """Whether this element and those around it have no rule of their own."""


def _elements(text: str) -> Iterator[tuple[bool, list[TextPart]]]:
    """The parts of each stretch of markup between two tags, and of each tag; and whether no open
    element has a rule of its own."""
    open_elements = [_Element("")]
    names: Counter[str] = Counter()
    start = 0
    for tag_start, tag_end in chain(_tags(text), [(len(text), len(text))]):
        inner = open_elements[-1]
        between = text[start:tag_start]
        if inner.kept:
            yield False, [TextPart(between, translated=False)] if between else []
        else:
            yield inner.is_plain, list(_markup_sentences(between, has_lines=inner.has_lines))
        tag = text[tag_start:tag_end]
        yield False, [TextPart(tag, translated=False)] if tag else []
        _follow(tag, open_elements, names)
        start = tag_end


def _follow(tag: str, open_elements: list[_Element], names: Counter[str]) -> None:
    """Open or close the element of a tag. names: how often each name is open."""
    found = _NAME.match(tag)
    if found is None:
        return
    name = found[1].lower()
    is_end = tag.startswith("</")
    if not is_end:
        while name in _ENDED_BY.get(open_elements[-1].name, ()):
            names[open_elements.pop().name] -= 1
    else:
        while names[name]:  # an end that nothing began is passed over
            closed = open_elements.pop()
            names[closed.name] -= 1
            if closed.name == name:
                break
    if is_end or name in _VOID or tag.endswith("/>") or _RAW.match(tag):
        return
    around = open_elements[-1]
    kept = _is_kept(tag, name)
    has_lines = name in _LINES_COUNT
    names[name] += 1
    open_elements.append(
        _Element(
            name,
            kept=around.kept if kept is None else kept,
            has_lines=around.has_lines or has_lines,
            is_plain=around.is_plain and kept is None and not has_lines,
        )
    )


def _is_kept(tag: str, name: str) -> bool | None:
    """Whether the text of an element stays as it is; None if it does as that around it."""
    kept = True if name in _KEPT else None
    for found in _ATTRIBUTE.finditer(tag[:_LONGEST_QUOTED]):
        value = (found[2] or found[3] or found[4] or "").lower()
        if found[1].lower() == "class":
            kept = True if "notranslate" in value.split() else kept
        elif value in ("no", "yes", ""):
            return value == "no"
    return kept


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


def _markup_sentences(text: str, *, has_lines: bool) -> Iterator[TextPart]:
    """The sentences of text between two tags, and the space around them.

    They are found in the text as it is displayed: &nbsp; is space, &quot; closes a quotation. There
    each reference is as long as in the markup: its character, repeated.
    """
    shown = text
    if "&" in text:
        shown = _REFERENCE.sub(_repeated, text)
    if not has_lines:
        shown = shown.replace("\n", " ")
    start = 0
    for part in _sentences(shown):
        own = text[start : start + len(part.text)]
        yield TextPart(own, part.translated, escaped=part.translated)
        start += len(own)


def _repeated(reference: re.Match[str]) -> str:
    """The character that a reference stands for, as often as the reference has characters."""
    character = _unescaped(reference[0])
    return character[0] * len(reference[0]) if 0 < len(character) <= 2 else reference[0]


def _unescaped(text: str) -> str:
    # Python refuses numbers of thousands of digits; with eight it is no longer a character.
    return html.unescape(_NUMBER.sub(r"&#\1", text))


def _sentences(text: str) -> Iterator[TextPart]:
    start = len(text) - len(text.lstrip())
    if start:
        yield TextPart(text[:start], translated=False)
    for sentence, space in split_sentences(text[start:]):
        if sentence:
            has_words = any(map(str.isalpha, sentence))
            yield TextPart(sentence, translated=has_words)
        if space:
            yield TextPart(space, translated=False)
