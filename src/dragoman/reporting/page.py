"""The report as one page of HTML: no script, no network, light and dark, wide and narrow, print."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator, Sequence
from importlib import resources

from dragoman.base import units
from dragoman.base.units import Quantity
from dragoman.reporting.facts import Exit, Facts
from dragoman.reporting.plots import PLOTS
from dragoman.reporting.verdict import Evidence, Verdict

WIDE, NARROW = 760, 340
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


def escape(text: str) -> str:
    """The text for HTML; numbers stay on one line with their units, options with their dashes."""
    text = _BEFORE_UNIT.sub("\u00a0", html.escape(text)).replace("(= ", "(=\u00a0")
    return _UNBROKEN.sub(r"<span class='whole'>\g<0></span>", text)


def page(facts: Facts, answers: Sequence[Verdict], ailments: Sequence[Verdict]) -> str:
    """The whole page."""
    body = "".join(
        [
            *_head(facts),
            *_answers(answers),
            *_ailments(ailments),
            *_problems(facts),
            *(part for n, one in enumerate(answers, 1) for part in _section(facts, n, one)),
            *_environment(facts),
        ]
    )
    return whole_page(f"{facts.name}: report", body)


def whole_page(title: str, body: str) -> str:
    """A page of this style; it needs nothing from elsewhere."""
    style = resources.files("dragoman.reporting").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _head(facts: Facts) -> Iterator[str]:
    yield f"<header><h1>{escape(facts.name)}</h1><dl class='run'>"
    for name, text in _run_facts(facts):
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
    yield "</dl></header>"


def _run_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    last = units.COUNT.text(facts.last_step)
    yield "step", f"{last} of {units.COUNT.text(facts.max_steps)}" if facts.max_steps else last
    yield "state", state_text(facts)
    if facts.num_parameters:
        yield "parameters", units.COUNT.text(facts.num_parameters)
    if facts.world_size:
        yield "ranks", units.COUNT.text(facts.world_size)
    if facts.hosts:
        yield "hosts", ", ".join(facts.hosts)
    if facts.device:
        yield "device", ", ".join(text for text in (facts.device, facts.precision) if text)
    scores = [f"{units.SCORE.text(one.bleu)} on {one.name}" for one in facts.test_scores]
    if scores:
        yield "test BLEU", ", ".join(scores)
    if facts.segments:
        moment = time.gmtime(facts.segments[0].started)
        yield "started", time.strftime("%d %b %Y %H:%M UTC", moment)


def state_text(facts: Facts) -> str:
    """Whether it runs, or how it ended."""
    if not facts.segments:
        return "not started"
    if facts.imported is not None:
        return "read from its log"
    reason = facts.segments[-1].reason
    if reason is None:
        return _silent_text(facts.exit) if facts.is_silent else "running"
    said = {"max_steps": "finished", "early_stop": "stopped early", "signal": "stopped by a signal"}
    return said.get(reason, reason)


def _silent_text(found: Exit | None) -> str:
    if found is None:
        return "silent: crashed, killed or cut off"
    if found.state == "gone":
        return "killed"
    return found.state


def _answers(answers: Sequence[Verdict]) -> Iterator[str]:
    yield "<section><h2>Twelve answers</h2><ol class='answers'>"
    for one in answers:
        yield (
            f"<li><a href='#{one.key}'><span class='question'>{escape(one.question)}</span>"
            f"{_badge(one)}<span class='says'>{escape(one.says)}</span></a></li>"
        )
    yield "</ol></section>"


def _ailments(ailments: Sequence[Verdict]) -> Iterator[str]:
    yield "<section><h2>Health</h2><ul class='ailments'>"
    order = {"yes": 0, "no": 1, "cannot tell": 2}
    for one in sorted(ailments, key=lambda one: order.get(one.answer, 3)):
        remedy = f"<span class='remedy'>{escape(one.remedy)}</span>" if one.remedy else ""
        yield (
            f"<li><span class='question'>{escape(one.question)}</span>{_badge(one)}"
            f"<span class='says'>{escape(one.says)} "
            f"<small>{escape('; '.join(one.thresholds))}</small></span>{remedy}</li>"
        )
    yield "</ul></section>"


def _problems(facts: Facts) -> Iterator[str]:
    ended = [facts.exit.problem] if facts.exit is not None and facts.exit.problem else []
    if not facts.problems and not facts.alerts and not ended:
        return
    yield "<section><h2>About the evidence</h2><ul class='problems'>"
    for text in (*ended, *facts.problems, *(alert.text for alert in facts.alerts)):
        yield f"<li>{escape(text)}</li>"
    yield "</ul></section>"


def _section(facts: Facts, number: int, verdict: Verdict) -> Iterator[str]:
    yield f"<section id='{verdict.key}'><h2>{number}. {escape(verdict.question)}</h2>"
    yield f"<p class='answer'>{_badge(verdict)} {escape(verdict.says)}</p>"
    if verdict.remedy:
        yield f"<p class='remedy'>{escape(verdict.remedy)}</p>"
    draw = PLOTS.get(verdict.key)
    if draw is not None and (wide := draw(facts, WIDE)):
        yield f"<figure class='wide'>{wide}</figure>"
        yield f"<figure class='narrow'>{draw(facts, NARROW)}</figure>"
    yield from _evidence(verdict.evidence)
    for label, text in (("Limits", "; ".join(verdict.thresholds)), ("Method", verdict.method)):
        if text:
            yield f"<p class='method'><b>{label}</b> {escape(text)}</p>"
    yield "</section>"


def _evidence(rows: Sequence[Evidence]) -> Iterator[str]:
    measured = [row for row in rows if row.value is not None]
    if measured:
        yield "<table>"
        for row in measured:
            yield f"<tr><th>{escape(row.name)}</th><td>{escape(row.text)}</td></tr>"
        yield "</table>"
    missing = ", ".join(row.name for row in rows if row.value is None)
    if missing:
        yield f"<p class='method'><b>Not measured</b> {escape(missing)}</p>"


def _environment(facts: Facts) -> Iterator[str]:
    if not facts.environment:
        return
    yield "<section><h2>Environment</h2><table>"
    for name, value in facts.environment.items():
        text = str(value)
        if name.endswith("_bytes") and isinstance(value, int | float):
            text = f"{units.SIZE.text(value)} (= {units.BINARY_SIZE.text(value)})"
        if value is not None:
            label = name.removesuffix("_bytes").replace("_", " ")
            yield f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>"
    yield "</table></section>"


def _badge(verdict: Verdict) -> str:
    tone = "unknown" if verdict.answer == "cannot tell" else "act" if verdict.remedy else "plain"
    return f"<span class='badge {tone}'>{escape(verdict.answer)}</span>"
