"""A real server process over a real bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from dragoman.distributed.world import join_world
from dragoman.export.export import Request, export
from small_run import small_run

FAR_NAME = "far.test"
"""This machine for the browser of tests, yet no name of loopback."""


@cache
def served_bundle() -> Path:
    """The small run for CTranslate2, exported once."""
    output = Path(mkdtemp(prefix="dragoman-bundle-")) / "bundle"
    with join_world() as world:
        return export(small_run(), Request(to="ctranslate2", output=output), world).path


@dataclass
class Answer:
    """What came back."""

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
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1000

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
        method: str | None = None,
    ) -> Answer:
        """GET, or POST of JSON or bytes, where no method is named."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} | (headers or {})
        request = urllib.request.Request(self.url + path, data=data, headers=named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return Answer(response.status, response.read(), dict(response.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), dict(error.headers))


@contextmanager
def serving(
    bundle: Path, *options: str, token: str | None = None, port: int = 0
) -> Iterator[Server]:
    """Start it, and stop it in the end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("DRAGOMAN_TOKEN", None)
    if token:
        environment["DRAGOMAN_TOKEN"] = token
    command = [sys.executable, "-m", "dragoman.cli", "serve", str(bundle), "--port", str(port)]
    process = subprocess.Popen(
        [*command, *options],
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
