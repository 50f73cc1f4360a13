"""The state of a run as lines and curves that fit a terminal of any size.

The curves are drawn here and not by plotext: it has one figure for the whole process, and this
screen redraws several plots, each in the space that is left.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from statistics import fmean
from typing import Final

from rich.text import Text

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.units import Quantity
from dragoman.reporting import measures
from dragoman.reporting.cost import spent_text
from dragoman.reporting.facts import Facts, bleu_text
from dragoman.reporting.plots import BLEU, STEPS, without_start
from dragoman.reporting.svg import Axis, LinePlot, Series
from dragoman.telemetry.console import clock_time, learning, speed, steps_done, time_left
from dragoman.watch.live import HostNow, Now

_BRAILLE: Final = 0x2800
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character's dots: four rows of two."""
_ROWS, _COLUMNS = len(_DOTS), len(_DOTS[0])
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def chart(plot: LinePlot, styles: Sequence[str], *, width: int, height: int) -> list[Text]:
    """A heading, then `height` - 1 rows of curves with their highest and lowest value at the left.

    styles: the style of each series, whose points are in the order of x. Rows have at most `width`
    characters. If no series has two points, the last value of the first one is shown instead, or
    that there is no curve yet.
    """
    heading = Text.assemble((plot.y.label, "bold"), no_wrap=True)
    if len(plot.series) > 1:
        for series, style in zip(plot.series, styles, strict=True):
            heading.append(f"  {series.name}", style=style)
    heading.truncate(width, overflow="ellipsis")
    finite = [[(x, y) for x, y in series.points if math.isfinite(y)] for series in plot.series]
    drawn = [series for series in zip(finite, styles, strict=True) if len(series[0]) >= 2]
    rows = max(height - 1, 1)
    if not drawn:
        says = f"{plot.y.text(finite[0][-1][1])} so far" if finite[0] else "no curve yet"
        return [heading, Text(says, style="dim"), *(Text() for _ in range(rows - 1))]
    values = [y for points, _ in drawn for _, y in points]
    labels = (plot.y.text(max(values)), plot.y.text(min(values)))
    gutter = max(map(len, labels)) + 1
    cells = _draw(drawn, columns=max(width - gutter, 2), rows=rows)
    lines = [heading]
    for index, row in enumerate(cells):
        label = labels[0] if index == 0 else labels[1] if index == rows - 1 else ""
        line = Text.assemble((f"{label:>{gutter - 1}} ", "dim"), no_wrap=True)
        for character, style in row:
            line.append(character, style=style)
        lines.append(line)
    return lines


def spark(values: Sequence[float], *, width: int, most: float | None = None) -> str:
    """The last `width` values as blocks from 0 to `most` (the largest of them if it is None)."""
    shown = list(values)[-width:]
    top = most or max(shown, default=0.0)
    if top <= 0:
        return " " * width
    last = len(_BLOCKS) - 1
    blocks = (_BLOCKS[min(max(math.ceil(value / top * last), 0), last)] for value in shown)
    return "".join(blocks).rjust(width)


def bar(parts: Sequence[tuple[float, str]], *, width: int) -> Text:
    """Shares of 1 side by side, each in its style; the rest up to 1 is dim."""
    line, used, end = Text(no_wrap=True), 0, 0.0
    for share, style in parts:
        end = min(end + max(share, 0.0), 1.0)
        length = round(end * width) - used
        line.append("█" * length, style=style)
        used += length
    return line.append("░" * (width - used), style="dim")


