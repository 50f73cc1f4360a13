"""The user's signals: an end at once, or counted where they are passed on to the hosts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from dragoman.base.errors import CorpusError, DivergenceError
from dragoman.cluster import follow
from dragoman.cluster.follow import HostFollower, Record, StopRequests
from dragoman.cluster.messages import Answer, Done
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


@pytest.mark.parametrize(
    ("strategy", "killed"),
    [({}, True), ({"strategy": "diloco", "diloco": {"every": 20, "fragments": 1}}, False)],
)
def test_ranks_that_seldom_meet_have_longer_to_save(
    strategy: dict[str, object], killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_SAVE_S", 0.2)
    record = Record(tmp_path / "events", [], _transfer_of_one_host())
    with EventWriter(tmp_path / "there") as events:
        events.write(TRAIN_INTERVAL, step=100)
    record.append(events.path.read_text())
    assert record.step_s == 40.0 / TRAIN_INTERVAL.steps

    def until_done(tick_s: float) -> Iterator[None]:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            yield None
            time.sleep(0.05)

    team = mock.Mock(until_done=until_done)
    votes = DistributedConfig.model_validate(strategy).options.steps_between_votes
    follower = HostFollower(
        team, mock.Mock(count=1), record, interrupted=True, steps_between_votes=votes
    )
    with pytest.raises(InterruptedRunError):
        follower.until_over(tmp_path)
    sent = [call.args[0] for call in team.tell_all.call_args_list]
    assert sent == (["stop", "kill"] if killed else ["stop"])


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
    done = Done(exit_code=1, problem="step 7: it fell", weight="own", kind=kind)
    message = mock.Mock(answer=Answer(done=done), host="alpha")
    team = mock.Mock(until_done=lambda tick_s: iter([message]))
    follower = HostFollower(team, mock.Mock(count=0), Record(tmp_path, [], _transfer_of_one_host()))
    with pytest.raises(raised, match="alpha: step 7: it fell") as found:
        follower.until_over(tmp_path)
    assert found.type is raised


def _transfer_of_one_host() -> mock.Mock:
    """A transfer of the checkpoints of a run whose rank 0 is on the host alpha."""
    host = mock.Mock()
    host.name = "alpha"
    run = mock.Mock(ranks_of=lambda _host: [0])
    run.hosts.host = [host]
    return mock.Mock(run=run)
