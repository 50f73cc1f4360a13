"""A run on other machines, followed over ssh: the newest log that a host has is copied here as it
grows. How the run's process ended stays on its host: a killed run is silent here."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from dragoman.base.errors import MachineError
from dragoman.cluster import ssh
from dragoman.cluster.hosts import Host, Hosts
from dragoman.telemetry.events import event_file
from dragoman.telemetry.host import HourlyPrice
from dragoman.watch.live import LiveRun

_FIND: Final = """
import json, pathlib, sys
for run in map(pathlib.Path, sys.argv[1:]):
    log = run / "events" / "log.jsonl"
    if log.is_file():
        names = [name for name in ("recipe.toml", "manifest.json") if (run / name).is_file()]
        files = {name: (run / name).read_text(encoding="utf-8") for name in names}
        about = {"log": str(log.resolve()), "at": log.stat().st_mtime, "size": log.stat().st_size}
        print(json.dumps(about | {"files": files}))
        break
"""
"""Prints where a host has the log of a run, and the files beside it; nothing if it has none."""
_AGAIN_S: Final = 5.0
_FIRST_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.02
_PIECE_BYTES: Final = 1 << 16


class RemoteLog:
    """A copy of the log of a run on hosts, kept up to date inside a `with` block.

    The host with the newest log counts. A lost connection is opened again; `troubles` reports it
    meanwhile.
    """

    def __init__(self, directory: Path, hosts: Sequence[Host], run: Path) -> None:
        """directory: the copy of the run directory."""
        self._directory = directory
        self._hosts = hosts
        self._run = run
        self._source: tuple[Host, dict[str, Any]] | None = None
        self._failures: dict[str, MachineError] = {}
        """Of the hosts that did not answer last, by their names."""
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        """Find the run, and copy what it has now. Raises MachineError if no host answers."""
        (self._directory / "events").mkdir(parents=True)
        event_file(self._directory / "events").touch()
        self._find()
        if len(self._failures) == len(self._hosts):
            raise next(iter(self._failures.values()))
        self._thread.start()
        deadline = time.monotonic() + _FIRST_S
        while self._lacks_some() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join()

    def _lacks_some(self) -> bool:
        copy = event_file(self._directory / "events")
        if self._source is None or self._source[0].name in self._failures:
            return False
        return copy.stat().st_size < int(self._source[1]["size"])

    def troubles(self) -> Iterator[str]:
        """The present problems."""
        source = self._source and self._source[0].name
        for name, failure in self._failures.items():
            yield f"{failure}; trying again" if source in (None, name) else str(failure)
        if self._source is None and not self._failures:
            yield f"no host has a run {self._run.name} yet"

    def _find(self) -> None:
        """Ask every host for the log; the newest counts, and stays: the copy must not mix two."""
        failures, logs = {}, []
        for host in self._hosts:
            places = [f"{host.folder}/runs/{self._run.name}", str(self._run)]
            try:
                answer = ssh.run(host, [host.python, "-c", _FIND, *places])
            except MachineError as error:
                failures[host.name] = error
                continue
            if answer.strip() and (self._source is None or self._source[0] == host):
                logs.append((host, json.loads(answer)))
        self._failures = failures
        if logs:
            self._source = max(logs, key=lambda log: log[1]["at"])
            for name, text in self._source[1]["files"].items():
                (self._directory / name).write_text(text, encoding="utf-8")

    def _follow(self) -> None:
        while not self._over.is_set():
            if self._source is not None:
                host, about = self._source
                try:
                    self._copy(host, about)
                except MachineError as error:
                    self._failures[host.name] = error
            if not self._over.wait(_AGAIN_S):
                self._find()

    def _copy(self, host: Host, about: dict[str, Any]) -> None:
        """Copy what is added until the connection ends, then raise MachineError."""
        copy = event_file(self._directory / "events")
        since = f"+{copy.stat().st_size + 1}"
        with tempfile.TemporaryFile() as errors:
            command = ["tail", "-c", since, "-F", about["log"]]
            process = self._process = ssh.start(host, command, stderr=errors.fileno())
            assert process.stdout is not None
            if self._over.is_set():  # `__exit__` has not seen this connection
                process.kill()
            with suppress(BrokenPipeError), process, copy.open("ab") as file:
                ssh.skip_greeting(host, process.stdout)
                while piece := process.stdout.read1(_PIECE_BYTES):  # type: ignore[attr-defined]
                    self._failures.pop(host.name, None)
                    file.write(piece)
                    file.flush()
            raise ssh.failure(host, process.returncode, ssh.read_errors(errors))


@contextmanager
def remote_run(hosts: Hosts, run: Path, *, price: HourlyPrice | None) -> Iterator[LiveRun]:
    """A run on hosts: by its name in their folders, or by its path there.

    price: the price of one machine for an hour; if None, the recorded price.
    Raises MachineError if all hosts have failed.
    """
    with tempfile.TemporaryDirectory(prefix="dragoman-watch-") as scratch:
        directory = Path(scratch) / run.name
        with (
            RemoteLog(directory, hosts.host, run) as log,
            closing(LiveRun(directory, price=price, troubles=log.troubles)) as live,
        ):
            yield live
