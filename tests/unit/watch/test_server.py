"""The page over real HTTP, and in a real browser where there is one."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.errors import MachineError
from dragoman.watch.live import Now, open_run
from dragoman.watch.server import WatchServer
from recorded_runs import Recorded

SHORT = Recorded(steps=1000, max_steps=4000, reason=None)


@contextmanager
def _served(server: WatchServer) -> Iterator[WatchServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    with _served(WatchServer(open_run(SHORT.write(tmp_path / "run")), port=0)) as server:
        yield server


def _get(server: WatchServer, path: str, **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.getheader("Content-Security-Policy") or ""


def test_the_page_needs_nothing_from_elsewhere(server: WatchServer) -> None:
    status, text, policy = _get(server, "/")
    assert status == 200
    assert "default-src 'none'" in policy
    assert "1,000 of 4,000 steps" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text


def test_what_changes_comes_alone(server: WatchServer) -> None:
    status, text, _ = _get(server, "/live")
    assert status == 200
    assert text.startswith("<header")
    assert "<script" not in text


def test_only_this_machine_is_answered(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert _get(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
    for name in ("evil.example", f"evil.example:{server.server_port}", "", "127.0.0.1:1"):
        assert _get(server, "/live", Host=name)[0] == 421
    assert _get(server, "/../etc/passwd")[0] == 404


def test_a_port_that_is_taken_is_an_error(server: WatchServer, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot listen on port"):
        WatchServer(open_run(tmp_path), port=server.server_port)


def test_a_run_that_has_not_started_has_a_page(tmp_path: Path) -> None:
    with _served(WatchServer(open_run(tmp_path), port=0)) as server:
        assert "not started" in _get(server, "/")[1]


class _GoesOn(WatchServer):
    """The run makes its next steps after the page was first asked for."""

    rest: list[tuple[Path, bytes]]
    asked = 0

    def now(self) -> Now:
        self.asked += 1
        if self.asked == 2:
            for path, lines in self.rest:
                with path.open("ab") as file:
                    file.write(lines)
        return super().now()


def test_a_browser_shows_what_happens_without_being_asked(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium")
    directory = SHORT.write(tmp_path / "run")
    rest = []
    for path in sorted((directory / "events").iterdir()):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:5]))
        rest.append((path, b"".join(lines[5:])))
    server = _GoesOn(open_run(directory), port=0)
    server.rest = rest
    with _served(server):
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        place = [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=9000"]
        done = subprocess.run(
            [*command, *place, server.address], capture_output=True, text=True, timeout=120
        )
    assert server.asked >= 2
    assert "1,000 of 4,000 steps" in done.stdout
    assert "<title>25% demo</title>" in done.stdout
    assert 'id="lost" hidden' in done.stdout
