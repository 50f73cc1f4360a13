"""`dragoman synthesize --ray` on one node and on two of one core each; and with a node killed.

    benchmarks/ray_nodes.py MODEL TEXT [--lines 40000] [--rounds 3] [--only speed]
                            [--set SECTION.KEY=VALUE ...]

MODEL is a run or an export; nodes need not load PyTorch for an export.

The nodes are hosts of a lab (network namespaces with their own processes; it needs root), alpha on
the first core of this machine and beta on the second. The command runs on alpha, so the start of
the command and Ray's own processes share the cores of the nodes.

speed   lines a second of the whole command with one node and with two, in turns. And of the work
        alone, from the first units that are written to the end.
killed  all of beta's processes are killed midway: lines that are lost or differ, units that were
        begun again, seconds that beta had worked on what was lost, and seconds until it was done.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "tests"), str(HERE / "src")]

from lab.laboratory import Lab, LabHost, open_lab  # noqa: E402  # not installed
from lab.ray_cluster import (  # noqa: E402  # not installed
    address_of,
    environment,
    has_unit,
    kill_node,
    start_node,
)

LIMIT_S = 560.0


class Command:
    """`dragoman synthesize` on alpha's core."""

    def __init__(self, lab: Lab, model: Path, text: Path, output: Path, *more: str) -> None:
        self.output = output
        self.record = output.with_name(f".{output.name}.partial.json")
        words = ["--input", str(text), "--output", str(output), "--threads", "1", *more]
        self.began_s = time.monotonic()
        self.process = lab.host("alpha").start(
            [*pinned(0), sys.executable, "-m", "dragoman", "synthesize", model, *words],
            env=environment(),
            stdout=subprocess.PIPE,
        )
        self.first: tuple[float, int] | None = None
        """The time at which something was written, and how many lines that was of."""

    def written(self) -> int:
        """Lines of input that are done; 0 before the first and after the last."""
        try:
            lines = int(json.loads(self.record.read_bytes())["lines"])
        except (OSError, ValueError):
            return 0
        if self.first is None:
            self.first = time.monotonic(), lines
        return lines

    def wait(self) -> float:
        """Seconds from the start to the end."""
        while self.process.poll() is None:
            self.written()
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--lines", type=int, default=40_000)
    parser.add_argument("--only", choices=["speed", "killed"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="lab-") as name,
        open_lab(Path(name) / "lab", ["alpha", "beta"], rate=None) as lab,
    ):
        folder = Path(name)
        known = options.text.read_text(encoding="utf-8").splitlines()
        text = folder / "text"
        text.write_text("".join(f"{one}\n" for one in islice(cycle(known), options.lines)), "utf-8")
        alpha, _ = lab.hosts
        start_node(alpha, alpha, pin=pinned(0))
        words = (options.model.resolve(), text)
        search = tuple(word for one in options.overrides for word in ("--set", one))
        if options.only != "killed":
            speed(lab, words, search, options)
        if options.only != "speed":
            killed(lab, words, search, options.lines)


def speed(
    lab: Lab, words: tuple[Path, Path], search: tuple[str, ...], options: argparse.Namespace
) -> None:
    """Lines a second with one node and with two, in turns."""
    alpha, beta = lab.hosts
    whole: dict[int, list[float]] = {1: [], 2: []}
    work: dict[int, list[float]] = {1: [], 2: []}
    for number in range(options.rounds):
        for nodes in (1, 2) if number % 2 == 0 else (2, 1):
            if nodes == 2:
                start_node(beta, alpha, pin=pinned(1))
            output = words[1].with_name("speed.tsv")
            command = Command(lab, *words, output, *search, "--ray", address_of(alpha))
            took_s = command.wait()
            assert command.first is not None
            wrote_s, lines = command.first
            whole[nodes].append(options.lines / took_s)
            work[nodes].append((options.lines - lines) / (command.began_s + took_s - wrote_s))
            print(
                f"round {number + 1}, {nodes} nodes: {took_s:.1f} s, {whole[nodes][-1]:.0f} lines/s"
                f"; after the first unit {work[nodes][-1]:.0f} lines/s",
                flush=True,
            )
            output.unlink()
            if nodes == 2:
                kill_node(beta)
    for name, rates in (("whole command", whole), ("after the first unit", work)):
        one, two = (statistics.median(rates[nodes]) for nodes in (1, 2))
        ratios = sorted(b / a for a, b in zip(rates[1], rates[2], strict=True))
        print(
            f"{name}: one node {one:.0f}, two {two:.0f} lines/s; two / one: median "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def killed(lab: Lab, words: tuple[Path, Path], search: tuple[str, ...], lines: int) -> None:
    """Kill beta when a third is written, and count."""
    alpha, beta = lab.hosts
    alone, together = (words[1].with_name(f"{name}.tsv") for name in ("alone", "together"))
    Command(lab, *words, alone, *search).wait()
    start_node(beta, alpha, pin=pinned(1))
    before = {host.name: len(units(host)) for host in lab.hosts}
    command = Command(lab, *words, together, *search, "--ray", address_of(alpha))
    while command.written() < lines / 3 or not has_unit(beta):
        if command.process.poll() is not None:
            raise SystemExit(f"it ended before: {command.process.communicate()[0]}")
        time.sleep(0.02)
    killed_at = time.time()
    kill_node(beta)
    command.wait()
    ended_at = time.time()
    of_alpha, of_beta = (units(host)[before[host.name] :] for host in lab.hosts)
    lost = [one for one in of_beta if one.took_s is None]
    began_again = [one for one in of_alpha if one.line in {mine.line for mine in lost}]
    took = [one.took_s for one in (*of_alpha, *of_beta) if one.took_s is not None]
    wasted_s = sum(killed_at - one.began_s for one in lost)
    known, found = (path.read_text(encoding="utf-8").splitlines() for path in (alone, together))
    differ = sum(a != b for a, b in zip(known, found, strict=False)) + abs(len(known) - len(found))
    print(
        f"killed after a third: {len(found)} pairs, {differ} lost, double or different; "
        f"{len(of_alpha) + len(of_beta)} units begun, {len(lost)} lost, {len(began_again)} begun "
        f"again {min(one.began_s for one in began_again) - killed_at:.1f} s later; "
        f"beta had worked {wasted_s:.1f} s on it (a unit takes {statistics.median(took):.1f} s); "
        f"ended {ended_at - killed_at:.1f} s after the kill"
    )


@dataclass(frozen=True)
class Unit:
    """A unit that a process began; took_s: None if it did not end."""

    line: int
    began_s: float
    took_s: float | None


def units(host: LabHost) -> list[Unit]:
    """All that the processes of a host have begun, by their logs, the oldest first."""
    logs = host.run(["sh", "-c", "cat /run/ray/session_2*/logs/worker-*.out"], check=False).stdout
    found: list[Unit] = []
    for line in logs.splitlines():  # a process does one at a time
        if line.startswith('{"unit"'):
            said = json.loads(line)
            if "began" in said:
                found.append(Unit(said["unit"], said["began"], None))
            else:
                found[-1] = replace(found[-1], took_s=said["took_s"])
    return sorted(found, key=lambda one: one.began_s)


if __name__ == "__main__":
    main()
