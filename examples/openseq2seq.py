"""The log of an OpenSeq2Seq run (NVIDIA, TensorFlow 1 with Horovod) -> events of a run.

    python examples/openseq2seq.py nohup.out runs/theirs
    dragoman report runs/theirs

The log has a training loss and a mean step time every `print_loss_steps`, validations with a loss
and a score called BLEU, the configuration, and one pair of every hundredth batch. It has durations
between lines, no times of day, so the clock of the events is their sum. A validation falls between
two lines: its steps are assumed to take as long as the others, and the rest is the validation.

A log may hold several starts. Each names its hosts and its pairs per rank again; for every other
setting the first value counts.

Its "Eval BLEU" does not measure translations: each piece is predicted after the reference's own
pieces (teacher forcing), and the score is over subword pieces.
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.reporting.imported import ImportedRun, ImportedScore
from dragoman.telemetry.events import (
    SCHEMA_VERSION,
    Event,
    RunStarted,
    TrainInterval,
    Validated,
    as_line,
    as_values,
    event_file,
)

_SCORE_METHOD = "teacher-forced argmax on subword pieces, no translation"
_LOSS_TEXT = r"(\d+\.\d+|-?inf|nan)"
_STEP = re.compile(rf"\*\*\* Global step (\d+):.*Train loss: {_LOSS_TEXT}")
_TIME = re.compile(r"time per step = (\d+):(\d+):(\d+(?:\.\d+)?)")
_LOSS = re.compile(rf"\*\*\*\s+Validation loss: {_LOSS_TEXT}")
_SCORE = re.compile(r"\*\*\*\s+Eval (?:BLUE|BLEU) score: (\d+\.\d+)")
_SIDE = re.compile(r"\*\*\*\s+Train (Source|Target)\[0\]:\s+(.*)")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+): ")
_NCCL = re.compile(r"(\S+?):\d+:\d+ \[\d+\] NCCL INFO rank (\d+) nranks (\d+)")
_PAIRS_PER_RANK = re.compile(r"'batch_size_per_gpu': (\d+)")
_NUMBERS = {
    "max_length": re.compile(r"'max_length': (\d+)"),
    "max_steps": re.compile(r"'max_steps': (\d+)"),
    "eval_steps": re.compile(r"'eval_steps': (\d+)"),
    "checkpoint_every_steps": re.compile(r"'save_checkpoint_steps': (\d+)"),
    "schedule_width": re.compile(r"'d_model': (\d+)"),
    "schedule_scale": re.compile(r"'learning_rate': (\d+(?:\.\d+)?)"),
    "schedule_warmup": re.compile(r"'warmup_steps': (\d+)"),
    "num_parameters": re.compile(r"Total trainable parameters: (\d+)"),
}
_WORDS = {
    "precision": re.compile(r"'dtype': '(\w+)'"),
    "train_file": re.compile(r"'source_file': '([^']+)'"),
    "policy": re.compile(r"'lr_policy': <function (\w+)"),
    "gpu_name": re.compile(r"^name: (.+?) major: "),
    "interface": re.compile(r"NCCL INFO NET : Using interface (\w+)"),
}


def import_log(log: Path, directory: Path) -> Path:
    """Write the events of a log (plain or .gz) into a run directory; returns that directory.

    Raises ConfigError if the file cannot be read or is not such a log.
    """
    events = read_log(log)
    (directory / "events").mkdir(parents=True, exist_ok=True)
    lines = b"".join(map(as_line, events))
    event_file(directory / "events").write_bytes(lines)
    return directory


def read_log(log: Path) -> list[Event]:
    """The events of a log, as rank 0 would have written them; see `import_log`."""
    seen = _Log()
    try:
        with gzip.open(log, "rb") if log.suffix == ".gz" else log.open("rb") as lines:
            for line in lines:
                seen.read(line.decode("utf-8", errors="replace"))
    except (OSError, EOFError) as error:
        problem = f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
        remedy = "name the output of an OpenSeq2Seq run, plain or gzip"
        raise ConfigError(problem, place=log, remedy=remedy) from error
    if not seen.steps:
        raise ConfigError(
            "is not a log of OpenSeq2Seq: it has no line 'Global step'",
            place=log,
            remedy="name the nohup.out or console output of its run.py",
        )
    return list(seen.events())


@dataclass(slots=True)
class _Start:
    """The lines of one start before its first line of training."""

    hosts: dict[int, str] = field(default_factory=dict)
    """By rank."""
    world_size: int | None = None
    pairs_per_rank: int | None = None

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """The host of each rank; empty if the log does not name every one."""
        if len(self.hosts) != self.world_size:
            return ()
        return tuple(self.hosts[rank] for rank in sorted(self.hosts))


@dataclass(slots=True)
class _Step:
    """A line of training; step_s is the mean over the steps since the line before."""

    start: _Start
    step: int
    loss: float | None
    step_s: float | None = None
    losses: list[float | None] = field(default_factory=list)
    """Losses of the validations between the line before and this one."""
    scores: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Log:
    """The content of the log, as far as it was read."""

    numbers: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    start: _Start = field(default_factory=_Start)
    """The start whose lines are being read, or written as events."""
    started: float = 0.0
    steps: list[_Step] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    lengths: dict[str, list[int]] = field(default_factory=lambda: {"Source": [], "Target": []})

    def read(self, line: str) -> None:
        """Read one line. The first value of a setting counts: training comes before evaluation."""
        if found := _STEP.search(line):
            loss = _finite(found[2])
            self.steps.append(
                _Step(self.start, int(found[1]), loss, None, self.losses, self.scores)
            )
            self.losses, self.scores = [], []
        elif (found := _TIME.search(line)) and self.steps:
            hours, minutes, seconds = map(float, found.groups())
            self.steps[-1].step_s = hours * units.HOUR_S + minutes * 60 + seconds
        elif found := _LOSS.search(line):
            self.losses.append(_finite(found[1]))
        elif found := _SCORE.search(line):
            self.scores.append(float(found[1]))
        elif found := _SIDE.search(line):
            self.lengths[found[1]].append(len(found[2].split()))
        elif found := _NCCL.search(line):
            self._start_anew_after_steps()
            self.start.hosts[int(found[2])] = found[1]
            self.start.world_size = int(found[3])
        elif found := _PAIRS_PER_RANK.search(line):
            self._start_anew_after_steps()
            if self.start.pairs_per_rank is None:
                self.start.pairs_per_rank = int(found[1])
        elif not self.steps:
            self._read_head(line)

    def _start_anew_after_steps(self) -> None:
        if self.steps and self.steps[-1].start is self.start:
            self.start = _Start()

    def _read_head(self, line: str) -> None:
        if found := _STAMP.match(line):
            with suppress(ValueError):  # a damaged one, such as of the 13th month
                moment = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
                self.started = moment.timestamp()
        for name, pattern in _NUMBERS.items():
            if name not in self.numbers and (found := pattern.search(line)):
                self.numbers[name] = float(found[1])
        for name, pattern in _WORDS.items():
            if name not in self.words and (found := pattern.search(line)):
                self.words[name] = found[1]

    def events(self) -> Iterator[Event]:
        """All events on one clock that starts with the last time stamp before training."""
        usual_s = self._usual_step_s()
        elapsed_s, before = 0.0, 0
        for number, line in enumerate(self.steps):
            is_first = number == 0
            if is_first or line.start is not self.start or line.step < before:
                self.start = line.start
                # The log does not say how far back it went, so the start counts from its first
                # line.
                before = min(before, line.step)
                values = self._run() | {"resumed_from_step": None if is_first else before}
                yield self._event(RunStarted.kind, elapsed_s, before, values)
                values = as_values(self._imported())
                yield self._event(ImportedRun.kind, elapsed_s, before, values)
            steps = line.step - before
            interval_s = None if line.step_s is None else line.step_s * steps
            validation_s = None
            if (line.losses or line.scores) and interval_s is not None and usual_s and steps:
                validation_s = max(interval_s - usual_s * steps, 0.0)
                interval_s -= validation_s
            elapsed_s += validation_s or 0.0
            yield from self._validation(line, before, elapsed_s, validation_s)
            elapsed_s += interval_s or 0.0
            if steps:
                values = self._interval(line, steps, interval_s)
                yield self._event(TrainInterval.kind, elapsed_s, line.step, values)
            before = line.step
        if self.losses or self.scores:
            rest = _Step(self.start, before, 0.0, None, self.losses, self.scores)
            yield from self._validation(rest, before, elapsed_s, None)

    def _usual_step_s(self) -> float | None:
        quiet = [
            line.step_s
            for line in self.steps[1:]
            if line.step_s is not None and not line.losses and not line.scores
        ]
        return statistics.median(quiet) if quiet else None

    def _interval(self, line: _Step, steps: int, interval_s: float | None) -> dict[str, Any]:
        pairs, ranks = self.start.pairs_per_rank, self.start.world_size
        values: dict[str, Any] = {"steps": steps, "train_loss": line.loss}
        if interval_s is not None:
            values |= {"interval_s": (interval_s,), "step_median_s": (interval_s / steps,)}
        if pairs is not None and ranks:
            values["pairs"] = pairs * ranks * steps
        return values

    def _validation(
        self, line: _Step, before: int, elapsed_s: float, seconds_s: float | None
    ) -> Iterator[Event]:
        step = self._validated_step(before, line.step)
        for loss in line.losses:
            values = {"dev_loss": loss, "loss_s": seconds_s}
            yield self._event(Validated.kind, elapsed_s, step, values)
        for score in line.scores:
            values = as_values(ImportedScore(name="Eval BLEU", value=score))
            yield self._event(ImportedScore.kind, elapsed_s, step, values)

    def _validated_step(self, before: int, after: int) -> int:
        """Validations are at multiples of eval_steps; if none fits, at the line before."""
        every = int(self.numbers.get("eval_steps", 0))
        if every and before:
            nearest = -(-before // every) * every
            if before <= nearest <= max(after, before + 1):
                return nearest
        return before

    def _run(self) -> dict[str, Any]:
        parameters, steps = self.numbers.get("num_parameters"), self.numbers.get("max_steps")
        return {
            "run_name": "OpenSeq2Seq",
            "world_size": self.start.world_size,
            "hosts": self.start.all_hosts,
            "device": self.words.get("gpu_name"),
            "precision": self.words.get("precision"),
            "num_parameters": None if parameters is None else int(parameters),
            "max_steps": None if steps is None else int(steps),
        }

    def _imported(self) -> ImportedRun:
        known, max_length = self.numbers.get, self.numbers.get("max_length")
        sides = self.lengths["Source"] + self.lengths["Target"]
        at_max = [length for length in sides if max_length and length >= max_length]
        is_transformer = self.words.get("policy") == "transformer_policy"
        width, warmup = known("schedule_width"), known("schedule_warmup")
        return ImportedRun(
            tool="OpenSeq2Seq",
            gpu_name=self.words.get("gpu_name"),
            interface=self.words.get("interface"),
            pairs_per_rank=self.start.pairs_per_rank,
            max_length=_whole(max_length),
            printed_pairs=min(map(len, self.lengths.values())),
            printed_source_tokens=_mean(self.lengths["Source"]),
            printed_target_tokens=_mean(self.lengths["Target"]),
            printed_at_max_share=len(at_max) / len(sides) if sides and max_length else None,
            schedule_scale=known("schedule_scale") if is_transformer else None,
            schedule_width=_whole(width) if is_transformer else None,
            schedule_warmup=_whole(warmup) if is_transformer else None,
            train_file=self.words.get("train_file"),
            checkpoint_every_steps=_whole(known("checkpoint_every_steps")),
            score_method=_SCORE_METHOD,
        )

    def _event(self, kind: str, elapsed_s: float, step: int, values: dict[str, Any]) -> Event:
        host = self.start.hosts.get(0, "unknown")
        moment = round(self.started + elapsed_s, 3)
        return Event(SCHEMA_VERSION, kind, moment, round(elapsed_s, 4), host, 0, step, values)


def _finite(text: str) -> float | None:
    """A loss, or None if it is not finite: JSON has no such number."""
    loss = float(text)
    return loss if math.isfinite(loss) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _mean(lengths: list[int]) -> float | None:
    return statistics.fmean(lengths) if lengths else None


def main() -> None:
    """Write the run of the log and the directory that the command line names."""
    parser = argparse.ArgumentParser(description="an OpenSeq2Seq log -> a run to report on")
    parser.add_argument("log", type=Path, help="its output, plain or gzip")
    parser.add_argument("run", type=Path, help="the run directory to write")
    named = parser.parse_args()
    try:
        import_log(named.log, named.run)
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
