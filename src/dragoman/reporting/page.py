"""The report as one page of HTML, without script or network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dragoman.base import units
from dragoman.reporting.elements import (
    escape,
    figures,
    problems,
    section,
    table,
    values,
    whole_page,
)
from dragoman.reporting.facts import Facts
from dragoman.reporting.plots import PLOTS
from dragoman.reporting.verdict import Evidence, Verdict


def page(facts: Facts, answers: Sequence[Verdict], ailments: Sequence[Verdict]) -> str:
    """The whole page."""
    body = "".join(
        [
            f"<header><h1>{escape(facts.name)}</h1>{values(_run_facts(facts))}</header>",
            *_answers(answers),
            *_ailments(ailments),
            problems("About the evidence", list(doubts(facts))),
            *(part for n, one in enumerate(answers, 1) for part in _section(facts, n, one)),
            section("Environment", table(_environment(facts)) if facts.environment else ""),
        ]
    )
    return whole_page(f"{facts.name}: report", f"<main>{body}</main>")


def _run_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    last = units.COUNT.text(facts.last_step)
    yield "step", f"{last} of {units.COUNT.text(facts.max_steps)}" if facts.max_steps else last
    yield "state", facts.state
    if facts.num_parameters:
        yield "parameters", units.COUNT.text(facts.num_parameters)
    if facts.world_size:
        yield "ranks", units.COUNT.text(facts.world_size)
    if facts.hosts:
        yield "hosts", ", ".join(facts.hosts)
    if facts.device:
        yield "device", ", ".join(text for text in (facts.device, facts.precision) if text)
    scores = [f"{units.SCORE.text(one.bleu)} on {one.label}" for one in facts.test_scores]
    if scores:
        yield "test BLEU", ", ".join(scores)
    if facts.segments:
        moment = time.gmtime(facts.segments[0].started)
        yield "started", time.strftime("%d %b %Y %H:%M UTC", moment)


def _answers(answers: Sequence[Verdict]) -> Iterator[str]:
    yield f"<section><h2>{len(answers)} answers</h2><ol class='answers'>"
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


def doubts(facts: Facts) -> Iterator[str]:
    """How the run ended if not by itself, the faults of the evidence, and the alerts of the run."""
    if facts.exit is not None and facts.exit.problem:
        yield facts.exit.problem
    yield from facts.problems
    yield from (alert.text for alert in facts.alerts)


def _section(facts: Facts, number: int, verdict: Verdict) -> Iterator[str]:
    yield f"<section id='{verdict.key}'><h2>{number}. {escape(verdict.question)}</h2>"
    yield f"<p class='answer'>{_badge(verdict)} {escape(verdict.says)}</p>"
    if verdict.remedy:
        yield f"<p class='remedy'>{escape(verdict.remedy)}</p>"
    if verdict.key in PLOTS:
        yield figures(PLOTS[verdict.key](facts))
    yield from _evidence(verdict.evidence)
    for label, text in (("Limits", "; ".join(verdict.thresholds)), ("Method", verdict.method)):
        if text:
            yield f"<p class='method'><b>{label}</b> {escape(text)}</p>"
    yield "</section>"


def _evidence(rows: Sequence[Evidence]) -> Iterator[str]:
    measured = [(row.name, row.text) for row in rows if row.value is not None]
    if measured:
        yield table(measured)
    missing = ", ".join(row.name for row in rows if row.value is None)
    if missing:
        yield f"<p class='method'><b>Not measured</b> {escape(missing)}</p>"


def _environment(facts: Facts) -> Iterator[tuple[str, str]]:
    for name, value in facts.environment.items():
        text = str(value)
        if name.endswith("_bytes") and isinstance(value, int | float):
            text = f"{units.SIZE.text(value)} (= {units.BINARY_SIZE.text(value)})"
        if value is not None:
            yield name.removesuffix("_bytes").replace("_", " "), text


def _badge(verdict: Verdict) -> str:
    tone = "unknown" if verdict.answer == "cannot tell" else "act" if verdict.remedy else "plain"
    return f"<span class='badge {tone}'>{escape(verdict.answer)}</span>"
