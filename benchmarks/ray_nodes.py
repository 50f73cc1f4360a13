"""`synthesize --ray` or `prepare --ray` on one node and on two; and with a node killed.

    benchmarks/ray_nodes.py synthesize --model MODEL --text TEXT [--lines 40000] [--set KEY=VALUE]
    benchmarks/ray_nodes.py prepare [--pairs 4500000]
    both: [--scratch FOLDER] [--rounds 3] [--only speed|killed]

MODEL is a run or an export; nodes need not load PyTorch for an export. The text to prepare is that
of `prepare.py`.

The nodes are hosts of a lab (network namespaces with their own processes; it needs root), alpha on
the first core of this machine and beta on the second. The command runs on alpha, so the start of
the command and Ray's own processes share the cores of the nodes.

speed   lines or pairs a second of the whole command with one node and with two, in turns. And of
        the work alone, from the first unit or block that is written to the end of the command.
killed  all of beta's processes are killed when a third is done (of `prepare`, a third is cleaned):
        what is lost or differs from the result without Ray, and the time after the kill.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from itertools import cycle, islice
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "tests"), str(HERE / "src")]

from dragoman.corpus.pairs import BLOCK_LINES  # noqa: E402  # needs that path
from dragoman.corpus.runs import numbered  # noqa: E402  # needs that path
from lab.laboratory import Lab, open_lab  # noqa: E402  # not installed
from lab.ray_cluster import (  # noqa: E402  # not installed
    address_of,
    environment,
    has_task,
    kill_node,
    start_node,
)
from prepare import SHARED, build_text  # noqa: E402  # beside the path of the lab

LIMIT_S = 3600.0


class Work(ABC):
    """A command that works on so many lines or pairs."""

    def __init__(self, items: int) -> None:
        self.items = items

    @abstractmethod
    def words(self, output: Path) -> list[str | Path]:
        """The command, behind `dragoman`, for this machine alone."""

    @abstractmethod
    def done(self, output: Path) -> int:
        """Items that are done; 0 before the first and after the last."""

    @abstractmethod
    def parts(self, output: Path) -> list[bytes]:
        """The result, which does not depend on Ray."""


class Synthesis(Work):
    """`synthesize`, on one core of each node."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        super().__init__(options.lines)
        known = options.text.read_text(encoding="utf-8").splitlines()
        text = folder / "text"
        text.write_text("".join(f"{one}\n" for one in islice(cycle(known), options.lines)), "utf-8")
        self._words = ["synthesize", options.model.resolve(), "--input", text, "--threads", "1"]
        self._words += [word for one in options.overrides for word in ("--set", one)]

    def words(self, output: Path) -> list[str | Path]:
        return [*self._words, "--output", output]

    def done(self, output: Path) -> int:
        try:
            record = output.with_name(f".{output.name}.partial.json").read_bytes()
            return int(json.loads(record)["lines"])
        except (OSError, ValueError):
            return 0

    def parts(self, output: Path) -> list[bytes]:
        return output.read_bytes().splitlines()


class Preparation(Work):
    """`prepare`; a pair is done when it is cleaned."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        super().__init__(options.pairs)
        text = (options.scratch or folder) / f"text-{options.pairs}"
        build_text(text, options.pairs)
        self._recipe = folder / "recipe.toml"
        news = SHARED / "wmt-news/newstest2013"
        self._recipe.write_text(
            'name = "nodes"\n[corpus]\n'
            f'train = [{{source = "{text}/train.en", target = "{text}/train.de"}}]\n'
            f'valid = [{{source = "{news}.en", target = "{news}.de"}}]\n',
            encoding="utf-8",
        )

    def words(self, output: Path) -> list[str | Path]:
        return ["prepare", self._recipe, "--prepared", output]

    def done(self, output: Path) -> int:
        return BLOCK_LINES * len([*numbered(output / ".unfinished" / "runs", ".json")])

    def parts(self, output: Path) -> list[bytes]:
        files = sorted(path for path in output.rglob("*") if path.is_file())
        return [path.read_bytes() for path in files if path.parent.name != "events"]


class Command:
    """The work on alpha's core."""

    def __init__(self, lab: Lab, work: Work, output: Path, *more: str) -> None:
        self.work = work
        self.output = output
        self.began_s = time.monotonic()
        self.process = lab.host("alpha").start(
            [*pinned(0), sys.executable, "-m", "dragoman", *work.words(output), *more],
            env=environment(),
            stdout=subprocess.PIPE,
        )
        self.first: tuple[float, int] | None = None
        """The time at which something was done, and how many items."""

    def done(self) -> int:
        """Items that are done."""
        items = self.work.done(self.output)
        if items and self.first is None:
            self.first = time.monotonic(), items
        return items

    def wait(self) -> float:
        """Seconds from the start to the end."""
        while self.process.poll() is None:
            if self.first is None:
                self.done()
            time.sleep(0.1)
            if time.monotonic() - self.began_s > LIMIT_S:
                self.process.kill()
                raise SystemExit(f"not in {LIMIT_S:.0f} s")
        if self.process.returncode:
            raise SystemExit(self.process.communicate()[0])
        return time.monotonic() - self.began_s


