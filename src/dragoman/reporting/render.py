"""Verdicts -> report.json, report.md and report.html."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.files import write_whole
from dragoman.base.printable import printable
from dragoman.reporting.checks import BY_KEY, examine, judge
from dragoman.reporting.facts import Facts
from dragoman.reporting.page import doubts, page
from dragoman.reporting.scores import EXAM, exam_rows
from dragoman.reporting.verdict import Verdict

REPORT_VERSION = 1
_MARKS: Final = re.compile(r"[\\`*\[\]|]")


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
            f"{number:2}. {verdict.question} {verdict.answer.upper()}: {verdict.says}"
            for number, verdict in enumerate(self.answers, 1)
        ]
        return printable("\n".join([f"{self.facts.name}: {summary(self.facts)}", *lines]))

    def _repr_html_(self) -> str:
        """The page inside a notebook, kept apart from the notebook's own styles."""
        whole = html.escape(printable(page(self.facts, self.answers, self.ailments)))
        return (
            f'<iframe srcdoc="{whole}" sandbox title="report" loading="lazy" '
            'style="width:100%;height:640px;border:1px solid #8888"></iframe>'
        )

    def write(self, directory: str | Path, *, refresh_s: float | None = None) -> list[Path]:
        """Write report.html, report.md and report.json; returns their paths.

        refresh_s: how often the page reloads itself; None: never.
        Raises MachineError if the directory cannot be written.
        """
        texts = {
            "report.html": page(self.facts, self.answers, self.ailments, refresh_s=refresh_s),
            "report.md": as_markdown(self),
            "report.json": as_json(self),
        }
        return write_files(Path(directory), texts)


def write_files(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts into files of these names; returns their paths.

    Characters that are not safe in text are written as �: control characters, which can steer the
    terminal of a reader, and halves of surrogate pairs.
    Raises MachineError if the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(directory / name, printable(text))
    except OSError as error:
        raise MachineError(
            f"cannot write the report: {error.strerror}",
            place=directory,
            remedy="free disk space, or choose another place",
        ) from error
    return [directory / name for name in texts]


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


def as_markdown(report: Report) -> str:
    """The report as text: the answers in one line each, then each with its evidence."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    facts = report.facts
    yield f"# {cell(facts.name)}"
    yield ""
    yield cell(summary(facts))
    yield ""
    yield "| | question | answer | |"
    yield "|---:|---|---|---|"
    for number, verdict in enumerate(report.answers, 1):
        answer = f"**{verdict.answer}** | {cell(verdict.says)}"
        yield f"| {number} | {cell(verdict.question)} | {answer} |"
    yield from _ailments(report.ailments)
    if facts.exam:
        yield from ("", f"## {EXAM}", "", "| subject | held |", "|---|---|")
        yield from (f"| {cell(subject)} | {cell(held)} |" for subject, held in exam_rows(facts))
    if texts := list(doubts(facts)):
        yield from ("", "## About the evidence", "")
        yield from (f"- {cell(text)}" for text in texts)
    for number, verdict in enumerate(report.answers, 1):
        yield from ("", f"## {number}. {cell(verdict.question)}", "")
        yield f"**{verdict.answer}**: {cell(verdict.says)}"
        yield from _details(verdict)


def _ailments(ailments: Sequence[Verdict]) -> Iterator[str]:
    yield from ("", "## Health", "")
    for verdict in ailments:
        remedy = f" {verdict.remedy}" if verdict.remedy else ""
        yield f"- {cell(verdict.question)} **{verdict.answer}**: {cell(verdict.says + remedy)}"


def _details(verdict: Verdict) -> Iterator[str]:
    if verdict.evidence:
        yield from ("", "| evidence | |", "|---|---|")
        for row in verdict.evidence:
            yield f"| {cell(row.name)} | {cell(row.text)} |"
    for label, text in (
        ("Limits", "; ".join(verdict.thresholds)),
        ("Method", verdict.method),
        ("Remedy", verdict.remedy),
    ):
        if text:
            yield from ("", f"{label}: {cell(text)}")


def summary(facts: Facts) -> str:
    """The run in one sentence."""
    parts = [f"{units.COUNT.text(facts.last_step)} steps"]
    if facts.max_steps:
        parts[0] = (
            f"step {units.COUNT.text(facts.last_step)} of {units.COUNT.text(facts.max_steps)}"
        )
    if facts.num_parameters:
        parts.append(f"{units.COUNT.text(facts.num_parameters)} parameters")
    if facts.world_size:
        ranks = "1 rank" if facts.world_size == 1 else f"{facts.world_size} ranks"
        parts.append(f"{ranks} on {', '.join(facts.hosts)}" if facts.hosts else ranks)
    parts += [text for text in (facts.device, facts.precision) if text]
    return ", ".join(parts)


def cell(text: str) -> str:
    """Text for markdown, in one line: no tag, no link, no code and no end of a table's cell."""
    return _MARKS.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))
