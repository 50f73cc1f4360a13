"""The corpora and stages of a build, as tables and as `build.html`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console, plain_table
from dragoman.builds.plan import BuildPlan, StageName
from dragoman.builds.planning import Choice
from dragoman.builds.record import BuildRecord, BuildStage
from dragoman.reporting.document import Document, Section, Table, write_files
from dragoman.telemetry.host import HourlyPrice

HEADINGS: Final = ("stage", "share", "planned", "spent", "made", "gained", "why")
_Rows = list[tuple[str, ...]]
_Stages = Mapping[StageName, BuildStage]


def rows(plan: BuildPlan, record: BuildRecord, budget_s: float, price: HourlyPrice | None) -> _Rows:
    """A row for each stage, and one for the whole build, from its start to the last end."""

    def cost(seconds_s: float) -> str:
        text = units.DURATION.text(seconds_s)
        return text if price is None else f"{text} ({price.text(seconds_s)})"

    found: _Rows = []
    for name, share in plan.shares().items():
        cells = (name, units.SHARE.text(share), cost(share * budget_s))
        stage = record.stages.get(name)
        if stage is None:
            found.append((*cells, "", "", "", plan.why(name)))
        else:
            spent = cost(stage.ended - stage.started)
            gained = _gained(name, record.stages)
            found.append((*cells, spent, _made(stage), gained, plan.why(name)))
    spent = cost(record.last_s - (record.started or 0.0)) if record.stages else ""
    return [*found, ("all", "100.0%", cost(budget_s), spent, "", "", "")]


def shown(table: _Rows) -> tuple[list[str], _Rows]:
    """The headings and the rows without columns that are empty."""
    filled = [n for n in range(len(HEADINGS)) if any(row[n] for row in table)]
    return [HEADINGS[n] for n in filled], [tuple(row[n] for n in filled) for row in table]


def print_stages(table: _Rows) -> None:
    """Print the rows of a build, before it begins or at its end."""
    console = open_console()
    headings, cells = shown(table)
    printed = plain_table(*headings)
    for row in cells:
        printed.add_row(*row)
    console.print("", printed, "", sep="\n")


def print_corpora(choice: Choice, *, most: int | None = None) -> None:
    """Print a row for each corpus, the chosen ones first; and which were not considered. most: the
    most rows for those that are not chosen."""
    console = open_console()
    table = plain_table("corpus", "use", right=("size", "pairs"))
    table.add_column("licence")
    table.add_column("")
    ranked = sorted(choice.corpora, key=lambda one: (one.use is None, -(one.pairs or 0)))
    chosen = sum(one.use is not None for one in ranked)
    printed = ranked if most is None else ranked[: chosen + most]
    for one in printed:
        licence = one.listing.licence or "not in the index"
        cells = (one.did, one.use or "", one.size_text, one.pairs_text, licence, one.why)
        table.add_row(*cells, style="bold" if one.use else "")
    console.print(table)
    if more := len(ranked) - len(printed):
        console.print(f"and {more} more: corpora.tsv, or dragoman build PAIR --list")
    if choice.other_forms:
        others = printable_line(choice.other_forms)
        words = f"not considered: {others}; to take them, name the languages so"
        console.print(words, soft_wrap=True, markup=False, highlight=False)


def _made(stage: BuildStage) -> str:
    """The result of a stage."""
    facts, count = stage.facts, units.COUNT.text
    if stage.skipped:
        return f"left out: {stage.skipped}"
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
    record: BuildRecord,
    budget_s: float,
    price: HourlyPrice | None,
) -> None:
    """Write `build.html`. Raises the errors of `write_files`."""
    table = rows(plan, record, budget_s, price)
    headings, cells = shown([(*row[:-1], "") for row in table])
    document = Document(
        title=f"Build of {plan.pair}",
        values=[("budget", plan.budget), ("spent", table[-1][3])],
        blocks=[
            Section("Stages", [Table(cells, headings)]),
            Section("Reasons", [Table([(row[0], row[-1]) for row in table if row[-1]])]),
            Section("Corpora", [Table(list(_corpora(plan, record.stages)))]),
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