def pinned(core: int) -> list[str]:
    """Words before a command that give it one core."""
    return ["taskset", "--cpu-list", str(core)]


def main() -> None:
    """Measure both, and print them."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="lab-", dir=options.scratch) as name,
        open_lab(Path(name) / "lab", ["alpha", "beta"], rate=None) as lab,
    ):
        folder = Path(name)
        is_text = options.command == "prepare"
        work = Preparation(options, folder) if is_text else Synthesis(options, folder)
        alpha, _ = lab.hosts
        start_node(alpha, alpha, pin=pinned(0))
        if options.only != "killed":
            speed(lab, work, folder / "speed", options.rounds)
        if options.only != "speed":
            killed(lab, work, folder)


def speed(lab: Lab, work: Work, output: Path, rounds: int) -> None:
    """Items a second with one node and with two, in turns."""
    alpha, beta = lab.hosts
    whole: dict[int, list[float]] = {1: [], 2: []}
    alone: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for nodes in (1, 2) if number % 2 == 0 else (2, 1):
            if nodes == 2:
                start_node(beta, alpha, pin=pinned(1))
            command = Command(lab, work, output, "--ray", address_of(alpha))
            took_s = command.wait()
            assert command.first is not None
            first_s, items = command.first
            whole[nodes].append(work.items / took_s)
            alone[nodes].append((work.items - items) / (command.began_s + took_s - first_s))
            print(
                f"round {number + 1}, {nodes} nodes: {took_s:.1f} s, {whole[nodes][-1]:.0f} a "
                f"second; after the first {alone[nodes][-1]:.0f}",
                flush=True,
            )
            _remove(output)
            if nodes == 2:
                kill_node(beta)
    for name, rates in (("whole command", whole), ("after the first", alone)):
        one, two = (statistics.median(rates[nodes]) for nodes in (1, 2))
        ratios = sorted(b / a for a, b in zip(rates[1], rates[2], strict=True))
        print(
            f"{name}: one node {one:.0f}, two {two:.0f} a second; two / one: median "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def killed(lab: Lab, work: Work, folder: Path) -> None:
    """Kill beta when a third is done, and compare."""
    alpha, beta = lab.hosts
    alone, together = folder / "alone", folder / "together"
    Command(lab, work, alone).wait()
    start_node(beta, alpha, pin=pinned(1))
    command = Command(lab, work, together, "--ray", address_of(alpha))
    while command.done() < work.items / 3 or not has_task(beta):
        if command.process.poll() is not None:
            raise SystemExit(f"it ended before: {command.process.communicate()[0]}")
        time.sleep(0.02)
    killed_at = time.monotonic()
    kill_node(beta)
    command.wait()
    ended_s = time.monotonic() - killed_at
    expected, found = work.parts(alone), work.parts(together)
    differ = sum(a != b for a, b in zip(expected, found, strict=False))
    differ += abs(len(expected) - len(found))
    print(
        f"killed after a third: of {len(expected)} lines or files {differ} lost, double or "
        f"different; ended {ended_s:.1f} s after the kill"
    )


def _remove(output: Path) -> None:
    if output.is_dir():
        shutil.rmtree(output)
    else:
        output.unlink()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    synthesize, prepare = (commands.add_parser(name) for name in ("synthesize", "prepare"))
    synthesize.add_argument("--model", type=Path, required=True)
    synthesize.add_argument("--text", type=Path, required=True)
    synthesize.add_argument("--lines", type=int, default=40_000)
    synthesize.add_argument("--set", action="append", default=[], dest="overrides")
    prepare.add_argument("--pairs", type=int, default=4_500_000)
    for command in (synthesize, prepare):
        command.add_argument("--scratch", type=Path, help="an existing folder for text and results")
        command.add_argument("--only", choices=["speed", "killed"])
        command.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
