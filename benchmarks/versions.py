"""This checkout beside an older one: the same commands, in turns, in one run.

    benchmarks/versions.py OTHER_CHECKOUT [--rounds 5] [--work /tmp/versions] [--only NAME ...]
        [--record]

Both checkouts have their own `.venv`. Every round runs every command with one of them and then
with the other, in an order that changes with each round. Printed: the median of each, and the
median of the ratios of the rounds, speed here / speed there, with the lowest and highest round.
The other checkout makes the model and the long record once, for both.

  train         tokens a second of the demo's recipe on one rank, source and target, after the first
                ten steps, in batches of one length
  prepare       whole command: 200,000 pairs of the shared English-German mix, two processes
  translate     whole command: Multi30k test2016, with beam 5 and with beam 1
  help          whole command: `dragoman --help` and `dragoman train --help`
  report        whole command: `dragoman report` on a run of 50,000 steps on two hosts of eight GPUs

`benchmarks/serve.py --other` compares the servers. `--record` adds the ratios to results.jsonl.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from results import record

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DRAGOMAN_SHARED", REPOSITORY.parent / "shared/data"))
MIXED = SHARED / "ende-mixed"
STEPS, STEPS_LEFT_OUT = 40, 10
PAIRS = 200_000
RECIPE = """
[corpus]
train = [{{source = "{text}/train.en", target = "{text}/train.de"}}]
valid = [{{source = "{mixed}/valid.en", target = "{mixed}/valid.de"}}]
"""


@dataclass(frozen=True)
class Checkout:
    """A working tree with its own `.venv`, and a folder to work in."""

    root: Path
    work: Path

    @property
    def has_groups(self) -> bool:
        """Whether its batches are of several lengths."""
        config = self.root / "src/dragoman/data/config.py"
        return "length_groups" in config.read_text(encoding="utf-8")

    def dragoman(self, *words: str | Path, text: Path | None = None) -> None:
        """Run a command to its end, with `text` as standard input."""
        with (text or Path(os.devnull)).open("rb") as stdin:
            done = subprocess.run(
                [self.root / ".venv/bin/dragoman", *words],
                cwd=self.work,
                stdin=stdin,
                capture_output=True,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"{self.root}: dragoman {words}: {done.stderr.decode()}")

    def runs_per_s(self, *words: str | Path, text: Path | None = None) -> float:
        """How often a second of wall clock this command could run."""
        began = time.perf_counter()
        self.dragoman(*words, text=text)
        return 1 / (time.perf_counter() - began)


class Commands:
    """The measured commands: each returns a speed, more is better."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared

    def make_inputs(self, other: Checkout) -> None:
        """Prepared text, a trained model and a long record, made by the other checkout."""
        for side in ("en", "de"):
            with (
                lzma.open(MIXED / f"train.{side}.xz", "rb") as whole,
                (self.shared / f"train.{side}").open("wb") as part,
            ):
                part.writelines(islice(whole, PAIRS))
        for root in (REPOSITORY, other.root):  # neither compiles its modules while it is timed
            subprocess.run(
                [root / ".venv/bin/python", "-m", "compileall", "-q", root / "src"], check=True
            )
        other.dragoman("prepare", "demo", "--prepared", self.shared / "demo")
        run = ("--prepared", self.shared / "demo", "--runs", self.shared / "runs")
        other.dragoman("train", "demo", "--ranks", "2", *run)
        (trained,) = (self.shared / "runs").iterdir()
        other.dragoman("export", trained, "--to", "ctranslate2", "--output", self.shared / "bundle")
        script = "import sys, pathlib, telemetry; telemetry.record(pathlib.Path(sys.argv[1]), 1.7)"
        subprocess.run(
            [other.root / ".venv/bin/python", "-c", script, self.shared],
            cwd=other.root / "benchmarks",
            check=True,
        )

    def train(self, checkout: Checkout) -> float:
        """Tokens a second."""
        shutil.rmtree(checkout.work / "runs", ignore_errors=True)
        settings = [f"train.max_steps={STEPS}", f"train.log_every_steps={STEPS_LEFT_OUT}"]
        if checkout.has_groups:
            settings.append("data.length_groups=1")  # as older versions make their batches
        checkout.dragoman(
            *("train", "demo", "--ranks", "1", "--prepared", self.shared / "demo"),
            *(word for setting in settings for word in ("--set", setting)),
        )
        # Older versions have a file for each rank, and times that are not lists.
        (record,) = (checkout.work / "runs").glob("*/events/[lr]*[g0].jsonl")
        events = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
        timed = [
            event
            for event in events
            if event["kind"] == "train_interval" and event["step"] > STEPS_LEFT_OUT
        ]
        tokens = sum(event["source_tokens"] + event["target_tokens"] for event in timed)
        return float(tokens / sum(_of_rank_0(event["interval_s"]) for event in timed))

    def prepare(self, checkout: Checkout) -> float:
        """Whole commands a second."""
        shutil.rmtree(checkout.work / "prepared", ignore_errors=True)
        recipe = checkout.work / "mixed.toml"
        recipe.write_text(RECIPE.format(text=self.shared, mixed=MIXED), encoding="utf-8")
        return checkout.runs_per_s("prepare", recipe, "--prepared", "prepared", "--workers", "2")

    def beam_5(self, checkout: Checkout) -> float:
        """Whole commands a second."""
        return self._translate(checkout, 5)

    def beam_1(self, checkout: Checkout) -> float:
        """Whole commands a second."""
        return self._translate(checkout, 1)

    def help(self, checkout: Checkout) -> float:
        """Whole commands a second."""
        return checkout.runs_per_s("--help")

    def report(self, checkout: Checkout) -> float:
        """Whole commands a second."""
        return checkout.runs_per_s(
            "report", self.shared / "run", "--output", checkout.work / "report"
        )

    def _translate(self, checkout: Checkout, beam_size: int) -> float:
        search = ("--set", f"search.beam_size={beam_size}")
        text = SHARED / "multi30k/test2016.en"
        return checkout.runs_per_s("translate", self.shared / "bundle", *search, text=text)


