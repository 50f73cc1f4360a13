"""The views: each prints the result of a command; its keywords are options of that command.

As the functions do, the views import what is heavy when they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base import units
from dragoman.base.printable import printable, printable_line

if TYPE_CHECKING:
    from dragoman.api.alignment import Aligned
    from dragoman.api.choosing import Chosen
    from dragoman.api.comparison import Comparison
    from dragoman.api.distillation import Distilled
    from dragoman.api.exam import Exam
    from dragoman.api.machines import Examination
    from dragoman.api.scoring import Scored
    from dragoman.api.synthetic import Synthesized
    from dragoman.api.taught import Taught
    from dragoman.api.worth import Worth
    from dragoman.cluster.plan import Plan
    from dragoman.evaluation.confidence import Measured
    from dragoman.formats.export import Exported
    from dragoman.formats.hub import Pushed
    from dragoman.formats.import_folder import Imported
    from dragoman.recipe.recipe import ShippedRecipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.reporting.comparison import RunComparison
    from dragoman.reporting.render import Report
    from dragoman.telemetry.session import Session
    from dragoman.training.inventory import Inventory
    from dragoman.watch.status import Status


def show_text(text: str) -> None:
    """Print it as it is."""
    sys.stdout.write(text)


def show_recipes(recipes: Sequence[ShippedRecipe]) -> None:
    """A row for each."""
    from dragoman.base.terminal import open_console, plain_table

    table = plain_table("recipe", "purpose")
    table.columns[0].no_wrap = True
    for recipe in recipes:
        table.add_row(recipe.name, recipe.summary)
    open_console().print(table)


def show_sample(files: Sequence[Path]) -> None:
    """The files, and where their text comes from."""
    from dragoman.recipe.recipe import SHIPPED_RECIPES

    lines = len(files[0].read_bytes().splitlines())
    print(
        f"{files[0]}, {files[1]}: {lines:,} sentences of the help of LibreOffice (MPL-2.0; "
        f"authors and licence: {SHIPPED_RECIPES / 'demo' / 'ATTRIBUTION.md'})"
    )


def show_trained(run: RunDirectory) -> None:
    """The directory of the run."""
    print(f"run directory: {run.path}")


def show_stopped(session: Session, *, run: str) -> None:
    """How the training ended."""
    from dragoman.base.terminal import open_console

    open_console().print(session.problem or f"{run}: {session.state}", soft_wrap=True)


def show_averaged(path: Path) -> None:
    """The folder of the average."""
    print(f"average: {path}")


def show_synthesized(made: Synthesized | Taught) -> None:
    """The numbers of lines, pairs and dropped translations."""
    went_on = f", went on after line {made.resumed_after}" if made.resumed_after else ""
    lines, pairs = units.COUNT.text(made.lines), units.COUNT.text(made.pairs)
    print(f"{printable_line(str(made.output))}: lines {lines}, pairs {pairs}{went_on}")
    for reason, count in made.dropped.items():
        print(f"dropped, {reason}: {units.COUNT.text(count)}")


def show_taught(made: Taught) -> None:
    """The numbers of lines, pairs and dropped answers, and the bill."""
    show_synthesized(made)
    tokens = [units.COUNT.text(count) for count in (made.tokens_in, made.tokens_out)]
    price = "" if made.cost is None else f": {units.money(made.cost, currency=made.currency)}"
    print(f"tokens asked {tokens[0]}, answered {tokens[1]}{price}")
    print(f"what was asked: {printable_line(str(made.manifest))}")


def show_scored(done: Scored) -> None:
    """How many pairs there are, how many lines are none or have no score."""
    went_on = f", went on after line {done.resumed_after}" if done.resumed_after else ""
    print(f"{printable_line(str(done.output))}: pairs {units.COUNT.text(done.pairs)}{went_on}")
    if done.malformed:
        print(f"no pairs, kept without a score: lines {units.COUNT.text(done.malformed)}")
    if done.unscored:
        print(f"without a score, one side empty or too long: {units.COUNT.text(done.unscored)}")


def show_aligned(made: Aligned) -> None:
    """The numbers of pairs, what was left out, and the entry for a recipe."""
    pairs, doubtful, unpaired = map(units.COUNT.text, (made.pairs, made.doubtful, made.unpaired))
    print(f"pairs {pairs}, doubtful {doubtful}, sentences of one side alone {unpaired}")
    content = f", {made.by_content} of them by content" if made.by_content else ""
    print(f"documents matched: {len(made.documents)}{content}")
    for name in made.alone:
        print(printable_line(f"without a partner: {name}"))
    for name, why in made.unread.items():
        print(printable_line(f"not read: {name}: {why}"))
    print(printable_line(f"doubtful pairs: {made.output / 'doubtful.html'}"))
    print(f"\n[corpus]\ntrain = [\n    {printable_line(made.entry)},\n]")
    if not made.pairs:
        print("no pair is sure: the entry has no text", file=sys.stderr)


def show_chosen(made: Chosen) -> None:
    """The numbers of lines, what was left out, and what they cover that is new."""
    count = units.COUNT.text
    print(
        f"{printable_line(str(made.output))}: lines {count(made.lines)} of {count(made.read)}, "
        f"words {count(made.words)}"
    )
    for reason, lines in made.left_out.items():
        print(f"left out, {reason}: {count(lines)}")
    lacked = ", which the training text lacks" if made.trained else ""
    for name, of in (("words", made.new_words), ("phrases of 2 or 3", made.new_phrases)):
        print(
            f"{name} of the wanted text{lacked}: {count(of.lacking)}; the chosen lines have "
            f"{count(of.chosen)}, as many at random {count(round(of.at_random))}, "
            f"all lines {count(of.in_all)}"
        )
    print(printable_line(f"why these: {made.reasons}"))


def show_worth(told: Sequence[Worth]) -> None:
    """What each is worth, a line each, with its price."""
    for one in told:
        price = f" for {one.cost}" if one.cost else ""
        print(f"{one.more}{price}: {one.gain}")


def show_exported(exported: Exported) -> None:
    """The result of the check, the folder and its size."""
    verified = exported.verified
    print(
        f"checked: {verified.identical} of {verified.sentences} translations equal our own, "
        f"chrF between them {verified.chrf:.1f}"
    )
    if warning := verified.warning:
        print(warning, file=sys.stderr)
    print(f"{exported.path}: {units.SIZE.text(exported.size_bytes)}")


def show_pushed(pushed: Pushed) -> None:
    """The addresses of the model and of the commit."""
    print(f"{pushed.url}\n{pushed.commit}")


def show_imported(imported: Imported) -> None:
    """The languages, the size and the folder."""
    info = imported.info
    print(
        f"{info.source_language} to {info.target_language}, {info.num_parameters:,} parameters: "
        "translate with it, or continue its training with dragoman train RECIPE --from"
    )
    print(f"{imported.path}: {units.SIZE.text(imported.size_bytes)}")


def show_plan(plan: Plan, *, explain: bool = False, json: bool = False) -> None:
    """The plan as a table.

    explain: print what the figures assume.
    json: print JSON.
    """
    from dragoman.base.terminal import open_console

    if json:
        print(plan.as_json())
    else:
        plan.print(open_console(), explain=explain)


def show_examination(examination: Examination, *, json: bool = False) -> int:
    """The findings; the exit code is 1 if training would refuse to start.

    json: print JSON.
    """
    from dragoman.base.terminal import open_console
    from dragoman.cluster.doctor_view import findings_as_json, print_findings

    if json:
        print(findings_as_json(examination.findings, examination.facts))
    else:
        print_findings(examination.findings, examination.facts, open_console())
    return 0 if examination.is_fit else 1


def show_states(states: list[Status], *, json: bool = False) -> None:
    """A paragraph for each run.

    json: print JSON.
    """
    from dragoman.base.terminal import open_console
    from dragoman.watch.status import print_status, status_as_json

    if json:
        print(status_as_json(states))
    else:
        print_status(states, open_console())


def show_run(run: RunDirectory, *, budget: str | None = None) -> None:
    """Some translations, the commands that go on, and how much of a budget was used."""
    from dragoman.cli.summary import print_summary
    from dragoman.run.budget_view import print_outcome

    print_summary(run)
    if budget is not None:
        print_outcome(run)


def show_prepared(directory: Path) -> None:
    """The pairs read and kept, and the reasons for dropping pairs."""
    from dragoman.cli.console import print_prepared

    print_prepared(directory)


def show_inventory(inventory: Inventory) -> None:
    """Every file with its purpose and size."""
    from dragoman.cli.console import print_inventory

    print_inventory(inventory)


def show_comparisons(comparisons: Sequence[Comparison], *, json: bool = False) -> None:
    """Scores, p-values and the verdict; then where the systems differ.

    json: print JSON.
    """
    from dragoman.cli.comparison_view import print_comparison

    if json:
        values = [asdict(one) | {"better": one.better} for one in comparisons]
        print(dumps(values, indent=1))  # in ASCII: no text can send escape sequences
        return
    for comparison in comparisons:
        print_comparison(comparison)


def show_exams(exams: list[Exam], *, json: bool = False) -> None:
    """The marks, and of one system the worst translations.

    json: print JSON.
    """
    from dragoman.base.terminal import open_console
    from dragoman.cli.exam_view import print_exams

    if json:
        print(dumps([asdict(exam) for exam in exams], indent=1))  # in ASCII, as above
        return
    print_exams(exams, open_console())


def show_calibrated(measured: Measured, *, json: bool = False) -> None:
    """How often translations of each colour are right.

    json: print JSON.
    """
    from dragoman.cli.confidence_view import print_measured

    if json:
        print(measured.model_dump_json(indent=1))
        return
    print_measured(measured)


def show_distilled(made: Distilled) -> None:
    """Student and teacher in one table."""
    from dragoman.cli.comparison_view import print_distilled

    print_distilled(made)


def show_report(
    report: Report | RunComparison,
    *,
    run: str | Path,
    output: str | Path | None = None,
    json: bool = False,
) -> None:
    """Write the page of a report or of a comparison, and print the answers of a report.

    output: where to write the page; None: RUN/report, or ./comparison for several runs.
    json: print JSON; files are written only if an output is named as well.
    """
    from dragoman.base.terminal import open_console
    from dragoman.cli.report_view import print_answers
    from dragoman.reporting import comparison_page, render

    if isinstance(report, render.Report):
        place = Path(output or Path(run) / "report")
        written = report.write(place) if output or not json else []
        text = render.as_json(report) if json else ""
    else:
        place = Path(output or "comparison")
        written = comparison_page.write_comparison(report, place) if output or not json else []
        text = comparison_page.as_json(report)
    if json:
        print(printable(text), end="")
        return
    if isinstance(report, render.Report):
        print_answers(report, open_console())
    print(*(printable(str(path)) for path in written), sep="\n")
