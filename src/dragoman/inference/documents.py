"""Files of HTML, Markdown, subtitles, gettext and Word: what of them is translated, and kept.

Subtitles need no library: a library writes times and numbers anew, and here every byte outside the
text of a cue stays. The blocks of Markdown are found by markdown-it, which follows CommonMark. It
tells their lines, but not the places of marks within a line, so these are found here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

from dragoman.base.errors import ConfigError
from dragoman.inference.catalogue import Catalogue
from dragoman.inference.text import TextFormat, on_one_line, paragraphs
from dragoman.inference.word import WordDocument

if TYPE_CHECKING:
    from markdown_it.token import Token

TextDocumentFormat = Literal["html", "markdown", "srt", "vtt"]
DocumentFormat = Literal[TextDocumentFormat, "gettext", "word"]
_FORMATS: Final[dict[str, DocumentFormat]] = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".srt": "srt",
    ".vtt": "vtt",
    ".po": "gettext",
    ".pot": "gettext",
    ".docx": "word",
}
TEXT_ENDINGS: Final[dict[str, TextDocumentFormat]] = {
    ending: text_format
    for ending, document_format in _FORMATS.items()
    for text_format in get_args(TextDocumentFormat)
    if text_format == document_format
}
"""The format of documents of text by the ending of a file's name."""
_NOT_TEXT: Final = frozenset(
    (".doc", ".epub", ".odp", ".ods", ".odt", ".pdf", ".ppt", ".pptx", ".rtf", ".xlsx")
)
_NOT_LINES: Final = frozenset(
    (
        *(".adoc", ".arb", ".ass", ".csv", ".ini", ".ipynb", ".json", ".jsonl", ".plist"),
        *(".properties", ".resx", ".rst", ".sbv", ".ssa", ".strings", ".sub", ".svg", ".tex"),
        *(".tmx", ".toml", ".ts", ".tsv", ".ttml", ".xml", ".yaml", ".yml"),
    )
)
"""Text whose lines have a form that a translation of whole lines would break."""
_CATALOGUES: Final = frozenset((".xlf", ".xliff"))

