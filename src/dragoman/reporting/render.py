"""Verdicts -> report.json, report.md and report.html."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dragoman.base import units
from dragoman.base.printable import printable
from dragoman.reporting.checks import BY_KEY, examine, judge
from dragoman.reporting.cost import energy_text
from dragoman.reporting.document import (
    Answer,
    Answers,
    Block,
    Document,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    write_files,
)
from dragoman.reporting.facts import Facts
from dragoman.reporting.scores import EXAM, exam_rows, of_samples
from dragoman.reporting.verdict import Verdict

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The facts of a run and the answers from them."""

    facts: Facts
    answers: tuple[Verdict, ...]
    ailments: tuple[Verdict, ...]

    @classmethod
    def of(cls, facts: Facts) -> Report:
        """The report of a run."""
        return cls(facts, tuple(judge(facts)), tuple(examine(facts)))

    @property
    def judgements(self) -> list[tuple[int, Verdict]]:
        """The numbered answers to questions for a judgement: those that a reader asks first."""
        return self._of("judgement")

    @property
    def measurements(self) -> list[tuple[int, Verdict]]:
        """The numbered answers to questions for facts."""
        return self._of("fact")

    def _of(self, kind: str) -> list[tuple[int, Verdict]]:
        numbered = enumerate(self.answers, 1)
        return [
            (number, verdict) for number, verdict in numbered if kind == BY_KEY[verdict.key].kind
        ]

    def __repr__(self) -> str:
        """The answers in one line each, for a terminal."""
        lines = [
            f"{number:2}. {verdict.question} {verdict.answer.upper()}: "
            + verdict.says.replace("\n", " ")
            for number, verdict in enumerate(self.answers, 1)
        ]
        return printable("\n".join([f"{self.facts.name}: {in_one_line(self.facts)}", *lines]))

    def _repr_html_(self) -> str:
        """The page inside a notebook, kept apart from the notebook's own styles."""
        whole = html.escape(printable(_document(self).html()))
        return (
            f'<iframe srcdoc="{whole}" sandbox title="report" loading="lazy" '
            'style="width:100%;height:640px;border:1px solid #8888"></iframe>'
        )

    def write(self, directory: str | Path, *, refresh_s: float | None = None) -> list[Path]:
        """Write report.html, report.md and report.json; returns their paths.

        refresh_s: how often the page reloads itself; None: never.
        Raises MachineError if the directory cannot be written.
        """
        document = _document(self)
        texts = {
            "report.html": document.html(refresh_s=refresh_s),
            "report.md": document.markdown(),
            "report.json": as_json(self),
        }
        return write_files(Path(directory), texts)


def as_json(report: Report) -> str:
    """The report for programs: values in base units beside their texts."""
    facts = report.facts
    values = {
        "version": REPORT_VERSION,
        "run": {
            "name": facts.name,
            "world_size": facts.world_size,
            "hosts": list(facts.hosts),
            "device": facts.device,
            "precision": facts.precision,
            "num_parameters": facts.num_parameters,
            "max_steps": facts.max_steps,
            "last_step": facts.last_step,
            "state": facts.state,
            "finished": facts.is_finished,
            "read_at": facts.read_at,
        },
        "answers": [asdict(verdict) for verdict in report.answers],
        "ailments": [asdict(verdict) for verdict in report.ailments],
        "problems": list(facts.problems),
        "alerts": [alert.model_dump() for alert in facts.alerts],
        "environment": dict(facts.environment),
    }
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _document(report: Report) -> Document:
    """The parts of the page and of the text, in order."""
    facts = report.facts
    found = [(None, verdict) for verdict in report.ailments if verdict.answer == "yes"]
    rest = [(None, verdict) for verdict in report.ailments if verdict.answer != "yes"]
    rest.sort(key=lambda row: row[1].answer == "cannot tell")
    clear = sum(verdict.answer == "no" for _, verdict in rest)
    looked = f"{clear} checks found nothing, {len(rest) - clear} could not tell"
    alerts = f"alerts while it trained: {units.COUNT.text(len(facts.alerts))}"
    return Document(
        title=facts.name,
        name=f"{facts.name}: report",
        values=list(run_values(facts)),
        blocks=[
            Section("Translations", list(_samples(facts)), key="translations"),
            Section("Answers", [Answers(report.judgements)]),
            Section("Facts", [Answers(report.measurements)]),
            Section("Health", [Answers(found), Section(looked, [Answers(rest)], folded=True)]),
            Section(EXAM, [Table(list(exam_rows(facts)))]),
            Section(
                "About the evidence",
                [
                    Items(faults(facts)),
                    Section(alerts, [Items([alert.text for alert in facts.alerts])], folded=True),
                ],
            ),
            *(_section(facts, n, verdict) for n, verdict in enumerate(report.answers, 1)),
            Section("Environment", [Table(list(_environment(facts)))]),
        ],
    )


def run_values(facts: Facts) -> Iterator[tuple[str, str]]:
    """The run in short: names with their values."""
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
    if facts.lives:
        moment = time.gmtime(facts.lives[0].started)
        yield "started", time.strftime("%d %b %Y %H:%M UTC", moment)


def in_one_line(facts: Facts) -> str:
    """The same in one line."""
    return ", ".join(f"{name} {text}" for name, text in run_values(facts))


def _samples(facts: Facts) -> Iterator[Block]:
    """Dev sentences with their translations."""
    if facts.samples:
        yield Paragraph(of_samples(facts))
    yield from (Table(sample.rows) for sample in facts.samples)


def faults(facts: Facts) -> list[str]:
    """How the run ended if not by itself, and the faults of the evidence."""
    ended = [facts.exit.problem] if facts.exit is not None and facts.exit.problem else []
    return [*ended, *facts.problems]


def _section(facts: Facts, number: int, verdict: Verdict) -> Section:
    """An answer with its plots, evidence, limits and method."""
    plots, rows = BY_KEY[verdict.key].plots, verdict.evidence
    measured = [(row.name, row.text) for row in rows if row.value is not None]
    missing = ", ".join(row.name for row in rows if row.value is None)
    return Section(
        f"{number}. {verdict.question}",
        [
            Answer(verdict),
            Figures([] if plots is None else plots(facts)),
            Table(measured),
            Paragraph(missing, "Not measured"),
            Section("limits", [Paragraph("; ".join(verdict.thresholds))], folded=True),
            Paragraph(verdict.method, "Method"),
        ],
        key=verdict.key,
    )


def _environment(facts: Facts) -> Iterator[tuple[str, str]]:
    for name, value in facts.environment.items():
        text = str(value)
        if name.endswith("_bytes") and isinstance(value, int | float):
            text = f"{units.SIZE.text(value)} (= {units.BINARY_SIZE.text(value)})"
        if value is not None:
            yield name.removesuffix("_bytes").replace("_", " "), text
