"""Hosts that train together; the user's signals, which end the work at once or are passed on."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dragoman.base.errors import CorpusError, DivergenceError, MachineError
from dragoman.cluster import members as members_module
from dragoman.cluster.joins import Message
from dragoman.cluster.lines import Answer, Loss
from dragoman.cluster.members import Members, Patience, Record, StopRequests, WorkerLostError
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.launch import InterruptedRunError, WorkerError
from dragoman.telemetry.events import EventWriter
from example_events import TRAIN_INTERVAL


def test_a_signal_ends_preparation_and_is_counted_while_hosts_train() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests() as requests:
        with requests.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert requests.count == 2
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


class ScriptedJoins:
    """Hosts that say these lines, one after the other, and then end; what they are told is kept."""

    def __init__(self, script: Sequence[tuple[str, Answer]], *names: str, quiet_s: float = 0.0):
        self.of = {name: mock.Mock() for name in names}
        self.told: list[str] = []
        for name, join in self.of.items():
            join.tell = lambda command, name=name: self.told.append(f"{name}: {command}")
            join.failure.return_value = MachineError("the connection was lost", place=name)
        self._script = [Message(name, answer) for name, answer in script]
        self._quiet_until = time.monotonic() + quiet_s

    def tell_all(self, command: str) -> None:
        for join in self.of.values():
            join.tell(command)

    def next(self, timeout_s: float) -> Message | None:
        if time.monotonic() < self._quiet_until:
            time.sleep(0.05)
            return None
        return self._script.pop(0) if self._script else Message([*self.of][-1], None)


def members(joins: ScriptedJoins, tmp_path: Path, **more: Any) -> Members:
    usual: dict[str, Any] = {
        "joins": joins,
        "first": "alpha",
        "requests": mock.Mock(count=0),
        "record": Record(tmp_path / "events", [], _transfer_of_one_host()),
        "patience": Patience(),
        "begin": mock.Mock(),
        "lost": mock.Mock(),
        "returned": queue.Queue(),
        "alert": mock.Mock(),
    }
    return Members(**usual | more)


@pytest.mark.parametrize(
    ("strategy", "killed"),
    [({}, True), ({"strategy": "diloco", "diloco": {"every": 20, "fragments": 1}}, False)],
)
def test_ranks_that_seldom_meet_have_longer_to_save(
    strategy: dict[str, object], killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members_module, "_SAVE_S", 0.2)
    record = Record(tmp_path / "events", [], _transfer_of_one_host())
    with EventWriter(tmp_path / "there") as events:
        events.write(TRAIN_INTERVAL, step=100)
    record.append(events.path.read_text())
    assert record.step_s == 40.0 / TRAIN_INTERVAL.steps
    joins = ScriptedJoins([("alpha", Answer(done=130))], "alpha", quiet_s=1.5)
    votes = DistributedConfig.model_validate(strategy).options.steps_between_votes
    asked = mock.Mock(count=1)
    with pytest.raises(InterruptedRunError, match="everything is saved"):
        members(
            joins, tmp_path, record=record, requests=asked, steps_between_votes=votes
        ).until_over(tmp_path)
    assert joins.told == ["alpha: stop", *(["alpha: kill"] if killed else [])]


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("DivergenceError", DivergenceError),
        ("CorpusError", CorpusError),
        # Another attempt would fail in the same way, so it is not taken for a lost host.
        ("MachineError", WorkerError),
        ("", WorkerError),
    ],
)
def test_the_error_of_a_worker_on_a_host_is_of_the_class_that_callers_catch(
    kind: str, raised: type[Exception], tmp_path: Path
) -> None:
    loss = Loss(problem="step 7: it fell", weight="own", kind=kind)
    joins = ScriptedJoins([("alpha", Answer(done=1, loss=loss))], "alpha")
    with pytest.raises(raised, match="alpha: step 7: it fell") as found:
        members(joins, tmp_path).until_over(tmp_path)
    assert found.type is raised


def test_the_others_meet_anew_without_a_host_that_is_lost(tmp_path: Path) -> None:
    joins = ScriptedJoins([], "alpha", "beta", "gamma")
    lost, alert = mock.Mock(), mock.Mock()
    follower = members(joins, tmp_path, lost=lost, alert=alert)
    token = follower.token
    with pytest.raises(WorkerLostError, match="lost"):
        follower.until_over(tmp_path)  # gamma is lost, then beta, then alpha, which is the first
    assert [call.args[0] for call in lost.call_args_list] == ["gamma", "beta"]
    agains = [line for line in joins.told if ": again" in line]
    assert [line.split()[0] for line in agains] == ["alpha:", "beta:", "alpha:"]
    assert [line.split()[3] for line in agains] == ["2", "2", "1"]
    assert follower.token != token


def test_the_loss_that_came_first_is_named_not_its_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alpha's workers end because beta's was killed; alpha says so before beta does."""
    monkeypatch.setattr(members_module, "_OTHER_LOSSES_S", 0.3)
    said = [
        ("alpha", Answer(loss=Loss(problem="a worker process ended"))),
        (
            "beta",
            Answer(loss=Loss(problem="a worker was killed", weight="signal")),
        ),
        ("alpha", Answer()),
        ("beta", Answer(done=0)),
        ("alpha", Answer(done=0)),
    ]
    joins = ScriptedJoins(said, "alpha", "beta")
    usual = joins.next

    def slowly(timeout_s: float) -> Message | None:
        time.sleep(0.2)
        return usual(timeout_s)

    alert = mock.Mock()
    monkeypatch.setattr(joins, "next", slowly)
    members(joins, tmp_path, alert=alert).until_over(tmp_path)
    alert.assert_called_once_with("error", "beta: a worker was killed")


def test_training_that_breaks_off_again_and_again_without_a_new_checkpoint_ends() -> None:
    patience = Patience()
    assert [patience.lose("step-0000020") for _ in range(3)] == [True] * 3
    assert patience.lose("step-0000040")
    assert [patience.lose("step-0000040") for _ in range(3)] == [True, True, False]
    assert patience.is_over


def _transfer_of_one_host() -> mock.Mock:
    """A transfer of the checkpoints of a run whose rank 0 is on the host alpha."""
    host = mock.Mock()
    host.name = "alpha"
    run = mock.Mock(ranks_of=lambda _host: [0])
    run.hosts.host = [host]
    return mock.Mock(run=run, newest="")
