"""Samples show the real load of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dragoman.base.errors import MachineError
from dragoman.telemetry import host, sampler
from dragoman.telemetry.events import Event, EventWriter, HostSampled, NetworkSampled, read_events
from dragoman.telemetry.host import collective_interface, nominal_bits_per_s
from dragoman.telemetry.sampler import (
    HostSampler,
    MachineProbe,
    NetworkProbe,
    host_sampler,
)
from example_events import RUN_STARTED
from processes import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own counters")
MEGABYTE = 10**6


def send_to_myself(num_bytes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def swallow() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(MEGABYTE):
                    pass

        reader = threading.Thread(target=swallow)
        reader.start()
        with socket.create_connection(server.getsockname()) as connection:
            connection.sendall(bytes(num_bytes))
        reader.join()


SENT = Path("/sys/class/net/lo/statistics/tx_bytes")


def test_bytes_that_were_sent_are_counted() -> None:
    before = int(SENT.read_text())
    probe = NetworkProbe("lo")
    probe.look()
    send_to_myself(50 * MEGABYTE)
    probe.look()
    (first,) = probe.sample(1.0)
    (second,) = probe.sample(1.0)
    after = int(SENT.read_text())
    assert isinstance(first, NetworkSampled)
    assert isinstance(second, NetworkSampled)
    assert first.sent_bytes > 50 * MEGABYTE
    assert first.sent_bytes + second.sent_bytes <= after - before  # other tests use loopback, too
    # That is what loopback is; the two are read one after the other, and other tests use it, too.
    assert first.received_bytes == pytest.approx(first.sent_bytes, rel=0.05)
    assert first.most_sent_bytes_per_s is not None
    assert first.most_sent_bytes_per_s > 50 * MEGABYTE
    assert first.sent_packets > 500
    assert (first.errors, first.carrier_changes) == (0, 0)
    assert first.nominal_bits_per_s is None
    assert second.sent_bytes < first.sent_bytes
    assert second.most_sent_bytes_per_s is None


def test_an_interface_that_is_not_there_tells_nothing() -> None:
    probe = NetworkProbe("dragon0")
    probe.look()
    assert list(probe.sample(1.0)) == []
    assert nominal_bits_per_s("dragon0") is None


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"GLOO_SOCKET_IFNAME": "lo"}, "lo"),
        ({"NCCL_SOCKET_IFNAME": "=lo,eth0"}, "lo"),
        ({"GLOO_SOCKET_IFNAME": "dragon0"}, None),
        ({}, None),
    ],
)
def test_the_interface_is_that_of_the_collectives(
    variables: dict[str, str], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert collective_interface() == name


def test_processor_memory_disk_and_queue(tmp_path: Path) -> None:
    queue = [3, 4, 8]
    probe = MachineProbe(disk=tmp_path, queued=lambda: queue.pop())
    until = time.process_time() + 0.3
    for _ in range(3):
        probe.look()
    while time.process_time() < until:
        pass
    (sample,) = probe.sample(0.3)
    assert isinstance(sample, HostSampled)
    assert 0.1 < sample.cpu_share <= 1
    assert sample.queued_batches == 5
    assert 0 < sample.memory_used_bytes < sample.memory_limit_bytes
    assert sample.disk_free_bytes > 0


def _write_ticks(path: Path, busy: list[int], *, times: int) -> None:
    """The kernel's counters of these processors, of which each had 1,000 ticks so many times."""
    ticks = ((n, one * times, (1000 - one) * times) for n, one in enumerate(busy))
    lines = [f"cpu{n} {used} 0 0 {idle} 0 0 0 0 0 0" for n, used, idle in ticks]
    path.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "ctxt 1", ""]))


