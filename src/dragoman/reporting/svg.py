"""Plots, and their pictures as SVG without scripts, fonts or files.

Colours are classes of the page, which has a light and a dark style. A terminal draws the same line
plots with characters (`watch.screen`).

Not matplotlib: its import takes 0.46 s (this module: 0.02 s), it writes colours into each picture,
and by default one of 2 x 400 points has 19 KB and not 11 KB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

_CHARACTER = 7.0
"""Approximate width of a character of 12 px."""
_LINE = 16.0
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or points; band: low and high of each point."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The label of an axis, and the form of its numbers. from_zero: whether it begins at 0."""

    label: str
    text: Callable[[float], str]
    from_zero: bool = False


class Plot(Protocol):
    """A picture that is drawn at any width."""

    def svg(self, width: int) -> str:
        """The picture; "" if there is nothing to draw."""


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Series over one pair of axes; nothing if no series has two points."""

    series: Sequence[Series]
    x: Axis
    y: Axis
    height: int = 180

    def svg(self, width: int) -> str:
        """The picture."""
        drawn = [series for series in map(_thinned, self.series) if len(series.points) >= 2]
        if not drawn:
            return ""
        x, y = _scales(self, drawn, width)
        names = [series.name for series in drawn]
        body = _axes(self, x, y)
        body += (part for n, series in enumerate(drawn) for part in _drawn(series, n, x, y))
        title = f"{self.y.label} over {self.x.label}: {', '.join(names)}"
        return _under_legend(title, names, body, width, self.height)


@dataclass(frozen=True, slots=True)
class BarPlot:
    """Parts of a whole side by side, each a name and a value; nothing if the whole is 0."""

    title: str
    parts: Sequence[tuple[str, float]]
    text: Callable[[float], str]

    def svg(self, width: int) -> str:
        """The picture."""
        whole = sum(value for _, value in self.parts)
        if whole <= 0:
            return ""
        body, at = [], 0.0
        for number, (_, value) in enumerate(self.parts):
            length = value / whole * width
            if length > 0:
                body.append(
                    f'<rect class="f{number}" x="{at:.1f}" y="0" width="{length:.1f}" height="22"/>'
                )
            at += length
        names = [f"{name} {self.text(value)}" for name, value in self.parts]
        title, height = f"{self.title}: {', '.join(names)}", 24 + _legend_height(names, width)
        return _svg(title, width, height, [*body, _moved(_legend(names, width), 30)])


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers from low to high; perhaps none if `most` is below five."""
    if high <= low:
        return [low]
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _x_ticks(low: float, high: float, most: int) -> list[float]:
    """At least two ticks even if there is little room: one alone shows no scale."""
    choices = (ticks(low, high, more) for more in range(max(most, 2), max(most, 2) + 3))
    return next((places for places in choices if len(places) >= 2), ticks(low, high, most))


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values from low to high along a side of the picture, from start to end in pixels."""

    low: float
    high: float
    start: float
    end: float
    ticks: list[float]

    def at(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)


def _scales(plot: LinePlot, drawn: Sequence[Series], width: int) -> tuple[_Scale, _Scale]:
    """The scales of x and y; room beside them is for their numbers and labels."""
    xs = [point[0] for series in drawn for point in series.points]
    ys = [point[1] for series in drawn for point in series.points]
    ys += [value for series in drawn for pair in series.band for value in pair]
    low, high = 0.0 if plot.y.from_zero else min(ys), max(ys)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = max(low - margin, 0.0) if low >= 0 else low - margin, high + margin
    y = _Scale(low, high, plot.height - 38.0, 22.0, ticks(low, high, 6))
    left = max(len(plot.y.text(tick)) for tick in y.ticks) * _CHARACTER + 10
    low, high = min(xs), max(xs)
    widest = max(len(plot.x.text(value)) for value in (low, high)) * _CHARACTER + 16
    x_ticks = _x_ticks(low, high, min(8, int((width - left) / widest)))
    return _Scale(low, high, left, width - 14.0, x_ticks), y


def _axes(plot: LinePlot, x: _Scale, y: _Scale) -> list[str]:
    """Grid, numbers and labels."""
    elements = [_text(plot.y.label, 0, 12, "start", kind="axis")]
    for tick in y.ticks:
        at = y.at(tick)
        elements.append(f'<path class="grid" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>')
        elements.append(_text(plot.y.text(tick), x.start - 6, at + 4, "end"))
    for tick in x.ticks:
        at, text = x.at(tick), plot.x.text(tick)
        elements.append(f'<path class="grid" d="M{at:.1f} {y.end:.1f}V{y.start + 4:.1f}"/>')
        half = len(text) * _CHARACTER / 2
        elements.append(_text(text, min(max(at, half), x.end + 14 - half), y.start + 18, "middle"))
    elements.append(_text(plot.x.label, x.end, y.start + 34, "end", kind="axis"))
    return elements


def _drawn(series: Series, number: int, x: _Scale, y: _Scale) -> list[str]:
    """The elements of one series: first its band, so that its line or dots cover the band."""
    elements = []
    spots = [(x.at(point[0]), y.at(point[1])) for point in series.points]
    if series.band:
        places = [place for place, _ in spots]
        highs = [(at, y.at(high)) for at, (_, high) in zip(places, series.band, strict=True)]
        lows = [(at, y.at(low)) for at, (low, _) in zip(places, series.band, strict=True)]
        elements.append(f'<path class="b{number}" d="{_path([*highs, *reversed(lows)])}Z"/>')
    if not series.dots:
        elements.append(f'<path class="l{number}" d="{_path(spots)}"/>')
    if series.dots or len(spots) <= 40:
        elements += [
            f'<circle class="f{number}" cx="{at:.1f}" cy="{high:.1f}" r="2.5"/>'
            for at, high in spots
        ]
    return elements


def _path(spots: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)


def _thinned(series: Series) -> Series:
    """The series with at most 400 finite points, evenly chosen, with the first and the last."""
    kept = [n for n, (x, y) in enumerate(series.points) if math.isfinite(x) and math.isfinite(y)]
    if len(kept) > _MOST_POINTS:
        span = (len(kept) - 1) / (_MOST_POINTS - 1)
        kept = [kept[round(n * span)] for n in range(_MOST_POINTS)]
    return Series(
        series.name,
        [series.points[n] for n in kept],
        [series.band[n] for n in kept] if series.band else (),
        series.dots,
    )


def _under_legend(
    title: str, names: Sequence[str], body: Sequence[str], width: int, height: int
) -> str:
    down = _legend_height(names, width)
    return _svg(title, width, height + down, [*_legend(names, width), _moved(body, down)])


def _text(text: str, x: float, y: float, anchor: str, *, kind: str = "") -> str:
    looks = f'class="{kind}" ' if kind else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {looks}{place}>{escape(text)}</text>"


def _legend(names: Sequence[str], width: int) -> list[str]:
    return [
        f'<rect class="f{number}" x="{x:.1f}" y="{y + 3:.1f}" width="10" height="10"/>'
        + _text(name, x + 15, y + 12, "start")
        for number, (name, x, y) in enumerate(_places(names, width))
    ]


def _legend_height(names: Sequence[str], width: int) -> int:
    return int(_places(names, width)[-1][2] + _LINE + 8)


def _places(names: Sequence[str], width: int) -> list[tuple[str, float, float]]:
    """Name, x and y of each entry: in rows as wide as the plot."""
    places, x, y = [], 0.0, 0.0
    for name in names:
        needed = 15 + len(name) * _CHARACTER
        if x and x + needed > width:
            x, y = 0.0, y + _LINE
        places.append((name, x, y))
        x += needed + 14
    return places


def _moved(body: Sequence[str], down: float) -> str:
    return f'<g transform="translate(0 {down:.0f})">{"".join(body)}</g>'


def _svg(title: str, width: int, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(title, quote=True)}">{"".join(body)}</svg>'
    )
