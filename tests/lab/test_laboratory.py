"""The laboratory works: names, logins, limits, faults, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dragoman.cluster.hosts import load_hosts
from lab.conftest import OpenLab
from lab.laboratory import BUCKET_BYTES, NETWORK, PORT, LabHost, open_lab

TESTS = Path(__file__).resolve().parents[1]


def test_hosts_have_their_own_names_homes_and_logins(make_lab: OpenLab) -> None:
    lab = make_lab(["alpha", "beta"])
    for host in lab.hosts:
        said = lab.controller.run(["ssh", host.name, "hostname; pwd; echo $HOME"]).stdout.split()
        assert said == [host.name, str(host.home), str(host.home)]
    refused = lab.hosts[0].run(
        ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "beta", "true"],
        check=False,
    )
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_a_host_sees_its_own_processes_and_network_only(make_lab: OpenLab) -> None:
    lab = make_lab(["alpha", "beta"])
    alpha = lab.host("alpha")
    seen = alpha.run(["sh", "-c", "ls -d /proc/[0-9]*"]).stdout.split()
    assert len(seen) < 10
    assert str(os.getpid()) not in {Path(path).name for path in seen}
    listening = [line.split()[3] for line in alpha.run(["ss", "-Hltn"]).stdout.splitlines()]
    assert listening == [f"{alpha.address}:{PORT}"]
    routes = alpha.run(["ip", "route"]).stdout
    assert "default" not in routes
    assert f"{NETWORK}.0/24" in routes


def test_the_hosts_file_of_a_lab_is_read(make_lab: OpenLab, tmp_path: Path) -> None:
    lab = make_lab(["alpha", "beta"])
    hosts = load_hosts(str(lab.write_hosts_file(tmp_path / "hosts.toml", slots=[2, 1])))
    assert hosts.ranks_per_host == (2, 1)
    assert [host.name for host in hosts.host] == ["alpha", "beta"]
    assert [host.address for host in hosts.host] == [host.address for host in lab.hosts]


def test_a_limited_port_carries_its_limit(make_lab: OpenLab) -> None:
    lab = make_lab(["alpha", "beta"], rate="20mbit")
    alpha, beta = lab.hosts
    assert sent_per_second(lab.controller, "alpha", size_bytes=2_000_000) <= 20e6 / 8
    alpha.limit("4mbit")
    assert sent_per_second(lab.controller, "alpha", size_bytes=1_000_000) <= 4e6 / 8
    assert beta.sent_bytes() < 100_000


def test_a_pulled_cable_and_a_dead_host(make_lab: OpenLab) -> None:
    lab = make_lab(["alpha", "beta"])
    alpha, beta = lab.hosts
    login = ["ssh", "-o", "ConnectTimeout=1", "beta", "true"]
    beta.plug(plugged=False)
    assert lab.controller.run(login, check=False).returncode == 255
    beta.plug(plugged=True)
    assert answers(lab.controller, "beta")
    sleeping = alpha.start(["sleep", "1000"])
    alpha.power_off()
    assert sleeping.wait(5) != 0
    assert not answers(lab.controller, "alpha", tries=1)
    assert answers(lab.controller, "beta")


def test_a_failing_test_leaves_nothing(lab_machine: None, tmp_path: Path) -> None:
    pids = []

    def fails() -> None:
        with open_lab(tmp_path / "lab", ["alpha"], rate="1mbit") as lab:
            pids.extend([lab.controller.pid, lab.hosts[0].pid])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_a_killed_test_leaves_nothing(lab_machine: None, tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from lab.laboratory import open_lab
        with open_lab(Path(sys.argv[1]), ["alpha"], rate="1mbit") as lab:
            lab.hosts[0].start(["sleep", "1000"])
            print(lab.controller.pid, lab.hosts[0].pid, flush=True)
            time.sleep(1000)
    """)
    victim = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "lab"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )
    assert victim.stdout is not None
    pids = [int(pid) for pid in victim.stdout.readline().split()]
    assert len(pids) == 2
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    deadline = time.monotonic() + 10
    while not all(is_gone(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(is_gone(pid) for pid in pids)


def answers(controller: LabHost, name: str, *, tries: int = 20) -> bool:
    """Whether ssh lets the controller in; a cable that was just put back needs a moment."""
    login = ["ssh", "-o", "ConnectTimeout=1", name, "true"]
    for _ in range(tries):
        if controller.run(login, check=False).returncode == 0:
            return True
        time.sleep(0.2)
    return False


def sent_per_second(controller: LabHost, name: str, *, size_bytes: int) -> float:
    """Bytes a second that a login's output arrives with, once the port's bucket is empty."""
    started = time.monotonic()
    said = controller.run(["ssh", name, f"head -c {size_bytes} /dev/zero"])
    assert len(said.stdout) == size_bytes
    return (size_bytes - BUCKET_BYTES) / (time.monotonic() - started)


def is_gone(pid: int) -> bool:
    """Whether no process has this number, or only its name on a list of the dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
