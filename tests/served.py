"""A real server process over a real bundle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dragoman.distributed.world import join_world
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.recipe.run_directory import RunDirectory
from kept import kept
from own_folder import own_folder
from small_run import keeping_run, small_run

FAR_NAME = "far.test"
"""This machine for the browser of tests, yet no name of loopback."""


@cache
def served_bundle() -> Path:
    """A copy of the small run for CTranslate2, which is exported once for all processes."""
    return _copied_export("bundle", small_run)


@cache
def keeping_bundle() -> Path:
    """The same of the run that keeps placeholders."""
    return _copied_export("keeping", keeping_run)


def _copied_export(name: str, run: Callable[[], RunDirectory]) -> Path:
    def make(folder: Path) -> None:
        with join_world() as world:
            export(run(), Request(to="ctranslate2", output=folder / name), world)

    made_by = Path(__file__), Path(__file__).with_name("small_run.py")
    with kept(f"exported-{name}", make, *made_by) as whole:
        return Path(shutil.copytree(whole / name, own_folder(f"served-{name}") / name))


def called(folder: Path, source: str, target: str) -> Path:
    """The bundle of the small run under other languages: what is translated how is all the same."""
    bundle = folder / f"{source}-{target}"
    shutil.copytree(served_bundle(), bundle)
    description = bundle / "bundle.json"
    info = json.loads(description.read_bytes())
    languages = {"source_language": source, "target_language": target}
    description.write_text(json.dumps(info | languages | {"name": bundle.name}))
    recipe = bundle / "recipe.toml"
    text = re.sub(
        r'(?m)^source_language = ".*"', f'source_language = "{source}"', recipe.read_text()
    )
    recipe.write_text(re.sub(r'(?m)^target_language = ".*"', f'target_language = "{target}"', text))
    digests = bundle / "digests.json"
    listed = json.loads(digests.read_bytes())
    for file in (description, recipe):
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        listed[file.name] = {"sha256": sha256, "bytes": file.stat().st_size}
    digests.write_text(json.dumps(listed))
    return bundle


@dataclass
class Answer:
    """The answer of the server."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """A process that listens."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def memory_mb(self) -> float:
        """Its resident memory."""
        return self._memory_mb("VmRSS:")

    @property
    def peak_memory_mb(self) -> float:
        """The most that it ever had."""
        return self._memory_mb("VmHWM:")

    def _memory_mb(self, what: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(what)[1].split()[0]) / 1000

    def connect(self, source: str = "127.0.0.1", *, read_bytes: int | None = None) -> socket.socket:
        """A connection from this address; read_bytes: room for what the client has not read."""
        connection = socket.socket()
        if read_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        connection.settimeout(60)
        connection.bind((source, 0))
        connection.connect(("127.0.0.1", self.port))
        return connection

    def exchange(self, request: bytes, *, source: str = "127.0.0.1") -> bytes:
        """All that is answered to these bytes until the server closes."""
        answer = b""
        with self.connect(source) as connection:
            try:
                connection.sendall(request)
                while part := connection.recv(65_536):
                    answer += part
            except ConnectionError:  # closed while it still had something to read
                pass
        return answer

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
        method: str | None = None,
    ) -> Answer:
        """Send a request; without a named method, GET, or POST if there is a body."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(self.url + path, data=data, headers=named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return Answer(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), dict(error.headers))


def post(
    path: str, body: bytes, content_type: str = "application/json", *, close: bool = False
) -> bytes:
    """A request as bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    head += f"Content-Length: {len(body)}\r\n" + "Connection: close\r\n" * close
    return head.encode("latin-1") + b"\r\n" + body


class HealthWatch:
    """Asks for /health on new connections as long as it is entered."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.spent_s: list[float] = []
        self.refused = 0

    @property
    def worst_s(self) -> float:
        """The longest that an answer took."""
        return max(self.spent_s)

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            started = time.monotonic()
            try:
                self.refused += self._server.ask("/health").status != 200
            except OSError:
                self.refused += 1
            self.spent_s.append(time.monotonic() - started)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def serving(
    bundle: Path,
    *options: str,
    token: str | None = None,
    port: int = 0,
    command: Sequence[str] = ("-m", "dragoman", "serve"),
) -> Iterator[Server]:
    """Start it, and stop it in the end. options: further bundles, or what the command takes.
    command: what Python is to run."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("DRAGOMAN_TOKEN", None)
    if token:
        environment["DRAGOMAN_TOKEN"] = token
    process = subprocess.Popen(
        [sys.executable, *command, str(bundle), *options, "--port", str(port)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("serving on "), process.communicate()[1]
        yield Server(process, line.removeprefix("serving on ").strip())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
