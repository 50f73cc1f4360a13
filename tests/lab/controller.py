"""The controller of a lab: a folder with a recipe, text and hosts, and the user's commands."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dragoman.telemetry.events import Event, read_events
from lab.laboratory import Lab, LabHost
from processes import wait_until as wait_in_time
from tiny_recipe import TINY

PROGRAM: Final = Path(sys.executable).with_name("dragoman")
RECIPE: Final = (
    TINY
    + """\
[data]
batch_tokens = 128
[schedule]
kind = "linear"
peak_learning_rate = 1e-2
warmup_steps = 5
[train]
max_steps = 40
log_every_steps = 5
validate_every_steps = 100000
validate_at_start = false
[checkpoint]
every_steps = 20
[evaluate]
bootstrap_samples = 0
"""
)
ENDLESS: Final = ("--set", "train.max_steps=100000", "--set", "checkpoint.every_steps=100000")
OFTEN_SAVED: Final = ("--set", "train.max_steps=100000", "--set", "checkpoint.every_steps=20")


def wait_until(reached: Callable[[], bool], *, limit_s: float = 300.0) -> None:
    """Starting on several hosts takes long if they share one busy core."""
    wait_in_time(reached, limit_s=limit_s)


@dataclass
class Controller:
    """The user's machine: a folder with a recipe, text and the hosts of the lab."""

    lab: Lab

    @property
    def folder(self) -> Path:
        return self.lab.controller.home

    def command(self, *words: str) -> list[str | Path]:
        return [PROGRAM, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.lab.controller.run(self.command(*words), check=False, timeout_s=400)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.lab.controller.start(
            self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def train(self, *words: str) -> subprocess.Popen[str]:
        return self.start("train", "small.toml", "--hosts", "hosts.toml", *words)

    def events(self, kind: str) -> list[Event]:
        found = self.folder.glob("runs/*/events/log.jsonl")
        return [event for path in found for event in read_events(path) if event.kind == kind]

    def run_directory(self) -> Path:
        (found,) = (self.folder / "runs").iterdir()
        return found

    def status(self) -> dict[str, Any]:
        (found,) = json.loads(self.run("report", "--status", "--json").stdout)
        assert isinstance(found, dict)
        return found

    def signal(self, name: str) -> None:
        """Send a signal to the command that trains."""
        session = json.loads((self.run_directory() / "session.json").read_text())
        self.lab.controller.run(["kill", f"-{name}", str(session["pid"])])

    def trains(self) -> bool:
        return bool(self.events("train_interval"))


def set_up_controller(lab: Lab, *, slots: Sequence[int] = (2, 1)) -> Controller:
    """A controller with everything for a small training."""
    home = lab.controller.home
    lab.write_hosts_file(home / "hosts.toml", slots=slots)
    (home / "small.toml").write_text(RECIPE)
    numbers = range(60)
    (home / "train.en").write_text("".join(f"The cell number {n} is empty.\n" for n in numbers))
    (home / "train.de").write_text("".join(f"Die Zelle Nummer {n} ist leer.\n" for n in numbers))
    return Controller(lab)


def programs(host: LabHost) -> list[str]:
    """The programs on a host other than its first process and sshd: all of them are ours.

    No word is looked for: the folder of this checkout has a part in many command lines.
    """
    running = host.processes().items()
    return [
        shlex.join(words)
        for pid, words in running
        if pid != 1 and not Path(words[0].split(":")[0]).name.startswith("sshd")
    ]


def nothing_left(controller: Controller, hosts: list[LabHost] | None = None) -> None:
    """Wait until the hosts run none of our processes."""
    for host in controller.lab.hosts if hosts is None else hosts:
        with contextlib.suppress(AssertionError):
            wait_until(lambda host=host: not programs(host), limit_s=60)  # type: ignore[misc]
        assert programs(host) == []


def workers(host: LabHost) -> list[int]:
    """Process ids of a host's workers, as it counts them."""
    return [
        pid
        for pid, words in host.processes().items()
        if "dragoman.run.worker" in words and "dragoman.distributed.launch" not in words
    ]


def stop(controller: Controller, training: subprocess.Popen[str]) -> None:
    """End a training like a user, with Ctrl-C."""
    controller.signal("INT")
    _, complaint = training.communicate(timeout=200)
    assert training.returncode == 130, complaint