_BLANK_LINES: Final = re.compile(r"\n(?:[ \t]*\r?\n)+")
_NOT_A_CUE: Final = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)(?=\s|$)")
_TIMES: Final = re.compile(
    r"(?:^|(?<=\r))(?:\d+[ \t]*(?:\r\n?|\n))?"
    r"[ \t]*\d[\d:.,]*[ \t]*-->[^\r\n]*(?:\r\n?|\n|$)",
    re.MULTILINE,
)
"""The times of a cue, behind the line of its number if there is one."""
_CUE_MARK: Final = re.compile(
    r"<[^<>\n]*>|\{\\[^{}\n]*\}"  # italics, voices, times of words; places on the screen
    r"|(?<=[\n}])[ \t]*[-\u2010-\u2015]"  # another speaker
)
_MARKDOWN_MARK: Final = re.compile(
    r"""
    (?<!(?<!\\)`)(?P<ticks>`++)                    # code, up to a run of as many ticks
        (?>(?:[^`]++|(?!(?P=ticks)(?!`))`++)*)(?P=ticks)
    | \\[!-/:-@\[-`{-~]                             # an escaped mark
    | <[A-Za-z/!?][^<>]*>                           # an address, HTML
    | \[[ xX]\](?=\s) | \[![A-Z]+\]                # a task, an alert
    | \[\^[^\[\]\s]+\]                              # a footnote
    | \]\((?>(?:[^()\s]|\([^()\s]*\))*)
        (?:\s++(?:"[^"]*"|'[^']*'))?\s*+\)          # the address of a link
    | \]\[[^\[\]]*\]                                # the name of one
    | !?\[ | \]
    | https?://[^\s<>)]+
    | &(?:\#\w+|\w+);
    | \*++ | ~~ | (?<!\w)_++ | (?<!_)_++(?!\w)      # emphasis
    | \{[\#.:][^{}\n]*\}                            # attributes
    | \$\$[^$]+\$\$                                  # a formula; in a line it has no spaces,
    | (?<![\w$])\$(?=[^\s$])                       # or a sign of one
        (?:[^\s$]*+|(?=[^$\n]*[\\^_=+<>{}])[^$\n]*)(?<=\S)\$(?![\w$])
    | ^:::+[^\n]* | ^:[ ]+                          # a container, a definition
    | (?:(?<![ ])[ ]{2,}+|\\)\r?\n[ \t]*            # a line break
    """,
    re.VERBOSE | re.MULTILINE,
)
_LONE: Final = re.compile(r"\s*+[^\w\s]*+(?=\s|\Z)\s*+|\s++")
"""Punctuation that stands alone behind a mark, and the space around it."""
_OPENS: Final = re.compile(
    r"\s*+[(\[{\u00ab\u201e\u2018\u201c\u00bf\u00a1\u2010-\u2015-]*+(?=\s|\Z)\s*+|\s++"
)
"""The same before a mark, read backwards: brackets, quotes and dashes. Other marks end a sentence,
also behind a space, as in French."""
_FRONT_MATTER: Final = re.compile(r"(---|\+\+\+)[ \t]*\r?\n[\s\S]*?\n\1[ \t]*(?:\r?\n|$)")
_BYTE_ORDER_MARK: Final = "\ufeff"
_FORMAT_OF_PIECES: Final[dict[TextDocumentFormat, TextFormat]] = {
    "html": "markup",
    "markdown": "document",
    "srt": "document",
    "vtt": "markup",  # < and & are written as in HTML
}
_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a document. has_lines: its line ends are seen, so its translation has as many."""

    text: str
    translated: bool
    has_lines: bool = False

    def written(self, translation: str) -> str:
        """The translation in the lines of the piece."""
        count = self.text.count("\n")
        if not self.has_lines or not count:
            return translation
        end = "\r\n" if "\r\n" in self.text else "\n"
        width = max(1, len(translation) // (count + 1))
        while len(lines := textwrap.wrap(translation, width)) > count + 1:
            width += 1
        return end.join(lines)


class Document(Protocol):
    """A document: its texts are translated in `text_format` and put back, the rest is kept."""

    @property
    def text_format(self) -> TextFormat:
        """The format of each text."""

    def texts(self) -> list[str]:
        """The texts to translate, in order."""

    def put_together(self, translations: Iterator[str]) -> bytes:
        """The file of the document with these translations of its texts."""

    def remark(self) -> str:
        """A sentence about the parts that stay untranslated; "" if there are none."""


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A document of text in pieces.

    text_format: that of each piece that is translated. joins_lines: a line end in a piece ends no
    sentence; HTML has rules of its own.
    """

    pieces: list[Piece]
    text_format: TextFormat
    joins_lines: bool

    def texts(self) -> list[str]:
        """The texts to translate, in order."""
        wanted = [piece for piece in self.pieces if piece.translated]
        if not self.joins_lines:
            return [piece.text for piece in wanted]
        return [on_one_line(piece.text, has_seen_ends=piece.has_lines) for piece in wanted]

    def put_together(self, translations: Iterator[str]) -> bytes:
        """The file of the document with these translations of its texts."""
        return "".join(
            piece.written(next(translations)) if piece.translated else piece.text
            for piece in self.pieces
        ).encode()

    def remark(self) -> str:
        """Nothing is left out."""
        return ""


def format_of_file(path: Path) -> DocumentFormat | None:
    """The format of a document by the ending of its name; None: it is lines of text.

    Raises ConfigError that says what to do with one that is not translated here.
    """
    ending = path.suffix.lower()
    if ending in _NOT_TEXT:
        raise ConfigError(
            f"files that end in {ending} are not translated here",
            place=path,
            remedy="save it as HTML, Markdown or text, and translate that",
        )
    if ending in _NOT_LINES:
        raise ConfigError(
            f"files that end in {ending} are not translated here, as their form would be lost",
            place=path,
            remedy="translate its text alone, or set text_format to line if its lines are text",
        )
    if ending in _CATALOGUES:
        raise ConfigError(
            f"catalogues that end in {ending} are not translated here",
            place=path,
            remedy="convert it to .po, with xliff2po of the Translate Toolkit, and translate that",
        )
    return _FORMATS.get(ending)


