"""A document in two forms: a page of HTML that needs nothing from elsewhere, and Markdown.

The page has light and dark colours, fits wide and narrow screens, and has no script. Plots are on
the page alone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.files import write_whole
from dragoman.base.printable import printable
from dragoman.base.units import Quantity
from dragoman.reporting.svg import Plot
from dragoman.reporting.verdict import Verdict

_WIDTHS: Final = (760, 340)
"""Of plots on a wide and on a narrow screen, in pixels."""
_SYMBOLS: Final = {
    symbol
    for quantity in vars(units).values()
    if isinstance(quantity, Quantity)
    for symbol, _ in quantity.symbols + quantity.also
    if symbol
}
_BEFORE_UNIT: Final = re.compile(rf"(?<=\d) (?=(?:{'|'.join(map(re.escape, _SYMBOLS))})\b)")
_UNBROKEN: Final = re.compile(r"\b\d[\d.]*e-\d+\b|--[a-z][a-z-]*")
"""Browsers would break these after their dashes."""
_MARKS: Final = re.compile(r"[\\`*\[\]|]")


def escape(text: str) -> str:
    """The text for HTML; numbers stay on one line with their units, options with their dashes."""
    text = _BEFORE_UNIT.sub("\u00a0", html.escape(text)).replace("(= ", "(=\u00a0")
    return _UNBROKEN.sub(r"<span class='whole'>\g<0></span>", text)


def _cell(text: str) -> str:
    """Text for Markdown, in one line: no tag, no link, no code and no end of a table's cell."""
    return _MARKS.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A text, after a label if it has one."""

    text: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts, which begin with their names; heading: the names of the columns."""

    rows: Sequence[Sequence[str]]
    heading: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """A list of texts."""

    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Figures:
    """Plots below each other, drawn for a wide and for a narrow screen."""

    plots: Sequence[Plot]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the question in the heading."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Answers:
    """Questions with their answers; those with a number have a section of their own."""

    verdicts: Sequence[tuple[int | None, Verdict]]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading. key: the target of links to it.

    folded: a reader of the page opens them.
    """

    heading: str
    blocks: Sequence[Block]
    key: str = ""
    folded: bool = False


Block = Paragraph | Table | Items | Figures | Answer | Answers | Section
"""A part of a document. One that is empty is not shown."""


@dataclass(frozen=True, slots=True)
class Document:
    """A title, names with their values, and blocks. name: that of the page in a browser."""

    title: str
    values: Sequence[tuple[str, str]]
    blocks: Sequence[Block]
    name: str = ""

    def html(self, *, refresh_s: float | None = None) -> str:
        """The page. refresh_s: how often it reloads itself; None: never."""
        style = resources.files("dragoman.reporting").joinpath("page.css").read_text("utf-8")
        reload = f'<meta http-equiv="refresh" content="{refresh_s:.0f}">' if refresh_s else ""
        pairs = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
            for name, text in self.values
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.name or self.title)}</title><style>{style}</style>{reload}"
            f"</head><body><main><header><h1>{escape(self.title)}</h1><dl class='run'>{pairs}</dl>"
            f"</header>{''.join(map(_html, self.blocks))}</main></body></html>\n"
        )

    def markdown(self) -> str:
        """The text, without plots."""
        values = (f"- {_cell(name)}: {_cell(text)}" for name, text in self.values)
        lines = [f"# {_cell(self.title)}", "", *values, *_markdown(self.blocks)]
        return "\n".join(lines) + "\n"


def _html(block: Block) -> str:
    """A block as HTML; "" if it is empty."""
    match block:
        case Paragraph(text, label):
            before = f"<b>{escape(label)}</b> " if label else ""
            return text and f"<p class='method'>{before}{escape(text)}</p>"
        case Table(rows, heading):
            return _table(rows, heading) if rows else ""
        case Items(texts):
            return _list("problems", map(escape, texts))
        case Figures(plots):
            wide, narrow = ("".join(plot.svg(width) for plot in plots) for width in _WIDTHS)
            both = f"<figure class='wide'>{wide}</figure><figure class='narrow'>{narrow}</figure>"
            return both if wide else ""
        case Answer(verdict):
            return _answer(verdict)
        case Answers(verdicts):
            return _list("answers", (_answered(number, verdict) for number, verdict in verdicts))
        case Section(heading, blocks, key, folded):
            body, title = "".join(map(_html, blocks)), escape(heading)
            whole = f"<section id='{key}'>" if key else "<section>"
            whole += f"<h2>{title}</h2>{body}</section>"
            return body and (_folded(title, body) if folded else whole)


def _table(rows: Sequence[Sequence[str]], heading: Sequence[str]) -> str:
    """A table; one with a heading scrolls by itself on a narrow screen."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heading)
    lines = [f"<table class='runs'><tr>{head}</tr>" if head else "<table>"]
    for name, *texts in rows:
        cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
        lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return f"{''.join(lines)}</table>"


