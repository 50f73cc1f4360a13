"""The report of a run under way: written again after news, and served to this machine alone."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.telemetry.events import event_file
from dragoman.watch import web
from dragoman.watch.live import open_run
from processes import wait_until
from recorded_runs import Recorded


def test_a_report_is_written_again_until_the_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_WRITE_EVERY_S", 0.05)
    monkeypatch.setattr("dragoman.reporting.facts._SILENCE_S", 1e12)  # it was recorded long ago
    whole = event_file(Recorded(steps=2000, max_steps=2000).write(tmp_path / "whole") / "events")
    run = Recorded(steps=1000, max_steps=2000, reason=None).write(tmp_path / "run")
    page = tmp_path / "report" / web.PAGE
    with closing(open_run(run)) as live:
        thread = threading.Thread(target=web.follow, args=(live, page.parent))
        thread.start()
        wait_until(lambda: page.exists() and "1,000 of 2,000" in page.read_text(), limit_s=60)
        assert 'http-equiv="refresh"' in page.read_text()
        event_file(run / "events").write_bytes(whole.read_bytes())
        thread.join(60)
    assert not thread.is_alive()
    assert "2,000 of 2,000" in page.read_text()
    assert "refresh" not in page.read_text()


def _age_s(log: Path) -> float:
    """Seconds since the last event of a log."""
    return time.time() - float(json.loads(log.read_text().splitlines()[-1])["time"])


def _moved(log: Path, ahead_s: float) -> None:
    """Give the events of a log later times."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    lines = (json.dumps(event | {"time": event["time"] + ahead_s}) for event in events)
    log.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.system
@pytest.mark.parametrize("stopped", [False, True])
def test_report_follows_a_run_until_it_ends_or_ctrl_c(stopped: bool, tmp_path: Path) -> None:
    whole = event_file(Recorded(steps=2000, max_steps=2000).write(tmp_path / "whole") / "events")
    run = Recorded(steps=1000, max_steps=2000, reason=None).write(tmp_path / "run")
    log, page = event_file(run / "events"), tmp_path / "page" / web.PAGE
    ahead_s = _age_s(log)
    for one in (log, whole):
        _moved(one, ahead_s)
    command = [sys.executable, "-m", "dragoman", "report", str(run), "--follow"]
    command += ["--output", str(page.parent), "--price", "3 USD"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        wait_until(lambda: page.exists() and "1,000 of 2,000" in page.read_text(), limit_s=60)
        assert 'http-equiv="refresh"' in page.read_text()
        if stopped:
            following.send_signal(signal.SIGINT)
        else:
            log.write_bytes(whole.read_bytes())
        said, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert said.startswith(f"{page}  (")
    assert "12. What did it cost? MEASURED" in said
    assert " USD" in said
    assert ("1,000 of 2,000" if stopped else "2,000 of 2,000") in page.read_text()
    assert "refresh" not in page.read_text(), "nobody writes it any more"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    (tmp_path / web.PAGE).write_text("the page")
    with web.page_server(tmp_path, port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _ask(port: int, path: str, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_page_is_served_on_loopback_to_its_own_name(port: int) -> None:
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert _ask(port, "/", host) == (200, "the page")
        assert _ask(port, f"/{web.PAGE}", host) == (200, "the page")
    assert _ask(port, "/", "evil.example")[0] == 421
    assert _ask(port, "/../../etc/passwd", f"localhost:{port}")[0] == 404


def test_a_port_that_is_taken_is_an_error(port: int, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=f"cannot listen on port {port}"):
        web.page_server(tmp_path, port=port)
