"""Ranks write what they do, and read what the others do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.distributed.heartbeat import Heartbeat, Heartbeats, open_heartbeats
from dragoman.distributed.rendezvous import (
    RENDEZVOUS_VARIABLE,
    ROUND_VARIABLE,
    STORE_VARIABLE,
    StoreAddress,
)
from dragoman.distributed.store import serve

FIRST = Heartbeat("alpha", 1, 0, "forward")
LATER = Heartbeat("alpha", 2, 7, "sync")
OTHER = Heartbeat("büro", 31, 7, "validating")
RESTARTS = ROUND_VARIABLE
RANKS = 12


@pytest.fixture(params=["files", "store"])
def meeting(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The environment of a process whose ranks meet on one machine, or on several."""
    monkeypatch.delenv(RESTARTS, raising=False)
    monkeypatch.setenv(RENDEZVOUS_VARIABLE, str(tmp_path / "meeting"))
    if request.param == "files":
        monkeypatch.delenv(STORE_VARIABLE, raising=False)
        yield
        return
    store = serve("127.0.0.1")
    where = StoreAddress("127.0.0.1", store.port, "token")
    monkeypatch.setenv(STORE_VARIABLE, str(where))
    yield
    assert [*tmp_path.iterdir()] == [], "several machines have no folder in common"


def _heartbeats() -> Heartbeats:
    heartbeats = open_heartbeats(RANKS)
    assert heartbeats is not None
    return heartbeats


@pytest.mark.usefixtures("meeting")
def test_each_rank_reads_the_last_heartbeat_of_all() -> None:
    one, other = _heartbeats(), _heartbeats()
    assert other.read() == {}
    one.write(0, FIRST)
    other.write(RANKS - 1, OTHER)
    assert one.read() == {0: FIRST, RANKS - 1: OTHER}
    one.write(0, LATER)
    assert other.read() == {0: LATER, RANKS - 1: OTHER}


@pytest.mark.usefixtures("meeting")
def test_after_a_restart_there_are_no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _heartbeats()
    before.write(1, FIRST)
    monkeypatch.setenv(RESTARTS, "1")
    after = _heartbeats()
    assert after.read() == {}
    after.write(1, LATER)
    assert (before.read(), after.read()) == ({1: FIRST}, {1: LATER})


@pytest.mark.usefixtures("meeting")
def test_a_rank_that_is_alone_has_no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_heartbeats(1) is None
    for variable in (RENDEZVOUS_VARIABLE, STORE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert open_heartbeats(2) is None
