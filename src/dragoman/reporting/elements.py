"""The parts of every page: text, plots and lists as HTML that needs nothing from elsewhere.

Functions, not templates: every part is one expression, and mypy checks its arguments.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from importlib import resources

from dragoman.base import units
from dragoman.base.units import Quantity
from dragoman.reporting.svg import Plot

_WIDE, _NARROW = 760, 340
"""Widths of plots on a wide and on a narrow screen, in pixels."""
_SYMBOLS = {
    symbol
    for quantity in vars(units).values()
    if isinstance(quantity, Quantity)
    for symbol, _ in quantity.symbols + quantity.also
    if symbol
}
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=(?:{'|'.join(map(re.escape, _SYMBOLS))})\b)")
_UNBROKEN = re.compile(r"\b\d[\d.]*e-\d+\b|--[a-z][a-z-]*")
"""Browsers would break these after their dashes."""


def whole_page(title: str, body: str, *, head: str = "") -> str:
    """A page of this style; light and dark, wide and narrow, on screen and on paper.

    head: further elements of the page's head.
    """
    style = resources.files("dragoman.reporting").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style>{head}</head>"
        f"<body>{body}</body></html>\n"
    )


def escape(text: str) -> str:
    """The text for HTML; numbers stay on one line with their units, options with their dashes."""
    text = _BEFORE_UNIT.sub("\u00a0", html.escape(text)).replace("(= ", "(=\u00a0")
    return _UNBROKEN.sub(r"<span class='whole'>\g<0></span>", text)


def section(heading: str, body: str) -> str:
    """A part of a page under its heading; "" if the body is empty."""
    return f"<section><h2>{escape(heading)}</h2>{body}</section>" if body else ""


def values(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with their values, side by side."""
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in pairs)
    return f"<dl class='run'>{''.join(cells)}</dl>"


def problems(heading: str, texts: Sequence[str], kind: str = "") -> str:
    """A section that lists texts, or nothing; kind: a class of page.css."""
    return section(heading, items(texts, kind))


def items(texts: Sequence[str], kind: str = "") -> str:
    """A list of texts; "" if there are none."""
    start = f"<li class='{kind}'>" if kind else "<li>"
    shown = "".join(f"{start}{escape(text)}</li>" for text in texts)
    return shown and f"<ul class='problems'>{shown}</ul>"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{''.join(cells)}</table>"


def figures(plots: Iterable[Plot]) -> str:
    """Plots below each other, drawn for a wide and for a narrow screen; "" if all are empty."""
    shown = list(plots)
    wide, narrow = ("".join(plot.svg(width) for plot in shown) for width in (_WIDE, _NARROW))
    if not wide:
        return ""
    return f"<figure class='wide'>{wide}</figure><figure class='narrow'>{narrow}</figure>"
