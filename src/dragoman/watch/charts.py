"""Curves and bars in characters of a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rich.text import Text

_BRAILLE: Final = 0x2800
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character's dots: four rows of two."""
_ROWS, _COLUMNS = len(_DOTS), len(_DOTS[0])
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart: its points in the order of x, and its colour."""

    name: str
    points: Points
    style: str


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    width: int,
    height: int,
    text: Callable[[float], str],
) -> list[Text]:
    """A heading, then `height` - 1 rows of curves with their highest and lowest value beside.

    Lines are at most `width` characters wide. Without two points to draw it says so.
    """
    heading = Text.assemble((title, "bold"), no_wrap=True)
    for curve in curves if len(curves) > 1 else ():
        heading.append(f"  {curve.name}", style=curve.style)
    heading.truncate(width, overflow="ellipsis")
    finite = [
        Curve(curve.name, [(x, y) for x, y in curve.points if math.isfinite(y)], curve.style)
        for curve in curves
    ]
    drawn = [curve for curve in finite if len(curve.points) >= 2]
    rows = max(height - 1, 1)
    if not drawn:
        told = finite[0].points[-1][1] if finite and finite[0].points else None
        empty = Text("no curve yet" if told is None else f"{text(told)} so far", style="dim")
        return [heading, empty, *(Text() for _ in range(rows - 1))]
    values = [y for curve in drawn for _, y in curve.points]
    low, high = min(values), max(values)
    labels = (text(high), text(low))
    gutter = max(map(len, labels)) + 1
    cells = _draw(drawn, low=low, high=high, columns=max(width - gutter, 2), rows=rows)
    lines = [heading]
    for number, row in enumerate(cells):
        label = labels[0] if number == 0 else labels[1] if number == rows - 1 else ""
        line = Text.assemble((f"{label:>{gutter - 1}} ", "dim"), no_wrap=True)
        for character, style in row:
            line.append(character, style=style)
        lines.append(line)
    return lines


def spark(values: Sequence[float], *, width: int, most: float | None = None) -> str:
    """The last `width` values as blocks from 0 to `most`, their largest where it is None."""
    shown = list(values)[-width:]
    top = most or max(shown, default=0.0)
    if top <= 0:
        return " " * width
    last = len(_BLOCKS) - 1
    blocks = (_BLOCKS[min(max(math.ceil(value / top * last), 0), last)] for value in shown)
    return "".join(blocks).rjust(width)


def bar(parts: Sequence[tuple[float, str]], *, width: int) -> Text:
    """Shares of 1 side by side, each in its style; what is missing to 1 stays dim."""
    line, used, end = Text(no_wrap=True), 0, 0.0
    for share, style in parts:
        end = min(end + max(share, 0.0), 1.0)
        length = round(end * width) - used
        line.append("█" * length, style=style)
        used += length
    return line.append("░" * (width - used), style="dim")


def _draw(
    curves: Sequence[Curve], *, low: float, high: float, columns: int, rows: int
) -> list[list[tuple[str, str]]]:
    """(character, style) by row and column; the curve that was drawn last colours a character."""
    bits = [[0] * columns for _ in range(rows)]
    styles = [[""] * columns for _ in range(rows)]
    xs = [x for curve in curves for x, _ in curve.points]
    left, span = min(xs), (max(xs) - min(xs)) or 1.0
    across, down = columns * _COLUMNS - 1, rows * _ROWS - 1
    for curve in curves:
        spots = [
            (
                round((x - left) / span * across),
                round((high - y) / ((high - low) or 1.0) * down) if high > low else down // 2,
            )
            for x, y in curve.points
        ]
        for one, two in pairwise(spots):
            for column, row in _line(one, two):
                bits[row // _ROWS][column // _COLUMNS] |= _DOTS[row % _ROWS][column % _COLUMNS]
                styles[row // _ROWS][column // _COLUMNS] = curve.style
    return [
        [
            (chr(_BRAILLE + bit) if bit else " ", style)
            for bit, style in zip(row, looks, strict=True)
        ]
        for row, looks in zip(bits, styles, strict=True)
    ]


def _line(one: tuple[int, int], two: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line."""
    length = max(abs(two[0] - one[0]), abs(two[1] - one[1]), 1)
    return [
        (
            round(one[0] + (two[0] - one[0]) * n / length),
            round(one[1] + (two[1] - one[1]) * n / length),
        )
        for n in range(length + 1)
    ]