def read_document(content: bytes, document_format: DocumentFormat, *, place: str) -> Document:
    """A document from the content of its file. place: the name of the file.

    Raises UnicodeDecodeError, ConfigError if it is damaged, and MachineError if a package that
    reads it is not installed.
    """
    if document_format == "word":
        return WordDocument.read(content, place=place)
    text = content.decode()
    if document_format == "gettext":
        return Catalogue.read(text, place=place)
    return cut_document(text, document_format)


def cut_document(text: str, document_format: TextDocumentFormat) -> TextDocument:
    """The pieces of a document of text; together they are the text."""
    start = len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0
    text, mark = text[start:], text[:start]
    pieces = [Piece(mark, translated=False)] if mark else []
    if document_format == "html":
        for number, paragraph in enumerate(paragraphs(text, "markup")):
            if number:
                pieces.append(Piece("\n", translated=False))
            pieces.append(Piece(paragraph, translated=True))
    else:
        # A new line of Markdown may begin a list where it happens to begin with a dash.
        has_lines = document_format != "markdown"
        spans = _markdown_spans(text) if document_format == "markdown" else _cue_spans(text)
        position = 0
        for span_start, span_end in spans:
            pieces.append(Piece(text[position:span_start], translated=False))
            pieces.append(Piece(text[span_start:span_end], translated=True, has_lines=has_lines))
            position = span_end
        pieces.append(Piece(text[position:], translated=False))
    return TextDocument(pieces, _FORMAT_OF_PIECES[document_format], document_format != "html")


def _cue_spans(text: str) -> Iterator[_Span]:
    """The text in the cues of subtitles, without tags and the dashes of speakers."""
    edges = [0, *(found.end() for found in _BLANK_LINES.finditer(text)), len(text)]
    for start, end in pairwise(edges):
        if _NOT_A_CUE.match(text, start):
            continue
        # Text after a blank line has no times of its own: it goes on with the cue before. Cues
        # without a blank line between them are told apart by their times.
        times = [found.span() for found in _TIMES.finditer(text, start, end)]
        begins = [after for _, after in times] or [start]
        ends = [*(before for before, _ in times[1:]), end]
        for begin, cue_end in zip(begins, ends, strict=True):
            yield from _between(_CUE_MARK, text, begin, cue_end)


def _markdown_spans(text: str) -> Iterator[_Span]:
    """The text in Markdown, without marks, code, addresses and HTML."""
    starts = [0, *(found.end() for found in re.finditer("\n", text)), len(text)]
    position = 0
    for token in _blocks_of_markdown(text):
        if token.type != "inline" or token.map is None:
            continue
        end = starts[token.map[1]]
        position = max(position, starts[token.map[0]])
        run: _Span | None = None  # lines between which there is nothing but space
        for line in token.content.split("\n"):
            found = text.find(line, position, end)
            if found < 0:  # a cell of a table may have an escaped mark
                line = line.replace("|", r"\|")
                found = text.find(line, position, end)
            if found < 0:  # it is written in another way: it stays
                continue
            position = found + len(line)
            if run and text[run[1] : found].strip():
                yield from _between(_MARKDOWN_MARK, text, *run)
                run = None
            run = (run[0] if run else found), position
        if run:
            yield from _between(_MARKDOWN_MARK, text, *run)


def _blocks_of_markdown(text: str) -> list[Token]:
    """The blocks, whose lines are those of the text; front matter is none."""
    from markdown_it import MarkdownIt

    front = _FRONT_MATTER.match(text)
    if front is not None:
        text = "\n" * front[0].count("\n") + text[front.end() :]
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser.parse(re.sub(r"\r(?!\n)", " ", text))  # a lone one would count as a line


def _between(marks: re.Pattern[str], text: str, start: int, end: int) -> Iterator[_Span]:
    """What stands between the marks, without the space around it.

    Punctuation that stands alone beside a mark, as in `**Note**: close the (*old*) file`, is no
    part of it: a model would lose it.
    """
    edges = [start, *(edge for found in marks.finditer(text, start, end) for edge in found.span())]
    for first, last in zip(edges[::2], [*edges[1::2], end], strict=True):
        own = text[first:last]
        left = len(own) - len(own.lstrip())
        if first > start and (lone := _LONE.match(own)):
            left = lone.end()
        own = own[::-1]
        right = len(own) - len(own.lstrip())
        if last < end and (lone := _OPENS.match(own)):
            right = lone.end()
        if first + left < last - right:
            yield first + left, last - right
