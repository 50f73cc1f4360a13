"""Where a run stands, as a page that asks for itself anew; it needs nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterator
from importlib import resources

from dragoman.base import units
from dragoman.base.printable import printable
from dragoman.report import plots
from dragoman.report.page import NARROW, WIDE, escape, state_text
from dragoman.report.svg import Axis, Part, Series, bar_plot, line_plot
from dragoman.watch.live import Now
from dragoman.watch.screen import host_cells, how_fast, how_well, times

_MEGA = 1e6


def shell(now: Now, *, nonce: str) -> str:
    """The whole page; its script replaces what `live` shows every two seconds."""
    style = _resource("dragoman.report", "page.css") + _resource("dragoman.watch", "watch.css")
    script = _resource("dragoman.watch", "watch.js")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{html.escape(printable(now.facts.name))}</title><style>{style}</style>"
        '<noscript><meta http-equiv="refresh" content="5"></noscript></head>'
        f"<body><p id='lost' hidden>dragoman watch does not answer any more</p>"
        f"<main id='live'>{live(now)}</main>"
        f'<script nonce="{nonce}">{script}</script></body></html>\n'
    )


def live(now: Now) -> str:
    """What changes: all of the page's body."""
    parts = [*_head(now), *_alerts(now), *_curves(now), *_step(now), *_hosts(now)]
    return printable("".join(parts))


def _head(now: Now) -> Iterator[str]:
    facts = now.facts
    last = facts.max_steps or facts.last_step
    share = facts.last_step / last if last else 0.0
    state = state_text(facts)
    yield (
        f"<header data-title='{share:.0%} {html.escape(facts.name)}'><h1>{escape(facts.name)}</h1>"
        f"<p class='state'><span class='badge plain'>{escape(state)}</span> "
        f"{units.COUNT.text(facts.last_step)} of {units.COUNT.text(last)} steps</p>"
        f"<progress max='1' value='{share:.4f}'></progress><p class='times'>"
    )
    yield " · ".join(escape(text) for text in times(now, state))
    yield "</p><dl class='run'>"
    for name, text in (*how_well(now), *how_fast(now)):
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
    yield "</dl></header>"


def _alerts(now: Now) -> Iterator[str]:
    if now.alerts:
        yield "<section><h2>To look at</h2><ul class='problems'>"
        yield from (f"<li class='remedy'>{escape(text)}</li>" for text in now.alerts)
        yield "</ul></section>"


def _curves(now: Now) -> Iterator[str]:
    drawn = [
        (plots.trained(now.facts, w), plots.learning_rate(now.facts, w)) for w in (WIDE, NARROW)
    ]
    if any(drawn[0]):
        yield "<section><h2>Curves</h2>"
        yield from _figures("".join(drawn[0]), "".join(drawn[1]))
        yield "</section>"


def _step(now: Now) -> Iterator[str]:
    shares = now.phases
    shares |= {"other": max(1 - sum(shares.values()), 0.0)} if shares else {}
    parts = [Part(name, share, units.SHARE.text(share)) for name, share in shares.items()]
    wide, narrow = (bar_plot(parts, title="a step", width=width) for width in (WIDE, NARROW))
    if wide:
        yield "<section><h2>A step</h2>"
        yield from _figures(wide, narrow)
        yield "</section>"


def _hosts(now: Now) -> Iterator[str]:
    if not now.hosts:
        return
    yield "<section><h2>Hosts</h2><div class='hosts'>"
    for host in now.hosts:
        yield f"<div class='host'><h3>{escape(host.name)}</h3><dl class='run'>"
        cells = host_cells(now, host)
        for name, text in cells.items():
            if name not in ("host", "out, lately") and text != "-":
                yield f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        yield "</dl></div>"
    yield "</div>"
    wide, narrow = _network(now, WIDE), _network(now, NARROW)
    if wide:
        yield from _figures(wide, narrow)
    yield "</section>"


def _network(now: Now, width: int) -> str:
    """What each host sends; minutes before the last sample of that host, by its own clock."""
    series = [
        Series(
            host.name,
            [((one.time - host.rates[-1].time) / 60, one.sent / _MEGA) for one in host.rates],
        )
        for host in now.hosts
        if host.rates
    ]
    x = Axis("minutes before the last sample", lambda minutes: f"{abs(minutes):.3g}")
    label = f"sent, MB/s{plots.first_of(len(series), 'hosts')}"
    y = Axis(label, "{:.3g}".format, from_zero=True)
    return line_plot(series[: plots.MOST_LINES], x, y, width=width, height=180)


def _figures(wide: str, narrow: str) -> Iterator[str]:
    yield f"<figure class='wide'>{wide}</figure><figure class='narrow'>{narrow}</figure>"


def _resource(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
