"""The boards on which ranks write what they do, and read what the others do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE, STORE_VARIABLE, StoreAddress
from dragoman.distributed.standing import Board, Standing, open_board
from dragoman.distributed.store import connect, serve

FIRST = Standing("alpha", 1, 0, "forward")
LATER = Standing("alpha", 2, 7, "sync")
OTHER = Standing("büro", 31, 7, "validating")
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
RANKS = 12
Write = Callable[[str, str], None]
"""Writes a text in the place of a rank, as another program might."""


@pytest.fixture(params=["files", "store"])
def meeting(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Write]:
    """The environment of a process whose ranks meet on one machine, or on several."""
    monkeypatch.delenv(RESTARTS, raising=False)
    monkeypatch.setenv(RENDEZVOUS_VARIABLE, str(tmp_path / "meeting"))
    if request.param == "files":
        monkeypatch.delenv(STORE_VARIABLE, raising=False)

        def write(place: str, text: str) -> None:
            (tmp_path / f"standing-0-{place}").write_text(text)

        yield write
        return
    store = serve("127.0.0.1")
    where = StoreAddress("127.0.0.1", store.port, "token")
    monkeypatch.setenv(STORE_VARIABLE, str(where))
    yield connect(where, prefix="standing-0-").set
    assert [*tmp_path.iterdir()] == [], "several machines have no folder in common"


def _board() -> Board:
    board = open_board(RANKS)
    assert board is not None
    return board


@pytest.mark.usefixtures("meeting")
def test_each_rank_reads_the_last_standing_of_all() -> None:
    one, other = _board(), _board()
    assert other.read() == {}
    one.write(0, FIRST)
    other.write(RANKS - 1, OTHER)
    assert one.read() == {0: FIRST, RANKS - 1: OTHER}
    one.write(0, LATER)
    assert other.read() == {0: LATER, RANKS - 1: OTHER}


def test_malformed_standings_hide_no_others(meeting: Write) -> None:
    board = _board()
    meeting("0", "half a li")
    meeting("of nobody", FIRST.as_text())
    board.write(3, OTHER)
    assert board.read() == {3: OTHER}


@pytest.mark.usefixtures("meeting")
def test_after_a_restart_the_board_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _board()
    before.write(1, FIRST)
    monkeypatch.setenv(RESTARTS, "1")
    after = _board()
    assert after.read() == {}
    after.write(1, LATER)
    assert (before.read(), after.read()) == ({1: FIRST}, {1: LATER})


@pytest.mark.usefixtures("meeting")
def test_a_rank_that_is_alone_has_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_board(1) is None
    for variable in (RENDEZVOUS_VARIABLE, STORE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert open_board(2) is None


GOOD = asdict(OTHER)


@pytest.mark.parametrize(
    "values",
    [
        None,
        3,
        "text",
        [],
        {},
        *({key: GOOD[key] for key in GOOD if key != left_out} for left_out in GOOD),
        GOOD | {"beat": "soon"},
        GOOD | {"step": None},
    ],
)
def test_a_standing_of_another_version_is_not_parsed(values: object) -> None:
    assert Standing.parse(json.dumps(values)) is None


def test_a_standing_survives_its_text() -> None:
    found = Standing.parse(json.dumps(GOOD | {"more": 1}))
    assert found == OTHER == Standing.parse(OTHER.as_text())