def test_only_processors_that_the_run_may_use_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with taskset or in a cpuset: four of 64, and the run keeps these busy."""
    counters = tmp_path / "stat"
    busy = [950] * 4 + [20] * 60
    monkeypatch.setattr(sampler, "_STATISTICS", counters)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: {0, 1, 2, 3})
    _write_ticks(counters, busy, times=1)
    probe = MachineProbe(disk=tmp_path)
    _write_ticks(counters, busy, times=2)
    (sample,) = probe.sample(10.0)
    assert isinstance(sample, HostSampled)
    assert sample.cpu_share == 0.95


def test_a_limit_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with docker run --cpus: all of 1.5 processors is all."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 7000000\nuser_usec 1\n")
    monkeypatch.setattr(host, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: set(range(64)))
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    probe = MachineProbe(disk=tmp_path)
    clock[0] += 10
    (tmp_path / "cpu.stat").write_text("usage_usec 21250000\nuser_usec 1\n")
    (sample,) = probe.sample(10.0)
    assert isinstance(sample, HostSampled)
    assert sample.cpu_share == 0.95


def _count_energy(zones: Path, *counts_uj: int) -> None:
    """Counters of packages as Linux has them, and one of a part of a package."""
    for number, count in enumerate(counts_uj):
        for zone, name in (
            (f"intel-rapl:{number}", f"package-{number}"),
            (f"intel-rapl:{number}:0", "core"),
        ):
            (zones / zone).mkdir(exist_ok=True)
            (zones / zone / "name").write_text(f"{name}\n")
            (zones / zone / "energy_uj").write_text(f"{count}\n")
            (zones / zone / "max_energy_range_uj").write_text("262143328850\n")


def test_the_power_of_processors_is_that_of_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "POWER_ZONES", tmp_path)
    _count_energy(tmp_path, 262_143_000_000, 5_000_000)
    probe = MachineProbe(disk=tmp_path)
    _count_energy(tmp_path, 671_151, 25_000_000)  # the first began again at 0: 1 J
    probe.look()
    _count_energy(tmp_path, 10_671_151, 34_000_000)
    probe.look()
    (sample,) = probe.sample(4.0)
    assert isinstance(sample, HostSampled)
    assert sample.processor_power_w == (1 + 20 + 10 + 9) / 4
    (later,) = probe.sample(1.0)
    assert isinstance(later, HostSampled)
    assert later.processor_power_w == 0.0


@pytest.mark.parametrize("hidden", [True, False])
def test_a_machine_that_hides_its_energy_or_has_no_counters_tells_nothing(
    hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux lets only root read them; a folder in their place cannot be read by root either."""
    monkeypatch.setattr(host, "POWER_ZONES", tmp_path)
    if hidden:
        _count_energy(tmp_path, 1)
        (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
        (tmp_path / "intel-rapl:0" / "energy_uj").mkdir()
    probe = MachineProbe(disk=tmp_path)
    probe.look()
    (sample,) = probe.sample(1.0)
    assert isinstance(sample, HostSampled)
    assert sample.processor_power_w is None


@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_that_of_the_container_when_it_has_the_limit(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory" if version == 1 else tmp_path
    folder.mkdir(exist_ok=True)
    limit, used, copies = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    (folder / limit).write_text("1000000\n")
    (folder / used).write_text("600000\n")
    (folder / "memory.stat").write_text(f"anon 500000\n{copies} 100000\nactive_file 7\n")
    monkeypatch.setattr(host, "_CONTROL_GROUPS", tmp_path)
    assert _memory(tmp_path) == (500_000, 1_000_000)
    # Without a limit of its own both are the machine's.
    (folder / limit).write_text("max\n" if version == 2 else "9223372036854771712\n")
    used_bytes, limit_bytes = _memory(tmp_path)
    assert 1_000_000 < used_bytes < limit_bytes


def _memory(disk: Path) -> tuple[int, int]:
    probe = MachineProbe(disk=disk)
    probe.look()
    (sample,) = probe.sample(1.0)
    assert isinstance(sample, HostSampled)
    return sample.memory_used_bytes, sample.memory_limit_bytes


def test_the_share_of_others_leaves_out_all_ranks(tmp_path: Path) -> None:
    busy = "import time; print(flush=True)\nwhile time.process_time() < 9: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        knowing = MachineProbe(disk=tmp_path, pids=[os.getpid(), rank.pid])
        deaf = MachineProbe(disk=tmp_path)
        time.sleep(1.0)
        assert _others_cpu_share(knowing) + 0.05 / (os.cpu_count() or 1) < _others_cpu_share(deaf)
        rank.kill()


def _others_cpu_share(probe: MachineProbe) -> float:
    (sample,) = probe.sample(1.0)
    assert isinstance(sample, HostSampled)
    assert sample.others_cpu_share is not None
    assert sample.others_cpu_share <= sample.cpu_share
    return sample.others_cpu_share


def test_the_share_of_others_is_unknown_once_a_rank_has_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    (sample,) = MachineProbe(disk=tmp_path, pids=[os.getpid(), ended.pid]).sample(1.0)
    assert isinstance(sample, HostSampled)
    assert sample.others_cpu_share is None


def test_a_loader_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    probe = MachineProbe(disk=tmp_path)
    probe.look()
    (sample,) = probe.sample(1.0)
    assert isinstance(sample, HostSampled)
    assert sample.queued_batches is None


def _sampled(directory: Path, kind: str) -> list[Event]:
    return [one for one in read_events(directory / "log.jsonl") if one.kind == kind]


def test_a_thread_samples_for_as_long_as_the_block_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "LOOK_EVERY_S", 0.05)
    with EventWriter(tmp_path) as events:
        sampling = host_sampler(events, disk=tmp_path, queued=lambda: 7, interface="lo", num_gpus=0)
        with sampling:
            while len(_sampled(tmp_path, HostSampled.kind)) < 3:
                time.sleep(0.02)
        before = len(_sampled(tmp_path, HostSampled.kind))
        assert not any(thread.name == "sample-host" for thread in threading.enumerate())
        time.sleep(0.2)
    hosts, networks = (_sampled(tmp_path, kind.kind) for kind in (HostSampled, NetworkSampled))
    assert len(hosts) == before == len(networks)
    assert {one.payload["queued_batches"] for one in hosts} == {7.0}


def test_after_a_while_ten_looks_are_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(sampler, "_FIRST_MINUTE_S", 0.0)
    monkeypatch.setattr(sampler, "_SAMPLE_EVERY_S", 0.2)
    looks: list[float] = []

    class Clock:
        names: ClassVar[str] = "clocks"

        def look(self) -> None:
            looks.append(time.monotonic())

        def sample(self, seconds_s: float) -> Any:
            assert seconds_s > 0.15
            counts.append(len(looks))
            return iter(())

    counts: list[int] = []
    with EventWriter(tmp_path) as events, HostSampler([Clock()], events):
        while len(counts) < 5:
            time.sleep(0.02)
    # A busy machine leaves out looks, but not most looks of every interval.
    assert max(two - one for one, two in pairwise(counts)) >= 4


def test_a_month_is_not_sampled_every_ten_seconds() -> None:
    assert sampler.sample_every_s(30) == 1
    assert sampler.sample_every_s(3600) == sampler.sample_every_s(5 * 3600) == 10
    age_s, samples = 0.0, 0
    while age_s < 30 * 24 * 3600:
        age_s += sampler.sample_every_s(age_s)
        samples += 1
    assert samples < 2000 * 8


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_sampling_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "LOOK_EVERY_S", 0.01)
    events = EventWriter(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, events._file.fileno())
    os.close(full)
    with HostSampler([MachineProbe(disk=tmp_path)], events):
        wait_until(lambda: all(one.name != "sample-host" for one in threading.enumerate()))
    with pytest.raises(MachineError):  # the training meets it itself
        events.write(RUN_STARTED)


