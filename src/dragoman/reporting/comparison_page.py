"""A comparison of runs as a page, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

from dragoman.base import units
from dragoman.reporting.comparison import (
    MACHINES,
    TOKENS,
    WALL,
    Resource,
    RunComparison,
    totals,
)
from dragoman.reporting.cost import currency_of
from dragoman.reporting.document import (
    Document,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    write_files,
)
from dragoman.reporting.facts import bleu_text
from dragoman.reporting.plots import BLEU, LOSS_HEIGHT, without_start
from dragoman.reporting.svg import Axis, LinePlot, Series

_LOSS: Final = Axis("dev loss, nats per target token", "{:.4g}".format)
_SCORES: Final = {"dev_loss", "bleu", "bleu_low", "bleu_high"}
_TOKENS: Final = Axis("source + target tokens", units.SHORT_COUNT.text)
T = TypeVar("T")


def write_comparison(comparison: RunComparison, directory: Path) -> list[Path]:
    """Write comparison.html, .md and .json; returns their paths.

    Raises MachineError if the directory cannot be written.
    """
    document = Document(
        title="Comparison",
        values=[(run.letter, run.facts.name) for run in comparison.compared],
        blocks=[
            Section("Before you compare", [Items(comparison.notes)]),
            _totals(comparison),
            _levels(comparison),
            *_target(comparison),
            Section("Curves", [Figures(list(_plots(comparison)))]),
        ],
    )
    texts = {
        "comparison.html": document.html(),
        "comparison.md": document.markdown(),
        "comparison.json": as_json(comparison),
    }
    return write_files(directory, texts)


def _totals(comparison: RunComparison) -> Section:
    """What each run used up, and what it reached."""
    columns = [dict(totals(run, comparison.budgets)) for run in comparison.compared]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "not measured") for column in columns)] for name in names]
    return Section("In all", [Table(rows, _heading(comparison))])


def _levels(comparison: RunComparison) -> Section:
    """The scores of the runs at equal budgets."""
    letters, rows, says = [run.letter for run in comparison.compared], [], []
    for level in comparison.levels:
        amount = _amount(level.budget, level.amount)
        if level.losses:
            losses = [_or_dash(level.losses.get(letter), units.LOSS.text) for letter in letters]
            rows.append([f"dev loss at {amount}", *losses])
        if level.bleus:
            bleus = [_or_dash(level.bleus.get(letter), bleu_text) for letter in letters]
            rows.append(["last BLEU by then" if level.losses else f"last BLEU at {amount}", *bleus])
        if level.says:
            says.append(f"At {amount}: {level.says}")
    if not rows:
        says = ["Not measured."]
    shown = (Paragraph(" ".join(says)), Table(rows, _heading(comparison)))
    return Section("At the same budget", shown)


def _target(comparison: RunComparison) -> Iterator[Section]:
    """The resources that each run used until it reached the same loss."""
    if comparison.target is None:
        return
    used = comparison.target.used
    rows = [
        [
            budget.name,
            *(
                _or_dash(used[run.letter].get(budget.key), budget.text)
                for run in comparison.compared
            ),
        ]
        for budget in comparison.budgets
    ]
    loss = units.LOSS.text(comparison.target.loss)
    says = "The lowest dev loss that all of them reached; between validations on a straight line."
    shown = (Paragraph(says), Table(rows, _heading(comparison)))
    yield Section(f"What it took to a dev loss of {loss}", shown)


def _heading(comparison: RunComparison) -> list[str]:
    return ["", *(run.letter for run in comparison.compared)]


def _amount(budget: Resource, amount: float) -> str:
    return f"{budget.text(amount)} {budget.unit}".strip()


def _or_dash(value: T | None, text: Callable[[T], str]) -> str:
    return "-" if value is None else text(value)


def _axes(comparison: RunComparison) -> Iterator[tuple[Resource, Axis, float]]:
    """For each plot the budget, the x axis, and the amount of the budget that is 1 on that axis."""
    yield TOKENS, _TOKENS, 1.0
    for budget in (WALL, MACHINES):
        ends = [points[-1][0] for run in comparison.compared if (points := run.losses(budget))]
        unit, scale = (
            ("hours", units.HOUR_S)
            if max(ends, default=0.0) >= 2 * units.HOUR_S
            else ("minutes", 60)
        )
        yield budget, Axis(f"{unit} of {budget.name}", "{:.3g}".format), scale
    for budget in comparison.budgets:
        if budget.key == "money":
            currency = currency_of(comparison.compared[0].facts)
            yield budget, Axis(f"money, {currency}", "{:.3g}".format), 1.0


def _plots(comparison: RunComparison) -> Iterator[LinePlot]:
    for budget, axis, scale in _axes(comparison):
        series = []
        for run in comparison.compared:
            points = [(used / scale, loss) for used, loss in run.losses(budget)]
            shown = without_start(points, points[-1][0]) if points else ()
            series.append(Series(run.letter, shown))
        yield LinePlot(series, axis, _LOSS, LOSS_HEIGHT)
    series = [
        Series(
            run.letter, [(used, validation.bleu or 0.0) for used, validation in run.bleus(TOKENS)]
        )
        for run in comparison.compared
    ]
    yield LinePlot(series, _TOKENS, BLEU)


def as_json(comparison: RunComparison) -> str:
    """The comparison for programs: amounts in base units."""
    values = {
        "runs": [
            {
                "letter": run.letter,
                "name": run.facts.name,
                "totals": dict(totals(run, comparison.budgets)),
                "validations": [
                    {"used": point.used} | point.validation.model_dump(include=_SCORES)
                    for point in run.validations
                ],
            }
            for run in comparison.compared
        ],
        "notes": list(comparison.notes),
        "levels": [
            {
                "budget": level.budget.key,
                "amount": level.amount,
                "dev_loss": level.losses,
                "bleu": {letter: validation.bleu for letter, validation in level.bleus.items()},
                "answer": level.answer,
                "says": level.says,
            }
            for level in comparison.levels
        ],
        "target": None if comparison.target is None else asdict(comparison.target),
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"