def _draw(
    curves: Sequence[tuple[Sequence[tuple[float, float]], str]], *, columns: int, rows: int
) -> list[list[tuple[str, str]]]:
    """Draw curves, each points and a style; returns (character, style) by row and column.

    The curve drawn last gives a character its colour.
    """
    bits = [[0] * columns for _ in range(rows)]
    styles = [[""] * columns for _ in range(rows)]
    xs, ys = zip(*(point for points, _ in curves for point in points), strict=True)
    left, wide = min(xs), (max(xs) - min(xs)) or 1.0
    high, tall = max(ys), max(ys) - min(ys)
    across, down = columns * _COLUMNS - 1, rows * _ROWS - 1
    for points, style in curves:
        spots = [
            (
                round((x - left) / wide * across),
                round((high - y) / tall * down) if tall else down // 2,
            )
            for x, y in points
        ]
        for begin, end in pairwise(spots):
            for column, row in _line(begin, end):
                bits[row // _ROWS][column // _COLUMNS] |= _DOTS[row % _ROWS][column % _COLUMNS]
                styles[row // _ROWS][column // _COLUMNS] = style
    return [
        [
            (chr(_BRAILLE + bit) if bit else " ", style)
            for bit, style in zip(row, looks, strict=True)
        ]
        for row, looks in zip(bits, styles, strict=True)
    ]


def _line(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line."""
    length = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    return [
        (
            round(begin[0] + (end[0] - begin[0]) * n / length),
            round(begin[1] + (end[1] - begin[1]) * n / length),
        )
        for n in range(length + 1)
    ]


PHASE_STYLES: Final = {
    "data": "yellow",
    "compute": "cyan",
    "optimizer": "blue",
    "network": "red",
    "ranks": "magenta",
}
_STATE_STYLES: Final = {"running": "green", "finished": "cyan", "not started": "dim"}
_LEAST_CHART, _MOST_CHART = 4, 14
_LEAST_TABLE: Final = 3
_MOST_ALERTS: Final = 3
_HEIGHT_OF_LINE: Final = 12
"""An alert gets a line for each of so many lines of the screen."""
_MOST_SCORES: Final = 3
_GAP: Final = 2
_SPARK: Final = 10
_LEAST_BAR: Final = 5
_UNKNOWN: Final = "-"


def screen(now: Now, *, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` characters: the important ones first.

    Charts get the space that the rest leaves; if it is too small they are left out, then hosts. No
    text of a file controls the terminal: unprintable characters are shown as �.
    """
    head = [*_head(now, width), Text()]
    phases, alerts = list(_phases(now, width)), list(_alerts(now, width, height))
    hosts = _hosts(now, width)
    fixed = len(head) + len(phases) + len(alerts)
    hosts = _cut(hosts, max(height - fixed, 0))
    left = height - fixed - len(hosts)
    told = list(_translated(now))
    told = told if left - len(told) >= 2 * _LEAST_CHART else []
    left -= len(told)
    most = max(_MOST_CHART, height // 2)
    charts = _charts(now.facts, width, min(left, most)) if left >= _LEAST_CHART else []
    lines = [*head, *told, *charts, *phases, *hosts, *alerts][:height]
    for line in lines:
        line.plain = printable_line(line.plain)
        line.truncate(width, overflow="ellipsis")
    return lines


def _head(now: Now, width: int) -> Iterator[Text]:
    facts, progress, state = now.facts, now.progress, now.facts.state
    style = _STATE_STYLES.get(state, "bold yellow")
    name = Text(facts.name, style="bold")
    name.truncate(max(width - len(state) - _GAP, 10), overflow="ellipsis")
    space = " " * max(width - name.cell_len - len(state), 1)
    yield Text.assemble(name, space, (state, style), no_wrap=True)
    last = facts.max_steps or facts.last_step
    done = f"{units.COUNT.text(facts.last_step)} of {units.COUNT.text(last)} steps"
    share = facts.last_step / last if last else 0.0
    if progress.is_by_clock and state == "running":  # the steps to come change with the speed
        share, done = progress.share, steps_done(progress)
    yield bar([(share, "cyan")], width=max(width - len(done) - _GAP, 10)).append(f"  {done}")
    yield _pairs([("", part) for part in _times(now)])
    yield _pairs(_how_well(now))
    yield _pairs(_how_fast(now))


def _times(now: Now) -> Iterator[str]:
    """Time and money: how much is left, or was used."""
    facts, left_s = now.facts, now.progress.left_s
    if facts.state == "running":
        yield time_left(now.progress)
    elif facts.lives:
        ended = clock_time(facts.lives[-1].ended)
        yield f"{units.DURATION.text(round(facts.wall_s or 0))}, last heard of at {ended}"
    else:
        yield "no events yet"
    if spent := spent_text(facts):
        if facts.state == "running" and left_s is not None:
            yield f"{spent} of {spent_text(facts, more_s=left_s)} spent"
        else:
            yield f"{spent} spent"


def _how_well(now: Now) -> Iterator[tuple[str, str]]:
    """The quality so far, as (name, value)."""
    if now.progress.interval:
        yield from learning(now.progress.interval)
    for validation in now.facts.validations[-1:]:
        yield "dev loss", units.LOSS.optional_text(validation.dev_loss)
        if validation.bleu is not None:
            yield "BLEU", units.SCORE.text(validation.bleu)


def _how_fast(now: Now) -> Iterator[tuple[str, str]]:
    """The speed of the last interval, as (name, value)."""
    if seconds_s := measures.per_step(now.facts.intervals.where(slice(-1, None)), "interval_s"):
        # Its units name it, and 80 columns have no room for a label.
        yield "", f"{units.STEP_TIME.text(seconds_s)} = {units.STEP_RATE.text(1 / seconds_s)}"
    if now.progress.interval:
        yield from speed(now.progress)


def _translated(now: Now) -> Iterator[Text]:
    """The scores of test sets, and the newest sample translation."""
    last = {score.label: f"BLEU {bleu_text(score)}" for score in now.facts.test_scores}
    yield from (_pairs([score]) for score in list(last.items())[-_MOST_SCORES:])
    for sample in now.facts.samples[-1:]:
        for label, text in (("source", sample.source), ("translation", sample.hypothesis)):
            yield _pairs([(label.ljust(len("translation")), " ".join(text.split()))])
    if now.facts.samples or now.facts.test_scores:
        yield Text()


def _charts(facts: Facts, width: int, height: int) -> list[Text]:
    """Loss, BLEU and learning rate side by side; on a narrower terminal two, or the loss alone."""
    columns = 3 if width >= 72 else 2 if width >= 48 else 1
    each = (width - _GAP * (columns - 1)) // columns
    height -= 1
    curves = {
        "training": facts.intervals.points("train_loss"),
        "dev": measures.points(facts.validations, "dev_loss"),
    }
    losses = [
        Series(name, without_start(points, facts.last_step)) for name, points in curves.items()
    ]
    bleu = Series("BLEU", measures.points(facts.validations, "bleu"))
    rate = Series("learning rate", facts.intervals.points("learning_rate"))
    plots = (
        (LinePlot(losses, STEPS, Axis("loss", "{:.3g}".format)), ("blue", "magenta")),
        (LinePlot([bleu], STEPS, BLEU), ("green",)),
        (LinePlot([rate], STEPS, Axis("learning rate", "{:.1e}".format)), ("cyan",)),
    )
    made = [chart(plot, styles, width=each, height=height) for plot, styles in plots[:columns]]
    rows = []
    for parts in zip(*made, strict=True):
        row = Text(no_wrap=True)
        for part in parts:
            part.pad_right(max(each + _GAP - part.cell_len, 0))
            row.append_text(part)
        row.rstrip()
        rows.append(row)
    return [*rows, Text()]


def _phases(now: Now, width: int) -> Iterator[Text]:
    phases = now.phases
    if not phases:
        return
    labels = [(f"{name} {units.SHARE.text(share)}", name) for name, share in phases.items()]
    length = sum(len(text) + _GAP for text, _ in labels)
    label = "a step "
    line = Text.assemble((label, "dim"), no_wrap=True)
    parts = [(share, PHASE_STYLES[name]) for name, share in phases.items()]
    room = width - len(label) - length
    if room >= _LEAST_BAR:
        line.append_text(bar(parts, width=room))
    for text, name in labels:
        line.append(" " * _GAP).append(text, style=PHASE_STYLES[name])
    yield line


def _hosts(now: Now, width: int) -> list[Text]:
    """A row for each host under a heading, without columns that have no value.

    The last columns are left out if the terminal is too narrow.
    """
    rows = [host_cells(now, host) for host in now.hosts]
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if any(row.get(name, _UNKNOWN) != _UNKNOWN for row in rows)]
    while names:
        widths = {n: max(len(n), *(len(row.get(n, _UNKNOWN)) for row in rows)) for n in names}
        if sum(widths.values()) + _GAP * (len(names) - 1) <= width or len(names) == 1:
            break
        names.pop()
    if not names:
        return []
    lines = [_row({name: name for name in names}, widths, "dim")]
    lines += [_row(row, widths, "") for row in rows]
    return lines


def host_cells(now: Now, host: HostNow) -> dict[str, str]:
    """Column -> text, the most important columns first; "-" if it is not measured."""

    def gpus(name: str, together: Callable[[list[float]], float]) -> float | None:
        values = (sample[name] for sample in host.gpus.values())
        measured = [value for value in values if value is not None]
        return together(measured) if measured else None

    last = host.rates[-1] if host.rates else None
    capacity = now.capacity_bytes_per_s(host.name)
    flops = measures.useful_flop_share(now.configuration, host=host.name)
    values: dict[str, tuple[Quantity, float | None]] = {
        "GPU": (units.SHARE, gpus("utilisation_share", fmean)),
        "SMs busy": (units.SHARE, gpus("sm_activity_share", fmean)),
        "power": (units.POWER, gpus("power_w", sum)),
        "useful FLOPs": (units.SHARE, flops),
        "CPU": (units.SHARE, host.machine.get("cpu_share")),
        "out": (units.BYTE_RATE, last.sent if last else None),
        "in": (units.BYTE_RATE, last.received if last else None),
        "of link": (units.SHARE, last.sent / capacity if last and capacity else None),
        "memory": (units.SHARE, host.memory_share),
        "GPU memory": (units.SIZE, gpus("memory_bytes", sum)),
        "queue": (units.SCORE, host.machine.get("queued_batches")),
        "disk free": (units.SIZE, host.machine.get("disk_free_bytes")),
    }
    cells = {"host": host.name if len(host.name) <= 16 else f"{host.name[:15]}…"}
    for name, (quantity, value) in values.items():
        cells[name] = _UNKNOWN if value is None else quantity.text(value)
    if len(host.rates) > 1:
        cells["out, lately"] = spark(
            [rate.sent for rate in host.rates], width=_SPARK, most=capacity
        )
    return cells


def _row(cells: dict[str, str], widths: dict[str, int], style: str) -> Text:
    line = Text(style=style, no_wrap=True)
    for name, width in widths.items():
        text = cells.get(name, _UNKNOWN)
        line.append(text.ljust(width) if name == "host" else text.rjust(width))
        line.append(" " * _GAP)
    line.rstrip()
    return line


def _cut(rows: list[Text], most: int) -> list[Text]:
    """A heading and as many hosts as fit, then the number of the others.

    If `most` is 1 or 2, only the number; if it is 0, nothing.
    """
    if len(rows) <= most:
        return rows
    shown = rows[: most - 1] if most >= _LEAST_TABLE else []
    hidden = len(rows) - max(len(shown), 1)
    more = "more " if shown else ""
    note = f"and {hidden} {more}host{'' if hidden == 1 else 's'}"
    return [*shown, Text(note, style="dim")][:most]


def _alerts(now: Now, width: int, height: int) -> Iterator[Text]:
    """The first alerts, each with as many lines as the height allows."""
    room, most = max(width - 2, _LEAST_BAR), max(height // _HEIGHT_OF_LINE, 1)
    for text in now.alerts[:_MOST_ALERTS]:
        lines = _shortened(" ".join(text.split()), width=room, most=most)
        for mark, line in zip(chain("!", repeat(" ")), lines, strict=False):
            yield Text(f"{mark} {line}", style="yellow", no_wrap=True)
    if len(now.alerts) > _MOST_ALERTS:
        yield Text(f"  and {len(now.alerts) - _MOST_ALERTS} more: dragoman report", style="dim")


def _shortened(text: str, *, width: int, most: int) -> list[str]:
    """Up to so many lines of a text; the last is its end, which says what to do."""
    lines = textwrap.wrap(text, width)
    if len(lines) <= most:
        return lines
    begin = textwrap.wrap(text, width, max_lines=max(most - 1, 1), placeholder="…")
    _, _, end = text[1 - width :].partition(" ")
    return [*begin, f"…{end}"][:most]


def _pairs(pairs: Iterable[tuple[str, str]]) -> Text:
    line = Text(no_wrap=True)
    for label, value in pairs:
        if line:
            line.append("   ")
        if label:
            line.append(f"{label} ", style="dim")
        line.append(value)
    return line
