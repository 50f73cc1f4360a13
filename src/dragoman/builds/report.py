"""`build.html`: the cost and the gain of each stage of a build, on one page; the same as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.builds.plan import BuildPlan, StageName
from dragoman.builds.record import BuildStage
from dragoman.reporting.document import Document, Section, Table, write_files
from dragoman.telemetry.host import HourlyPrice

HEADINGS: Final = ("stage", "share", "planned", "spent", "cost", "made", "gained", "why")
_Stages = Mapping[StageName, BuildStage]


def rows(
    plan: BuildPlan, stages: _Stages, *, started: float, budget_s: float, price: HourlyPrice | None
) -> list[tuple[str, ...]]:
    """A row for each stage, and one for the whole build, from its start to the last end."""
    found: list[tuple[str, ...]] = []
    for name, share in plan.shares().items():
        stage = stages.get(name)
        spent_s = None if stage is None else stage.spent_s
        if stage is not None and stage.skipped and not stage.seconds_s:
            spent_s = None  # it had not begun
        found.append(
            (
                name,
                units.SHARE.text(share),
                units.DURATION.text(share * budget_s),
                "" if spent_s is None else units.DURATION.text(spent_s),
                "" if spent_s is None or price is None else price.text(spent_s),
                "" if stage is None else _made(stage),
                "" if stage is None else _gained(name, stages),
                plan.why(name),
            )
        )
    spent_s = max((one.ended or started for one in stages.values()), default=started) - started
    whole = ("all", "100.0%", units.DURATION.text(budget_s), units.DURATION.text(spent_s))
    return [*found, (*whole, "" if price is None else price.text(spent_s), "", "", "")]


def _made(stage: BuildStage) -> str:
    """The result of a stage."""
    facts, count = stage.facts, units.COUNT.text
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
        return f"{corpora}, {count(lines)} pairs, {size} of text{left_out}"
    if stage.name == "clean":
        return f"{count(facts['pairs'])} of {count(facts['pairs_in'])} pairs to train on"
    if stage.name in ("back-translate", "translate"):
        return f"{count(facts['pairs'])} pairs from {count(facts['lines'])} lines"
    weights = units.SHORT_COUNT.text(facts["parameters"] or 0)
    return f"{weights} weights, {count(facts['steps'])} steps"


def _gained(name: StageName, stages: _Stages) -> str:
    """BLEU of a stage's model, and its gain: over `train`, or for a student over its teacher."""
    facts = stages[name].facts
    scores = {split: facts.get(f"{split}_bleu") for split in ("dev", "test")}
    said = [f"{split} {units.SCORE.text(x)} BLEU" for split, x in scores.items() if x is not None]
    others: tuple[StageName, ...] = ("train",) if name == "train-more" else ("train", "train-more")
    known = [stages[other].facts for other in others if other in stages]
    if said and known and name in ("train-more", "student"):
        before = max(known, key=lambda one: one.get("dev_bleu") or 0.0)
        whom = "its teacher" if name == "student" else "the pairs alone"
        split = "test" if scores["test"] is not None else "dev"
        if before.get(f"{split}_bleu") is not None:
            gain = facts[f"{split}_bleu"] - before[f"{split}_bleu"]
            said.append(f"{gain:+.1f} on {split} against {whom}")
    return ", ".join(said)


def write_report(
    directory: Path,
    plan: BuildPlan,
    stages: _Stages,
    *,
    started: float,
    budget_s: float,
    price: HourlyPrice | None,
) -> None:
    """Write `build.html`. Raises the errors of `write_files`."""
    table = rows(plan, stages, started=started, budget_s=budget_s, price=price)
    shown = [n for n in range(len(HEADINGS) - 1) if any(row[n] for row in table)]
    facts = [("budget", plan.budget), ("spent", table[-1][3]), ("cost", table[-1][4])]
    document = Document(
        title=f"Build of {plan.pair}",
        values=facts[: 3 if price else 2],
        blocks=[
            Section(
                "Stages",
                [Table([[row[n] for n in shown] for row in table], [HEADINGS[n] for n in shown])],
            ),
            Section("Reasons", [Table([(row[0], row[-1]) for row in table if row[-1]])]),
            Section("Corpora", [Table(list(_corpora(plan, stages)))]),
        ],
    )
    write_files(directory, {"build.html": document.html()})


def _corpora(plan: BuildPlan, stages: _Stages) -> Iterator[tuple[str, str]]:
    """Each corpus of the plan, with its use, lines, licence and reasons."""
    fetched = stages["fetch"].facts if "fetch" in stages else {}
    lines = {text["id"]: text["lines"] for text in fetched.get("texts", ())}
    left_out = fetched.get("left_out", {})
    for one in plan.corpus:
        facts: list[str] = [one.use]
        if one.id in lines:
            facts.append(f"{units.COUNT.text(lines[one.id])} lines")
        if one.id in left_out:
            facts.append(f"left out: {left_out[one.id]}")
        facts.append(f"licence: {one.licence or 'not in the index'}")
        facts += filter(None, (one.url, one.why))
        yield one.id, "; ".join(facts)