def _list(kind: str, rows: Iterable[str]) -> str:
    shown = "".join(f"<li>{row}</li>" for row in rows)
    return shown and f"<ul class='{kind}'>{shown}</ul>"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>"


def _answered(number: int | None, verdict: Verdict) -> str:
    """A question with its answer, which leads to its section, or else has its limits."""
    if number is None:
        limits = f" <small>{escape('; '.join(verdict.thresholds))}</small>"
        return f"<span class='question'>{escape(verdict.question)}</span>{_answer(verdict, limits)}"
    asked = f"<span class='question'>{number}. {escape(verdict.question)}</span>"
    return f"<a href='#{verdict.key}'>{asked}{_answer(verdict)}</a>"


def _answer(verdict: Verdict, limits: str = "") -> str:
    """The answer in a colour: whether there is something to do, or nobody can tell."""
    tone = "unknown" if verdict.answer == "cannot tell" else "act" if verdict.remedy else "plain"
    remedy = f"<span class='remedy'>{escape(verdict.remedy)}</span>" if verdict.remedy else ""
    return (
        f"<div class='answer'><span class='badge {tone}'>{escape(verdict.answer)}</span>"
        f"<span class='says'>{escape(verdict.says)}{limits}</span>{remedy}</div>"
    )


def _markdown(blocks: Iterable[Block]) -> Iterator[str]:
    """The lines of blocks, each after an empty line."""
    for block in blocks:
        if lines := list(_lines(block)):
            yield from ("", *lines)


def _lines(block: Block) -> Iterator[str]:
    """A block as Markdown; no line if it is empty."""
    match block:
        case Paragraph(text, label) if text:
            yield f"{label}: {_cell(text)}" if label else _cell(text)
        case Table(rows, heading) if rows:
            columns = len(rows[0])
            yield from map(_row, (heading or [""] * columns, ["---"] * columns, *rows))
        case Items(texts):
            yield from (f"- {_cell(text)}" for text in texts)
        case Answer(verdict):
            said = filter(None, (*verdict.says.split("\n"), verdict.remedy))
            yield f"**{verdict.answer}**: " + "  \n".join(map(_cell, said))
        case Answers(verdicts) if verdicts:
            yield from ("| | question | answer | |", "|---:|---|---|---|")
            for number, verdict in verdicts:
                says = _cell(f"{verdict.says} {verdict.remedy}")
                answer = f"{_cell(verdict.question)} | **{verdict.answer}** | {says}"
                yield f"| {number or ''} | {answer} |"
        case Section(heading, parts) if lines := list(_markdown(parts)):
            yield from (f"{'' if block.folded else '## '}{_cell(heading)}", *lines)


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, texts))} |"


def write_files(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts into files of these names; returns their paths.

    Characters that are not safe in text are written as �: control characters, which can steer the
    terminal of a reader, and halves of surrogate pairs.
    Raises MachineError if the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(directory / name, printable(text))
    except OSError as error:
        raise MachineError(
            f"cannot write the report: {error.strerror}",
            place=directory,
            remedy="free disk space, or choose another place",
        ) from error
    return [directory / name for name in texts]
