"""The report as one page of HTML, without script or network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dragoman.base import units
from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.cost import energy_text
from dragoman.reporting.elements import (
    escape,
    figures,
    items,
    section,
    table,
    values,
    whole_page,
)
from dragoman.reporting.facts import Facts
from dragoman.reporting.scores import EXAM, exam_rows, of_samples
from dragoman.reporting.verdict import Evidence, Verdict


def page(
    facts: Facts,
    answers: Sequence[Verdict],
    ailments: Sequence[Verdict],
    *,
    refresh_s: float | None = None,
) -> str:
    """The whole page. refresh_s: how often it reloads itself; None: never."""
    body = "".join(
        [
            f"<header><h1>{escape(facts.name)}</h1>{values(_run_facts(facts))}</header>",
            section("Translations", _samples(facts)),
            *_answers(answers),
            *_ailments(ailments),
            section(EXAM, table(exam_rows(facts)) if facts.exam else ""),
            section("About the evidence", _doubts(facts)),
            *(part for n, verdict in enumerate(answers, 1) for part in _section(facts, n, verdict)),
            section("Environment", table(_environment(facts)) if facts.environment else ""),
        ]
    )
    reload = f'<meta http-equiv="refresh" content="{refresh_s:.0f}">' if refresh_s else ""
    return whole_page(f"{facts.name}: report", f"<main>{body}</main>", head=reload)


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
    scores = [
        units.SCORE.text(score.bleu) + ("" if score.label == "test" else f" on {score.label}")
        for score in facts.test_scores
    ]
    if scores:
        yield "test BLEU", ", ".join(scores)
    if energy := energy_text(facts):
        yield "energy", energy
    if facts.segments:
        moment = time.gmtime(facts.segments[0].started)
        yield "started", time.strftime("%d %b %Y %H:%M UTC", moment)


def _samples(facts: Facts) -> str:
    """Dev sentences with their translations; "" if none was recorded."""
    names = ("source", "translation", "reference")
    shown = "".join(
        table(zip(names, (sample.source, sample.hypothesis, sample.reference), strict=True))
        for sample in facts.samples
    )
    if not shown:
        return ""
    return f"<p>{escape(of_samples(facts))}</p><div class='samples'>{shown}</div>"


def _answers(answers: Sequence[Verdict]) -> Iterator[str]:
    """The questions for a judgement, then those for facts, each with its number."""
    numbered = list(enumerate(answers, 1))
    for heading, is_judged in (("Answers", True), ("Facts", False)):
        yield f"<section><h2>{heading}</h2><ol class='answers'>"
        for number, verdict in numbered:
            if (BY_KEY[verdict.key].kind == "judgement") == is_judged:
                yield (
                    f"<li><a href='#{verdict.key}'>"
                    f"<span class='question'>{number}. {escape(verdict.question)}</span>"
                    f"{_badge(verdict)}<span class='says'>{escape(verdict.says)}</span>"
                    f"{_remedy(verdict)}</a></li>"
                )
        yield "</ol></section>"


def _ailments(ailments: Sequence[Verdict]) -> Iterator[str]:
    """What was found, and folded what was looked for in vain."""
    ailing = [verdict for verdict in ailments if verdict.answer == "yes"]
    rest = [verdict for verdict in ailments if verdict.answer != "yes"]
    rest.sort(key=lambda verdict: verdict.answer == "cannot tell")
    yield "<section><h2>Health</h2>"
    yield from _ailment_list(ailing)
    clear = sum(verdict.answer == "no" for verdict in rest)
    yield (
        f"<details><summary>{clear} checks found nothing, {len(rest) - clear} could not tell"
        "</summary>"
    )
    yield from _ailment_list(rest)
    yield "</details></section>"


def _ailment_list(ailments: Sequence[Verdict]) -> Iterator[str]:
    if not ailments:
        return
    yield "<ul class='ailments'>"
    for verdict in ailments:
        limits = escape("; ".join(verdict.thresholds))
        yield (
            f"<li><span class='question'>{escape(verdict.question)}</span>{_badge(verdict)}"
            f"<span class='says'>{escape(verdict.says)} <small>{limits}</small></span>"
            f"{_remedy(verdict)}</li>"
        )
    yield "</ul>"


def _remedy(verdict: Verdict) -> str:
    return f"<span class='remedy'>{escape(verdict.remedy)}</span>" if verdict.remedy else ""


def _limits(verdict: Verdict) -> str:
    """The limits that decided, folded; "" if there are none."""
    limits = "; ".join(verdict.thresholds)
    return limits and f"<details><summary>limits</summary>{escape(limits)}</details>"


def doubts(facts: Facts) -> Iterator[str]:
    """How the run ended if not by itself, the faults of the evidence, and the alerts of the run."""
    yield from _faults(facts)
    yield from (alert.text for alert in facts.alerts)


def _faults(facts: Facts) -> Iterator[str]:
    if facts.exit is not None and facts.exit.problem:
        yield facts.exit.problem
    yield from facts.problems


def _doubts(facts: Facts) -> str:
    """The faults, and the alerts folded: they were told while the run went on."""
    alerts = items([alert.text for alert in facts.alerts])
    summary = f"alerts while it trained: {units.COUNT.text(len(facts.alerts))}"
    folded = alerts and f"<details><summary>{summary}</summary>{alerts}</details>"
    return items(list(_faults(facts))) + folded


def _section(facts: Facts, number: int, verdict: Verdict) -> Iterator[str]:
    yield f"<section id='{verdict.key}'><h2>{number}. {escape(verdict.question)}</h2>"
    yield f"<p class='answer'>{_badge(verdict)} {escape(verdict.says)}</p>"
    if verdict.remedy:
        yield f"<p class='remedy'>{escape(verdict.remedy)}</p>"
    if (plots := BY_KEY[verdict.key].plots) is not None:
        yield figures(plots(facts))
    yield from _evidence(verdict.evidence)
    yield _limits(verdict)
    if verdict.method:
        yield f"<p class='method'><b>Method</b> {escape(verdict.method)}</p>"
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
