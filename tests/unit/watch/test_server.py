"""The page over real HTTP, and in a real browser if there is one."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.watch.live import Now, open_run
from dragoman.watch.server import WatchServer
from processes import wait_until
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


def test_the_live_part_comes_alone(server: WatchServer) -> None:
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


def _raw(server: WatchServer, head: str) -> int:
    """The status of a request of which every header is given."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        return int(connection.recv(1000).split()[1])


def test_pages_of_other_sites_are_refused(server: WatchServer) -> None:
    own = server.address.rstrip("/")
    assert _get(server, "/live", Origin=own)[0] == 200
    assert _get(server, "/live", **{"Sec-Fetch-Site": "same-origin"})[0] == 200
    for path in ("/", "/live"):
        for origin in ("https://elsewhere.example", "null", "", own + "0", "http://127.0.0.1"):
            assert _get(server, path, Origin=origin)[0] == 403
        for site in ("cross-site", "same-site"):
            assert _get(server, path, **{"Sec-Fetch-Site": site})[0] == 403
    # Somebody follows a link to the page; what it shows cannot be put into a frame.
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    status, _, policy = _get(server, "/", **link)
    assert status == 200
    assert "frame-ancestors 'none'" in policy
    assert _get(server, "/live", **link)[0] == 403


def test_a_request_names_one_origin(server: WatchServer) -> None:
    own = server.address.rstrip("/")
    head = f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}"
    assert _raw(server, f"{head}\r\nOrigin: {own}") == 200
    for second in (own, "https://elsewhere.example"):
        for one, other in ((own, second), (second, own)):
            assert _raw(server, f"{head}\r\nOrigin: {one}\r\nOrigin: {other}") == 403
    site = "\r\nSec-Fetch-Site: "
    assert _raw(server, f"{head}{site}same-origin") == 200
    assert _raw(server, f"{head}{site}same-origin{site}cross-site") == 403


def test_a_request_names_one_host(server: WatchServer) -> None:
    own = f"127.0.0.1:{server.server_port}"
    assert _raw(server, f"GET /live HTTP/1.1\r\nHost: {own}") == 200
    for second in (own, "elsewhere.example"):
        for hosts in ((own, second), (second, own)):
            two = "".join(f"\r\nHost: {host}" for host in hosts)
            assert _raw(server, f"GET /live HTTP/1.1{two}") == 421
    for version in ("1.0", "1.1"):
        assert _raw(server, f"GET /live HTTP/{version}") == 421


def test_no_other_spelling_of_this_machine_is_answered(server: WatchServer) -> None:
    port = server.server_port
    for name in ("LOCALHOST:{}", "localhost.:{}", "127.0.0.1.:{}", "127.1:{}", "[::1]:{}",
                 "0.0.0.0:{}", "127.0.0.1:0{}", "evil@127.0.0.1:{}",
                 "127.0.0.1:{}, evil"):  # fmt: skip
        assert _raw(server, f"GET /live HTTP/1.1\r\nHost: {name.format(port)}") == 421
    own = f"127.0.0.1:{port}"
    assert _raw(server, f"GET /live HTTP/1.1\r\nHost: evil\r\n {own}") == 421
    for address in ("http://evil.example/live", f"http://{own}/live"):
        assert _raw(server, f"GET {address} HTTP/1.1\r\nHost: {own}") == 404


def test_wrong_methods_headers_and_paths_are_refused(server: WatchServer) -> None:
    own = f"\r\nHost: 127.0.0.1:{server.server_port}"
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "<script>"):
        assert _raw(server, f"{method} / HTTP/1.1{own}") == 501
    assert _raw(server, f"GET / HTTP/1.1{own}" + "\r\nX: a" * 200) == 431
    assert _raw(server, f"GET /%2e%2e/etc/passwd HTTP/1.1{own}") == 404


def test_connections_are_few_and_short(
    server: WatchServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dragoman.watch.server._CONNECTION_S", 3.0)
    before = threading.active_count()
    with ExitStack() as stack:
        begun = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
            )
            for _ in range(100)
        ]
        for connection in begun[:40]:
            connection.sendall(b"GET /live HTTP/1.1\r\nX: ")
        wait_until(lambda: threading.active_count() > before + 50)
        assert threading.active_count() <= before + 64
        assert begun[99].recv(100) == b"", "closed at once"
        assert begun[0].recv(100) == begun[63].recv(100) == b"", "closed when its time is over"
        wait_until(lambda: threading.active_count() == before)
    assert _get(server, "/live")[0] == 200
    assert capfd.readouterr().err == ""


def test_clients_that_do_not_read_are_cut_off(
    server: WatchServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dragoman.watch.server._CONNECTION_S", 1.0)
    monkeypatch.setattr("dragoman.watch.server.live", lambda _: "a" * 30_000_000)
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(5):
            deaf = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port)))
            deaf.sendall(f"GET /live HTTP/1.1\r\nHost: {server.address[7:-1]}\r\n\r\n".encode())
        wait_until(lambda: threading.active_count() > before)
        wait_until(lambda: threading.active_count() == before)
    assert capfd.readouterr().err == ""


def test_names_with_markup_are_shown_as_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>'\"&\x1b]0;owned\x07"
    directory = SHORT.write(tmp_path / "run")
    for path in (directory / "events").iterdir():
        text = path.read_text("utf-8")
        for name in ("demo", "host-a", "host-b"):
            text = text.replace(json.dumps(name), json.dumps(evil))
        assert json.dumps(evil) in text
        path.write_text(text, "utf-8")
    with _served(WatchServer(open_run(directory), port=0)) as server:
        for path_ in ("/", "/live"):
            text = _get(server, path_)[1]
            assert "&lt;img" in text
            assert "<img" not in text
            assert "onerror=alert(1)>'" not in text


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


def test_a_browser_shows_new_steps_without_being_asked(tmp_path: Path) -> None:
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
