"""The cost and gain of each stage of a build: a table for terminals, Markdown and a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.builds.plan import BuildPlan, StageName
from dragoman.builds.stages import BuildStage, Clock
from dragoman.reporting.elements import escape, section, values, whole_page
from dragoman.reporting.render import write_files
from dragoman.telemetry.host import HourlyPrice

HEADINGS: Final = ("stage", "share", "planned", "spent", "cost", "made", "gained", "why")


def rows(
    plan: BuildPlan, done: Sequence[BuildStage], clock: Clock, price: HourlyPrice | None
) -> list[tuple[str, ...]]:
    """A row for each stage, and one for the whole build, from its start to the last end."""
    records = {one.name: one for one in done}
    found: list[tuple[str, ...]] = []
    for name, share in plan.shares().items():
        stage = records.get(name)
        spent_s = None if stage is None else stage.spent_s
        if stage is not None and stage.skipped and spent_s == 0.0:
            spent_s = None  # it had not begun
        found.append(
            (
                name,
                units.SHARE.text(share),
                units.DURATION.text(share * clock.budget_s),
                "" if spent_s is None else units.DURATION.text(spent_s),
                "" if spent_s is None or price is None else price.text(spent_s),
                "" if stage is None else made(stage),
                "" if stage is None else gained(name, records),
                plan.why(name),
            )
        )
    ended = [one.ended for one in done if one.ended is not None]
    spent_s = max(ended) - clock.started if ended else 0.0
    cost = "" if price is None else price.text(spent_s)
    whole = units.DURATION.text(clock.budget_s)
    found.append(("all", "100.0%", whole, units.DURATION.text(spent_s), cost, "", "", ""))
    return found


def made(stage: BuildStage) -> str:
    """The result of a stage."""
    facts = stage.facts
    if stage.skipped:
        return f"left out: {stage.skipped}"
    if stage.ended is None:
        return "not done yet"
    if stage.name == "fetch":
        texts = facts["texts"]
        lines = sum(text["lines"] for text in texts if text["use"] == "train")
        size = units.SIZE.text(sum(text["bytes"] for text in texts))
        left_out = f"; {len(facts['left_out'])} left out" if facts["left_out"] else ""
        corpora = f"{len(texts)} corpora" if len(texts) > 1 else "1 corpus"
        return f"{corpora}, {units.COUNT.text(lines)} pairs, {size} of text{left_out}"
    if stage.name == "clean":
        kept, pairs_in = facts["pairs"], facts["pairs_in"]
        return f"{units.COUNT.text(kept)} of {units.COUNT.text(pairs_in)} pairs to train on"
    if stage.name in ("back-translate", "translate"):
        pairs, lines = facts["pairs"], facts["lines"]
        return f"{units.COUNT.text(pairs)} pairs from {units.COUNT.text(lines)} lines"
    weights, steps = facts["parameters"], facts["steps"]
    return f"{units.SHORT_COUNT.text(weights or 0)} weights, {units.COUNT.text(steps)} steps"


def gained(name: StageName, records: dict[StageName, BuildStage]) -> str:
    """BLEU of a stage's model, and its gain: over `train`, or for a student over its teacher."""
    facts = records[name].facts
    dev, test = facts.get("dev_bleu"), facts.get("test_bleu")
    said = [
        f"{split} {units.SCORE.text(bleu)} BLEU"
        for split, bleu in (("dev", dev), ("test", test))
        if bleu is not None
    ]
    others: tuple[StageName, ...] = ("train",) if name == "train-more" else ("train", "train-more")
    known = [records[other].facts for other in others if other in records]
    if said and known and name in ("train-more", "student"):
        before = max(known, key=lambda one: one.get("dev_bleu") or 0.0)
        whom = "its teacher" if name == "student" else "the pairs alone"
        key, split = ("test_bleu", "test") if test is not None else ("dev_bleu", "dev")
        if before.get(key) is not None:
            said.append(f"{facts[key] - before[key]:+.1f} on {split} against {whom}")
    return ", ".join(said)


def write_report(
    directory: Path,
    plan: BuildPlan,
    done: Sequence[BuildStage],
    clock: Clock,
    price: HourlyPrice | None,
) -> None:
    """Write `build.md` and `build.html`. Raises the errors of `write_files`."""
    table = rows(plan, done, clock, price)
    markdown, page = "".join(_markdown(plan, table, done)), _page(plan, table, done)
    write_files(directory, {"build.md": markdown, "build.html": page})


def _markdown(
    plan: BuildPlan, table: Sequence[tuple[str, ...]], done: Sequence[BuildStage]
) -> Iterator[str]:
    yield f"# Build of {plan.pair} in {plan.budget}\n\n"
    for row in (HEADINGS, ("---",) * len(HEADINGS), *table):
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n"
    yield "\n## Corpora\n\n"
    for name, facts in _corpora(plan, done):
        yield f"- {name}: {facts}\n"


def _page(plan: BuildPlan, table: Sequence[tuple[str, ...]], done: Sequence[BuildStage]) -> str:
    shown = [n for n in range(len(HEADINGS) - 1) if any(row[n] for row in table)]
    head = "".join(f"<th>{HEADINGS[n]}</th>" for n in shown)
    body = ""
    for row in table:
        cells = "".join(f"<td>{escape(row[n])}</td>" for n in shown[1:])
        body += f"<tr><th>{escape(row[0])}</th>{cells}</tr>"
    corpora = "".join(
        f"<li><b>{escape(name)}</b> {escape(facts)}</li>" for name, facts in _corpora(plan, done)
    )
    reasons = "".join(
        f"<li><b>{escape(row[0])}</b> {escape(row[-1])}</li>" for row in table if row[-1]
    )
    facts = [("budget", plan.budget), ("spent", table[-1][3])]
    if table[-1][4]:
        facts.append(("cost", table[-1][4]))
    main = "".join(
        [
            f"<header><h1>Build of {escape(plan.pair)}</h1>{values(facts)}</header>",
            section("Stages", f"<table class='runs'><tr>{head}</tr>{body}</table>"),
            section("Reasons", reasons and f"<ul class='problems'>{reasons}</ul>"),
            section("Corpora", f"<ul class='problems'>{corpora}</ul>"),
        ]
    )
    return whole_page(f"Build of {plan.pair}", f"<main>{main}</main>")


def _corpora(plan: BuildPlan, done: Sequence[BuildStage]) -> Iterator[tuple[str, str]]:
    """Each corpus of the plan, with its use, lines, licence and reasons."""
    fetched = next((one.facts for one in done if one.name == "fetch" and one.facts), None)
    lines = {} if fetched is None else {text["id"]: text["lines"] for text in fetched["texts"]}
    left_out = {} if fetched is None else fetched["left_out"]
    for one in plan.corpus:
        facts: list[str] = [one.use]
        if one.id in lines:
            facts.append(f"{units.COUNT.text(lines[one.id])} lines")
        if one.id in left_out:
            facts.append(f"left out: {left_out[one.id]}")
        facts.append(f"licence: {one.licence or 'not in the index'}")
        facts += filter(None, (one.url, one.why))
        yield one.id, "; ".join(facts)
