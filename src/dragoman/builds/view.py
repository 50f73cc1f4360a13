"""The tables of a build: corpora, stages and their results."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console, plain_table
from dragoman.builds.build import Built
from dragoman.builds.corpora import Corpus
from dragoman.builds.plan import BuildPlan
from dragoman.builds.report import HEADINGS, rows
from dragoman.telemetry.host import HourlyPrice


def print_corpora(corpora: Sequence[Corpus], *, most: int | None = None) -> None:
    """Print a row for each corpus, the chosen ones first. most: the most rows for the others."""
    console = open_console()
    table = plain_table("corpus", "use", right=("size", "pairs"))
    table.add_column("licence")
    table.add_column("")
    ranked = sorted(corpora, key=lambda one: (one.use is None, -(one.pairs or 0)))
    chosen = sum(one.use is not None for one in ranked)
    shown = ranked if most is None else ranked[: chosen + most]
    for one in shown:
        pairs = "" if one.pairs is None else units.SHORT_COUNT.text(one.pairs)
        table.add_row(
            one.listing.did,
            one.use or "",
            "" if one.num_bytes is None else units.SIZE.text(one.num_bytes),
            f"about {pairs}" if pairs and one.is_guess else pairs,
            one.listing.licence or "not in the index",
            one.why,
            style="bold" if one.use else "",
        )
    console.print(table)
    if len(shown) < len(ranked):
        more = len(ranked) - len(shown)
        console.print(f"and {more} more: corpora.tsv, or dragoman build PAIR --list")


def print_other_forms(others: str) -> None:
    """Print which corpora were not considered, because of their script or region."""
    if others:
        words = f"not considered: {printable_line(others)}; to take them, name the languages so"
        open_console().print(words, soft_wrap=True, markup=False, highlight=False)


def print_build_plan(plan: BuildPlan, budget_s: float, price: HourlyPrice | None) -> None:
    """Print a row for each stage of a plan, before any begins."""
    console = open_console()
    table = plain_table("stage", right=("share", "time"))
    if price is not None:
        table.add_column("cost", justify="right")
    table.add_column("")
    for name, share in plan.shares().items():
        seconds_s = share * budget_s
        cost = () if price is None else (price.text(seconds_s),)
        cells = (units.SHARE.text(share), units.DURATION.text(seconds_s), *cost)
        table.add_row(name, *cells, plan.why(name))
    console.print("", table, "", sep="\n")


def print_end(plan: BuildPlan, built: Built, budget_s: float, price: HourlyPrice | None) -> None:
    """Print the cost and the gain of each stage."""
    console = open_console()
    stages = {stage.name: stage for stage in built.stages}
    found = rows(plan, stages, started=built.started, budget_s=budget_s, price=price)
    shown = [n for n, name in enumerate(HEADINGS[:-1]) if any(row[n] for row in found)]
    table = plain_table(*(HEADINGS[n] for n in shown))
    for row in found:
        table.add_row(*(row[n] for n in shown))
    console.print("", table, "", sep="\n")
