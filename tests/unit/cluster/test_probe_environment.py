"""The environment in which doctor measures, beside that of training."""

from __future__ import annotations

import pytest

from dragoman.cluster.agent.work import probe_environment
from dragoman.cluster.messages import WorkRequest
from dragoman.distributed.launch import Share
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.telemetry import host


def test_a_probe_has_the_threads_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all cores it would find less work in a weight than each of four ranks has."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host, "cpu_cores", lambda: 8)
    request = WorkRequest(
        job="probe",
        number=1,
        num_hosts=2,
        ranks=4,
        interface="eth0",
        address="10.0.0.2",
        token="abc",
        on_processor=True,
    )
    share = Share(1, 2, "eth0", StoreAddress("10.0.0.1", 1234, "abc"), on_processor=True)
    found = probe_environment(request, share)
    assert found["OMP_NUM_THREADS"] == "2"
    assert (found["RANK"], found["WORLD_SIZE"], found["CUDA_VISIBLE_DEVICES"]) == ("1", "2", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # which training follows, too
    assert probe_environment(request, share)["OMP_NUM_THREADS"] == "3"