CASES = {
    "train": "training",
    "prepare": "`prepare`",
    "beam_5": "`translate`, beam 5",
    "beam_1": "`translate`, greedy",
    "help": "`--help`",
    "report": "`report` of 50,000 steps",
}
"""The commands, and their names in results.jsonl."""


def _of_rank_0(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("/tmp/versions"))
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    here = Checkout(REPOSITORY, options.work / "here")
    there = Checkout(options.other.resolve(), options.work / "there")
    for checkout in (here, there):
        checkout.work.mkdir(parents=True, exist_ok=True)
    commands = Commands(options.work)
    if not (options.work / "run").exists():
        commands.make_inputs(there)
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in options.only}
    for number in range(options.rounds):
        for name in options.only:
            measure: Callable[[Checkout], float] = getattr(commands, name)
            turns = (here, there) if number % 2 else (there, here)
            measured = {checkout: measure(checkout) for checkout in turns}
            speeds[name].append((measured[here], measured[there]))
    print("| command | here | there | here / there | rounds |")
    print("|---|---:|---:|---:|---|")
    for name, rounds in speeds.items():
        ratios = sorted(here_rate / there_rate for here_rate, there_rate in rounds)
        medians = [statistics.median(side) for side in zip(*rounds, strict=True)]
        print(
            f"| {name} | {medians[0]:.4g}/s | {medians[1]:.4g}/s | {statistics.median(ratios):.3f} "
            f"| {ratios[0]:.2f} to {ratios[-1]:.2f} |"
        )
        if options.record:
            record(
                "versions",
                CASES[name],
                statistics.median(ratios),
                "x",
                low=ratios[0],
                high=ratios[-1],
                at_least=0.97,
                command="benchmarks/versions.py OLD_CHECKOUT",
            )


if __name__ == "__main__":
    main()
