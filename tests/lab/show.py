"""`make lab`: two hosts on this machine, a real training over them, and what each strategy costs.

The hosts are network namespaces with their own names, sshd and rate-limited ports. Every command
below is one that a user of two real machines types. All of it is gone at the end.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dragoman.base import units
from dragoman.telemetry.events import TrainInterval, read_events
from lab.laboratory import Lab, open_lab
from lab.namespaces import why_no_lab

PROGRAM: Final = Path(sys.executable).with_name("dragoman")
STRATEGIES: Final = {
    "sync": ("distributed.strategy=sync",),
    "diloco, every 8": (
        "distributed.strategy=diloco",
        "distributed.diloco.every=8",
        "distributed.diloco.fragments=2",
        "distributed.diloco.delay=2",
    ),
}
TABLE_STEPS: Final = 12
LOG_EVERY: Final = 4
"""The first so many steps warm up and are not counted."""


def main() -> int:
    """Show the lab; the exit code is that of the first command that fails."""
    options = _parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))  # so that everything is taken down
    if why := why_no_lab():
        print(f"make lab needs a machine that can hold a lab: {why}", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-lab-") as directory,
        open_lab(Path(directory), ["alpha", "beta"], rate=options.rates[0]) as lab,
    ):
        show = Show(lab)
        print(f"two hosts, {options.rates[0]} between them: alpha trains 1 rank, beta 1 rank")
        return (
            show.dragoman("doctor", "--hosts", "hosts.toml")
            or show.dragoman(*_train(options.steps))
            or show.dragoman("report", "--status")
            or show.dragoman(*_plan(options.rates[0]))
            or show.table(options.rates)
        )


class Show:
    """The controller of a lab, at which commands are typed."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._folder = lab.controller.home
        lab.write_hosts_file(self._folder / "hosts.toml", slots=[1, 1])

    def dragoman(self, *words: str) -> int:
        """Type a command and let its output be seen."""
        print(f"\n$ dragoman {' '.join(words)}", flush=True)
        return self._lab.controller.start([PROGRAM, *words], stdout=None, stderr=None).wait()

    def table(self, rates: Sequence[str]) -> int:
        """Train a few steps with each strategy at each rate, and print what a step took."""
        table = Table(title="seconds of a step, and megabytes that a rank sends in it")
        table.add_column("strategy")
        for rate in rates:
            table.add_column(rate, justify="right")
        for name, settings in STRATEGIES.items():
            cells = []
            for rate in rates:
                for host in self._lab.hosts:
                    host.limit(rate)
                words = _train(TABLE_STEPS, *settings, runs=f"{rate}-{settings[0]}")
                if code := self.dragoman(*words):
                    return code
                cells.append(self._cost(Path(words[words.index("--runs") + 1])))
            table.add_row(name, *cells)
        Console().print("", table)
        return 0

    def _cost(self, runs: Path) -> str:
        counted = list(self._intervals(self._folder / runs))[1:]
        steps = sum(interval["steps"] for interval in counted)
        step_s = sum(interval["interval_s"][0] for interval in counted) / steps
        sent = sum(interval["sync_bytes"][0] for interval in counted) / steps
        return f"{units.STEP_TIME.text(step_s)}, {units.SIZE.text(sent)}"

    def _intervals(self, runs: Path) -> Iterator[Mapping[str, Any]]:
        (path,) = runs.glob("*/events/log.jsonl")
        for event in read_events(path):
            if event.kind == TrainInterval.kind:
                yield event.payload


def _train(steps: int, *settings: str, runs: str = "runs") -> list[str]:
    said = (
        f"train.max_steps={steps}",
        f"train.log_every_steps={LOG_EVERY if runs != 'runs' else 20}",
        f"train.validate_every_steps={max(steps, 1)}",
        "train.validate_at_start=false",
        "evaluate.bleu_pairs=20",
        *settings,
    )
    overrides = [word for setting in said for word in ("--set", setting)]
    return ["train", "demo", "--hosts", "hosts.toml", "--runs", runs, *overrides]


def _plan(rate: str) -> list[str]:
    link = rate.replace("mbit", "Mbit")
    return ["plan", "demo", "--hosts", "hosts.toml", "--link", link, "--gpu", "cpu"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="of the demo's (default: 60)")
    parser.add_argument("--rates", nargs="+", default=["50mbit", "200mbit"], help="in tc's words")
    return parser


if __name__ == "__main__":
    sys.exit(main())
