"""The user's signals: an end at once, or counted where the hosts are told."""

from __future__ import annotations

import os
import signal

import pytest

from dragoman.cluster.follow import StopRequests
from dragoman.distributed.launch import InterruptedRunError


def test_a_signal_ends_what_is_prepared_and_is_counted_while_hosts_train() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests() as requests:
        with requests.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert requests.count == 2
        with pytest.raises(InterruptedRunError):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
