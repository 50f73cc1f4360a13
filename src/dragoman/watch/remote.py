"""A run on other machines, followed over ssh: its records are copied here as they grow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Self

from dragoman.base.errors import MachineError
from dragoman.base.files import write_whole
from dragoman.cluster import ssh
from dragoman.cluster.copying import READ_PROGRAM
from dragoman.cluster.hosts import Host, Hosts, record_hosts
from dragoman.telemetry.host import HourlyPrice
from dragoman.watch import sender
from dragoman.watch.live import LiveRun

_PROGRAM: Final = Path(sender.__file__).read_bytes()
_NAME: Final = re.compile(r"events/[a-z0-9-]{1,40}\.jsonl|recipe\.toml|manifest\.json")
_AGAIN_S: Final = 5.0
_FIRST_S: Final = 60.0
_MOST_BYTES: Final = 16 << 20
"""Most bytes of one frame: a piece of an event file, or a whole recipe or manifest."""


@dataclass(slots=True)
class _Line:
    """The connection to one host. heard: it has sent its records, or failed, once."""

    host: Host
    heard: threading.Event = field(default_factory=threading.Event)
    has_run: bool = False
    failure: MachineError | None = None
    process: subprocess.Popen[bytes] | None = None


class Mirror:
    """Copies of the records of a run, kept up to date inside a `with` block.

    A lost connection is opened again; `troubles` reports it meanwhile. Nothing that a host sends is
    written outside of the directory.
    """

    def __init__(self, directory: Path, hosts: Sequence[Host], run: Path) -> None:
        self._directory = directory
        self._run = run
        self._lines = [_Line(host) for host in hosts]
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(line,), daemon=True) for line in self._lines
        ]

    def __enter__(self) -> Self:
        """Wait until every host has answered or failed, at most 60 s for each.

        Raises MachineError if all have failed.
        """
        (self._directory / "events").mkdir(parents=True, exist_ok=True)
        for thread in self._threads:
            thread.start()
        try:
            for line in self._lines:
                line.heard.wait(_FIRST_S)
            failures = [line.failure for line in self._lines if line.failure is not None]
            if len(failures) == len(self._lines):
                raise failures[0]
        except BaseException:  # Ctrl-C, too: threads and ssh must not outlive the directory
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def troubles(self) -> Iterator[str]:
        """The present problems."""
        for line in self._lines:
            if line.failure is not None:
                yield f"{line.failure}; trying again"
        if not any(line.has_run or line.failure for line in self._lines):
            yield f"no host has a run {self._run.name} yet"

    def _end(self) -> None:
        self._over.set()
        for line in self._lines:
            if line.process is not None:
                line.process.kill()
        for thread in self._threads:
            thread.join()

    def _follow(self, line: _Line) -> None:
        while not self._over.is_set():
            try:
                self._listen(line)
            except MachineError as error:
                line.failure = error
            except OSError as error:
                line.failure = MachineError(
                    f"the records cannot be written here: {error.strerror}",
                    remedy="free disk space",
                )
            line.heard.set()
            self._over.wait(_AGAIN_S)

    def _listen(self, line: _Line) -> None:
        """Read the records of one connection; raises MachineError when it ends."""
        host = line.host
        places = [f"{host.folder}/runs/{self._run.name}", str(self._run)]
        command = [host.python, "-c", READ_PROGRAM, str(len(_PROGRAM)), *places]
        with tempfile.TemporaryFile() as errors:
            process = line.process = ssh.start(host, command, stderr=errors.fileno())
            assert process.stdin is not None
            assert process.stdout is not None
            if self._over.is_set():  # `_end` has not seen this connection
                process.kill()
            # Bytes that could not be written are written again when the pipe is closed.
            with suppress(BrokenPipeError), process:
                with suppress(BrokenPipeError):
                    process.stdin.write(_PROGRAM + json.dumps(self._had()).encode() + b"\n")
                    process.stdin.flush()
                try:
                    ssh.skip_greeting(host, process.stdout)
                    self._take(line, process.stdout)
                except (
                    *(OSError, ValueError, KeyError, TypeError),
                    *(OverflowError, RecursionError),
                ) as error:
                    process.kill()
                    problem = f"its answer is not understood: {error}"
                    raise MachineError(problem, place=host.name, remedy="try again") from error
            raise ssh.failure(host, process.returncode, ssh.read_errors(errors))

    def _had(self) -> dict[str, int]:
        paths = [path for path in self._directory.rglob("*") if path.is_file()]
        return {path.relative_to(self._directory).as_posix(): path.stat().st_size for path in paths}

    def _take(self, line: _Line, stream: IO[bytes]) -> None:
        while header := stream.readline(1 << 16):
            values = json.loads(header)
            size = int(values["bytes"])
            if not 0 <= size <= _MOST_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            content = stream.read(size)
            if len(content) < size:
                return  # cut off; it is requested again
            line.failure = None
            if "file" in values:
                self._write(str(values["file"]), int(values["at"]), bool(values["anew"]), content)
            else:
                line.has_run = bool(values["found"])
                line.heard.set()

    def _write(self, name: str, at: int, anew: bool, content: bytes) -> None:
        """Write a piece of a file at its place: hosts that share a folder send the same piece.

        Raises ValueError if the file is no record of a run, or if the piece leaves a gap.
        """
        if not _NAME.fullmatch(name) or at < 0:
            raise ValueError(f"no record of a run: {name}")
        path = self._directory / name
        with self._lock:
            if not name.startswith("events/"):
                write_whole(path, content)
                return
            with path.open("r+b" if path.exists() else "w+b") as file:
                if anew:
                    file.truncate(0)
                if at > file.seek(0, os.SEEK_END):  # it would leave a gap of any size
                    raise ValueError(f"a piece of {name} begins beyond the end of the file here")
                file.seek(at)
                file.write(content)


@contextmanager
def remote_run(hosts: Hosts, run: Path, *, price: HourlyPrice | None) -> Iterator[LiveRun]:
    """A run on hosts: by its name in their folders, or by its path there.

    price: the price of one machine for an hour; if None, the recorded price, or else the price in
        the settings of the hosts.
    Raises MachineError if all hosts have failed.
    """
    with tempfile.TemporaryDirectory(prefix="dragoman-watch-") as scratch:
        directory = Path(scratch) / run.name
        directory.mkdir(exist_ok=True)
        record_hosts(directory, hosts)
        with (
            Mirror(directory, hosts.host, run) as mirror,
            closing(LiveRun(directory, price=price, troubles=mirror.troubles)) as live,
        ):
            yield live