def test_a_probe_that_fails_is_given_up_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sampler, "LOOK_EVERY_S", 0.01)
    run = tmp_path / "run"
    run.mkdir()
    probe = MachineProbe(disk=run)
    with EventWriter(tmp_path / "events") as events:
        with HostSampler([probe, NetworkProbe("lo")], events):
            run.rmdir()
            while not _sampled(events.path.parent, "alert"):
                time.sleep(0.01)
            known = len(_sampled(events.path.parent, NetworkSampled.kind))
            while len(_sampled(events.path.parent, NetworkSampled.kind)) < known + 3:
                time.sleep(0.01)
        (alert,) = _sampled(events.path.parent, "alert")
    assert alert.payload["cause"].startswith("processor, memory and disk of ")
    assert f"of {socket.gethostname()} are not sampled any more" in alert.payload["cause"]
    assert "No such file or directory" in alert.payload["cause"]


def test_a_gpu_that_cannot_be_sampled_is_said_so(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:
        host_sampler(events, disk=tmp_path, queued=lambda: 0, interface=None, num_gpus=1)
    (alert,) = _sampled(tmp_path, "alert")
    assert alert.payload["severity"] == "info"
    assert alert.payload["cause"].startswith(f"GPUs of {socket.gethostname()} are not sampled: ")
    assert alert.payload["remedy"]


def test_a_host_that_hides_its_counters_trains_without_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_STATISTICS", tmp_path / "away")
    monkeypatch.setattr(sampler, "container_processors", lambda: None)
    with (
        EventWriter(tmp_path) as events,
        host_sampler(events, disk=tmp_path, queued=lambda: 0, interface=None, num_gpus=0),
    ):
        pass
    (alert,) = read_events(tmp_path / "log.jsonl")
    assert alert.payload["severity"] == "info"
    assert f"memory and disk of {socket.gethostname()} are not sampled" in alert.payload["cause"]
    assert str(tmp_path / "away") in alert.payload["cause"]


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as events:

        def write_often() -> None:
            for _ in range(200):
                events.write(payload)

        probe = MachineProbe(disk=tmp_path)
        probe.look()
        (payload,) = probe.sample(1.0)
        threads = [threading.Thread(target=write_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    damaged: list[int] = []
    found = list(read_events(tmp_path / "log.jsonl", on_damaged=damaged.append))
    assert (len(found), damaged) == (800, [])
