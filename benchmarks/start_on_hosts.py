"""How long `dragoman train --hosts` takes to its first step, and how often it logs in.

    benchmarks/start_on_hosts.py [--rounds 3] [--rate 1gbit] [CHECKOUT ...]

Two lab hosts of one rank each (network namespaces with their own sshd; it needs root). Every
checkout takes its turn in every round: this one, and older ones, each with its own `.venv`. Logins
are counted in the hosts' sshd logs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests"))

from lab.controller import ENDLESS, Controller, nothing_left, set_up_controller  # noqa: E402  # not installed
from lab.laboratory import open_lab  # noqa: E402  # not installed
from lab.namespaces import Machine  # noqa: E402  # not installed

LIMIT_S = 300.0


def pin(host: Machine, core: int) -> None:
    """Keep a host's processes, and all that they start, on a core of its own: each host would
    take every core, and threads of two hosts that wait for each other's cores take many times as
    long as on two machines."""
    wanted = Path(f"/proc/{host.pid}/ns/pid").stat().st_ino
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is another's
            if entry.name.isdecimal() and (entry / "ns/pid").stat().st_ino == wanted:
                os.sched_setaffinity(int(entry.name), {core})


def logins(controller: Controller) -> list[int]:
    """How often each host was logged in to since its log was last emptied."""
    return [
        len(re.findall("Accepted publickey", (host.home / "sshd.log").read_text()))
        for host in controller.lab.hosts
    ]


def start_s(controller: Controller, checkout: Path) -> tuple[float, list[int]]:
    """Seconds to the first step, and the logins of each host until then."""
    shutil.rmtree(controller.folder / "runs", ignore_errors=True)
    for host in controller.lab.hosts:
        shutil.rmtree(host.home / ".dragoman", ignore_errors=True)
        with (host.home / "sshd.log").open("r+") as log:
            log.truncate()
    words = [*ENDLESS, "--set", "train.log_every_steps=1"]
    program = checkout / ".venv" / "bin" / "dragoman"
    began = time.monotonic()
    training = controller.lab.controller.start(
        [program, "train", "small.toml", "--hosts", "hosts.toml", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not controller.trains():
        if training.poll() is not None or time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"{checkout} does not train: {training.communicate()[1]}")
        time.sleep(0.05)
    took, counted = time.monotonic() - began, logins(controller)
    controller.signal("INT")
    training.communicate(timeout=LIMIT_S)
    nothing_left(controller)
    return took, counted


def main() -> None:
    """Print seconds and logins of each round, then medians and their ratio to the first's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[], help="older checkouts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", default="1gbit", help="of each host's port, in tc's words")
    options = parser.parse_args()
    checkouts = [HERE, *(path.resolve() for path in options.checkouts)]
    found: dict[Path, list[float]] = {path: [] for path in checkouts}
    with (
        tempfile.TemporaryDirectory(prefix="lab-") as folder,
        open_lab(Path(folder), ["alpha", "beta"], rate=options.rate) as lab,
    ):
        controller = set_up_controller(lab, slots=(1, 1))
        for host, core in zip(lab.hosts, sorted(os.sched_getaffinity(0)), strict=False):
            pin(host, core)
        for number in range(options.rounds):
            for path in checkouts if number % 2 == 0 else reversed(checkouts):
                took, counted = start_s(controller, path)
                found[path].append(took)
                print(f"round {number + 1}  {path}: {took:.1f} s, logins {counted}", flush=True)
    usual = {path: statistics.median(times) for path, times in found.items()}
    for path, seconds in usual.items():
        print(f"{path}: median {seconds:.1f} s, this one takes {usual[HERE] / seconds:.2f} of it")


if __name__ == "__main__":
    main()
