"""A line, a document or markup: the parts that are translated, and the parts that are kept."""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, groupby, pairwise
from typing import Final, Literal, NamedTuple

from dragoman.corpus.normalize import normalize
from dragoman.corpus.stand_ins import MOST, OWN_SIGNS, PLACEHOLDERS
from dragoman.evaluation.sentences import split_sentences
from dragoman.inference import tags as inline_tags
from dragoman.inference.inline import Thing, by_signs, kept_spans, would_merge
from dragoman.inference.tags import CLOSING, OPENING

TextFormat = Literal["line", "document", "markup"]
"""line: a text is one sentence. document: it is split into sentences; the space between them is
kept. markup: as a document; the tags of HTML or XML are kept as well, and what an element says
shall not be translated. There a line end is a space, except in pre and textarea. In all of them
what has no letters, such as a number, stays as it is."""

_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_TAG_WITH_VALUES = re.compile(
    r"""<[A-Za-z](?>(?:[^<>"'=]|=\s*+(?:"[^"]*+"|'[^']*+'|))*)>"""  # < and > may stand in quotes
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
_INSIDE_LINE: Final = frozenset(
    ("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "bpt", "bx", "cite", "code", "data", "del",
     "dfn", "em", "ept", "ex", "font", "g", "i", "img", "ins", "kbd", "label", "mark", "mrk",
     "output", "pc", "ph", "q", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub",
     "sup", "time", "tt", "u", "var", "wbr", "x")
)  # fmt: skip
"""Elements of HTML and XLIFF inside a line; others are if they do not stand where a line ends."""
_OBJECT: Final = "\ufffc"
"""How a kept element is seen: neither a letter nor a mark."""
_LONGEST_WITH_TAGS: Final = 2000
"""Characters of a sentence with tags inside; a longer one is cut at each, because the memory for
the places of tags grows with the square of its length."""
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
_UNSPACED: Final = "\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff60"
"""Ranges of kana, Han and wide marks, between which a reader sees no space. Thai and its neighbours
put none between words, but one between sentences."""
_LINE_END: Final = re.compile(r"(?<![ \t])[ \t]*+\r?\n[ \t]*+")
_UNSPACED_LINE_END: Final = re.compile(rf"(?<=[{_UNSPACED}])[ \t]*+\r?\n[ \t]*+(?=[{_UNSPACED}])")
_DELIMITED = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!", ">"), ("<?", "?>"))


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text; escaped: it is markup, in which < and & are written &lt; and &amp;.

    things: what is kept of a part that is translated. is_unknown: whether it stays as it is because
        the model knows too few of its letters.
    """

    text: str
    translated: bool
    escaped: bool = False
    things: tuple[Thing, ...] = ()
    is_unknown: bool = False

    def source(self) -> str:
        """The text to translate."""
        source = []
        position = 0
        for thing in self.things:
            source += [self._shown(self.text[position : thing.start]), thing.sign]
            position = thing.end
        return "".join([*source, self._shown(self.text[position:])])

    def seen(self) -> str:
        """The text as a reader sees it: without tags, and with what kept elements say."""
        return self._shown(_ANY_TAG.sub("", self.text) if self.escaped else self.text)

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


def on_one_line(text: str, *, has_seen_ends: bool = False) -> str:
    """The lines of a text as one: a space stands for each end, but not between kana or Han.

    has_seen_ends: they are those of a subtitle, often its only marks; each is a space.
    """
    if "\n" not in text:
        return text
    return _LINE_END.sub(" ", text if has_seen_ends else _UNSPACED_LINE_END.sub("", text))


def cut(
    text: str, text_format: TextFormat, *, stand_ins: frozenset[str] = frozenset()
) -> list[TextPart]:
    """The parts of a text, in order.

    stand_ins: the pieces that the model has for what is kept inside a part; see
        `corpus.stand_ins`. Without placeholders a sentence of markup ends at an element that is
        kept; at a tag inside a line it never does.
    """
    most = MOST if PLACEHOLDERS[0] in stand_ins else 0
    parts = _parts(text, text_format, through=_TAGS_AND_KEPT if most else _TAGS)
    return [
        stretch
        for part in parts
        for stretch in (_with_things(part, most) if most or part.escaped else (part,))
        if stretch.text or stretch is part
    ]


def _with_things(part: TextPart, most_placeholders: int) -> Iterator[TextPart]:
    """A part with what is kept of it; it is cut at a thing for which nothing is left to stand.

    Marks beside that thing are kept with it, so that no letter comes beside it.
    """
    text = part.text
    spans, tags = _kept_in(text, escaped=part.escaped) if part.translated else ([], [])
    if not most_placeholders:  # only what would be taken for a tag
        unlike = [
            bool(tag) or text[start] >= PLACEHOLDERS[0]
            for (start, _), tag in zip(spans, tags, strict=True)
        ]
        spans, tags = [*compress(spans, unlike)], [*compress(tags, unlike)]
    most_tags = inline_tags.MOST if len(text) <= _LONGEST_WITH_TAGS else 0
    position = done = 0
    while done < len(spans):
        following_tags = tags[done : done + 2 * most_tags + most_placeholders]
        signs = _most_signs(following_tags, most_tags, most_placeholders)
        own = spans[done : done + len(signs)]
        done += len(own)
        start = end = len(text)
        if done < len(spans):
            start, end = spans[done]
            done += 1
            while start > (own[-1][1] if own else position) and _is_mark(text[start - 1]):
                start -= 1
            following = spans[done][0] if done < len(spans) else len(text)
            while end < following and _is_mark(text[end]):
                end += 1
        words = text[position:start].rstrip()
        first = position + len(words) - len(words.lstrip())
        last = position + len(words)
        things = [
            Thing(span[0] - first, span[1] - first, sign)
            for span, sign in zip(own, signs, strict=True)
        ]
        yield TextPart(text[position:first], translated=False)
        yield replace(part, text=text[first:last], things=tuple(things))
        yield TextPart(text[last:end], translated=False)
        position = end
    rest = text[position:]
    if position:
        yield TextPart(rest[: len(rest) - len(rest.lstrip())], translated=False)
        rest = rest.lstrip()
    yield replace(part, text=rest)


def _is_mark(character: str) -> bool:
    return not (character.isalnum() or character.isspace() or character in "&;")


def _kept_in(text: str, *, escaped: bool) -> tuple[list[tuple[int, int]], list[str]]:
    """The spans of what is kept in a text, in order, and the tag that each is; "" if it is none."""
    spans: list[tuple[int, int]] = []
    tags: list[str] = []
    place = 0
    stretches = _stretches_of(text) if escaped else [_Stretch(text, "text")]
    for stretch in _with_whole_elements(stretches):
        own = [(0, len(stretch.text))]
        if stretch.kind == "text":
            own = kept_spans(stretch.text, escaped=escaped)
        spans += [(place + start, place + end) for start, end in own]
        tags += [stretch.text if stretch.kind == "tag" else ""] * len(own)
        place += len(stretch.text)
    return spans, tags


def _most_signs(tags: Sequence[str], most_tags: int, most_placeholders: int) -> list[str]:
    """The characters for as many of the first of these tags as there are characters for."""
    fitting = (
        _signs(tags[:count], most_tags, most_placeholders) for count in range(len(tags), 0, -1)
    )
    return next((signs for signs in fitting if signs is not None), [])


def _signs(tags: Sequence[str], most_tags: int, most_placeholders: int) -> list[str] | None:
    """The characters that stand for tags, and placeholders for what is none; None if there are not
    enough."""
    partners = partners_of(tags)
    firsts = [
        number for number, tag in enumerate(tags) if tag and number <= partners.get(number, number)
    ]
    if len(firsts) > most_tags or tags.count("") > most_placeholders:
        return None
    pairs = {number: pair for number, *pair in zip(firsts, OPENING, CLOSING, strict=False)}
    placeholders = iter(PLACEHOLDERS)
    signs = []
    for number, tag in enumerate(tags):
        is_end = tag.startswith("</")
        signs.append(
            pairs[min(number, partners.get(number, number))][is_end] if tag else next(placeholders)
        )
    return signs


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
    """What a reader sees between two words: nothing for a tag inside a line, space otherwise."""
    name = _NAME.match(kept)
    inside_line = kept.startswith("<!--") or (name and name[1].lower() not in _ENDS_LINE)
    return "" if inside_line else " "


def _as_seen(text: str) -> str:
    """Text without tags, with the characters that references stand for, and nothing invisible."""
    text = _unescaped(_ANY_TAG.sub(lambda tag: _seen_between(tag[0]), text))
    text = _UNSEEN.sub("", normalize(text))
    return "".join(one for one in text if unicodedata.category(one) != "Cf")


def _parts(
    text: str, text_format: TextFormat, *, through: Collection[_Kind] = ()
) -> Iterator[TextPart]:
    if text_format == "line":
        yield TextPart(text, translated=any(map(str.isalpha, text)))
    elif text_format == "document":
        yield from _sentences(text)
    else:
        for _, parts in _elements(text, through=through):
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
    for is_plain, parts in _elements(text, through=_TAGS_AND_KEPT):
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


_Kind = Literal["tag", "kept", "text"]
_TAGS: Final[tuple[_Kind, ...]] = ("tag",)
_TAGS_AND_KEPT: Final[tuple[_Kind, ...]] = ("tag", "kept")


class _Stretch(NamedTuple):
    """A stretch of markup: a tag, an element that is kept, or the text between them.

    has_lines: its line ends are seen. is_plain: no open element has a rule of its own.
    """

    text: str
    kind: _Kind
    has_lines: bool = False
    is_plain: bool = False


def _elements(text: str, *, through: Collection[_Kind]) -> Iterator[tuple[bool, list[TextPart]]]:
    """The parts of each run of markup between two tags that end it, and whether no open element has
    a rule of its own.

    through: stretches of these kinds inside a line do not end a run.
    """
    stretches = [*_stretches_of(text)]
    if "kept" in through:
        stretches = _with_whole_elements(stretches)
    run: list[_Stretch] = []
    for place, stretch in enumerate(stretches):
        before, after = (
            stretches[beside].text if 0 <= beside < len(stretches) else ""
            for beside in (place - 1, place + 1)
        )
        if stretch.kind == "text" or (
            stretch.kind in through and _is_inside_line(stretch.text, before, after)
        ):
            run.append(stretch)
            continue
        yield _is_plain(run), list(_sentences_of_run(run))
        yield False, [TextPart(stretch.text, translated=False)]
        run = []
    yield _is_plain(run), list(_sentences_of_run(run))


def _stretches_of(text: str) -> Iterator[_Stretch]:
    open_elements = [_Element("")]
    names: Counter[str] = Counter()
    start = 0
    for tag_start, tag_end in chain(_tags(text), [(len(text), len(text))]):
        inner = open_elements[-1]
        if between := text[start:tag_start]:
            kind: Literal["kept", "text"] = "kept" if inner.kept else "text"
            yield _Stretch(between, kind, inner.has_lines, inner.is_plain)
        if tag := text[tag_start:tag_end]:
            _follow(tag, open_elements, names)
            yield _Stretch(tag, "kept" if inner.kept or open_elements[-1].kept else "tag")
        start = tag_end


def _with_whole_elements(stretches: Iterable[_Stretch]) -> list[_Stretch]:
    """The stretches, of which an element that is kept is one, with its tags."""
    whole = []
    for kind, group in groupby(stretches, key=lambda stretch: stretch.kind):
        if kind == "kept":
            whole.append(_Stretch("".join(stretch.text for stretch in group), kind))
        else:
            whole += group
    return whole


def _is_inside_line(tag: str, before: str, after: str) -> bool:
    """Whether a tag between these texts stands inside a line, so that a sentence goes on.

    One that HTML does not know, or a comment, does not if it stands where a line begins or ends.
    """
    name = _NAME.match(tag)
    if name and name[1].lower() in _ENDS_LINE:
        return False
    if name and name[1].lower() in _INSIDE_LINE:
        return True
    return not (before.rstrip(" \t").endswith("\n") or after.lstrip(" \t").startswith("\n"))


def _is_plain(run: Sequence[_Stretch]) -> bool:
    return all(stretch.is_plain for stretch in run if stretch.kind == "text")


def _sentences_of_run(run: Sequence[_Stretch]) -> Iterator[TextPart]:
    """The sentences of a run as they are displayed, with the tags inside them.

    Tags around a sentence, or between two, are parts of their own.
    """
    if len(run) == 1:
        if run[0].kind == "text":
            yield from _markup_sentences(run[0].text, has_lines=run[0].has_lines)
        else:
            yield TextPart(run[0].text, translated=False)
        return
    markup = "".join(stretch.text for stretch in run)
    shown: list[str] = []
    spans: list[tuple[int, int]] = []  # of each shown character in the markup
    tags: list[tuple[int, int]] = []
    place = 0
    for stretch in run:
        end = place + len(stretch.text)
        if stretch.kind == "tag":
            tags.append((place, end))
        elif stretch.kind == "kept":
            shown.append(_OBJECT)
            spans.append((place, end))
        else:
            for start, after, characters in _displayed(stretch.text):
                shown.append(characters)
                spans += [(place + start, place + after)] * len(characters)
        place = end
    text = "".join(shown)
    if not any(stretch.has_lines for stretch in run):
        text = text.replace("\n", " ")
    partners = partners_of([markup[start:end] for start, end in tags])
    first = position = 0
    for part in _sentences(text):
        last = position + len(part.text)
        if not part.text.isspace():
            start, end = _with_tags((spans[position][0], spans[last - 1][1]), tags, partners)
            yield from _kept(markup, first, start, tags)
            yield TextPart(markup[start:end], part.translated, escaped=part.translated)
            first = end
        position = last
    yield from _kept(markup, first, len(markup), tags)


def _displayed(text: str) -> Iterator[tuple[int, int, str]]:
    """(Start, end, what is shown of it) of the characters and references of a text of markup."""
    position = 0
    for reference in _REFERENCE.finditer(text):
        yield from ((one, one + 1, text[one]) for one in range(position, reference.start()))
        yield *reference.span(), _unescaped(reference[0])
        position = reference.end()
    yield from ((one, one + 1, text[one]) for one in range(position, len(text)))


def _with_tags(
    span: tuple[int, int], tags: Sequence[tuple[int, int]], partners: Mapping[int, int]
) -> tuple[int, int]:
    """The span of a sentence with the tags right beside it whose partners are inside."""
    start, end = span
    first, last = (bisect_left(tags, (edge,)) for edge in span)
    inside = range(first, last)
    while first and tags[first - 1][1] == start and partners.get(first - 1) in inside:
        first -= 1
        start = tags[first][0]
    while last < len(tags) and tags[last][0] == end and partners.get(last) in inside:
        end = tags[last][1]
        last += 1
    return start, end


def _kept(markup: str, start: int, end: int, tags: Sequence[tuple[int, int]]) -> Iterator[TextPart]:
    """What stands between two sentences: space and tags."""
    between = tags[bisect_left(tags, (start,)) : bisect_left(tags, (end,))]
    edges = sorted({start, end, *(edge for tag in between for edge in tag)})
    for first, last in pairwise(edges):
        yield TextPart(markup[first:last], translated=False)


def partners_of(tags: Sequence[str]) -> dict[int, int]:
    """The number of the tag that ends each of these tags, or begins it; pairs nest."""
    partners: dict[int, int] = {}
    open_tags: list[tuple[str, int]] = []
    names: Counter[str] = Counter()
    for number, tag in enumerate(tags):
        found = _NAME.match(tag)
        name = found[1].lower() if found else ""
        if tag.startswith("</"):
            while names[name]:
                other, partner = open_tags.pop()
                names[other] -= 1
                if other == name:
                    partners |= {partner: number, number: partner}
                    break
        elif name and name not in _VOID and not tag.endswith("/>"):
            open_tags.append((name, number))
            names[name] += 1
    return partners


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
    return OWN_SIGNS.sub("\ufffd", html.unescape(_NUMBER.sub(r"&#\1", text)))


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
