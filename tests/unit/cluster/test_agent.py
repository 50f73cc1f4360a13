"""The agent as a process, spoken to through pipes as ssh would."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dragoman
from dragoman.base.errors import TrainingError
from dragoman.cluster.agent import network, work
from dragoman.cluster.agent.facts import gather
from dragoman.cluster.agent.measuring import Measuring
from dragoman.cluster.agent.work import agent_lock, log_beyond, prefix_digest, probe_environment
from dragoman.cluster.facts import ClusterFacts, HostFacts, InterfaceFacts
from dragoman.cluster.files import code_digest, code_place, read_code
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.messages import FactsRequest, WorkRequest
from dragoman.cluster.team import agent_command, shares
from dragoman.distributed.devices import nccl_version
from dragoman.distributed.launch import Share, launch_log
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.telemetry import host as machine
from processes import wait_until

SOURCE = Path(dragoman.__file__).resolve().parents[1]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "dragoman.cluster.agent", "folder"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def said(agent: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert agent.stdout is not None
    values = json.loads(agent.stdout.readline())
    assert isinstance(values, dict)
    return values


def tell(agent: subprocess.Popen[bytes], line: str) -> None:
    assert agent.stdin is not None
    agent.stdin.write(line.encode() + b"\n")
    agent.stdin.flush()


def asking(gpus: int) -> str:
    """The line of a request to a host of so many GPUs."""
    request = FactsRequest(host="me", interface=None, peers=("127.0.0.1",), gpus=gpus)
    return request.model_dump_json()


def test_tells_facts_and_time_and_ends_with_its_input(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    tell(agent, "")
    tell(agent, asking(gpus=0))
    facts = said(agent)["facts"]
    assert facts["host"] == "me"
    assert facts["interface"]["name"] == "lo"
    assert network.unreachable([("127.0.0.1", facts["port"])]) == []
    assert facts["digests"] == {"code": code_digest(read_code())}
    assert facts["disk_write_bytes_per_s"] > 0
    tell(agent, "time")
    assert said(agent)["time"] == pytest.approx(time.time(), abs=60)
    assert agent.stdin is not None
    agent.stdin.close()
    assert agent.wait(20) == 0
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.system
def test_the_agent_names_nccl_and_the_driver_if_gpus_are_expected(
    agent: subprocess.Popen[bytes],
) -> None:
    tell(agent, asking(gpus=1))
    versions = said(agent)["facts"]["versions"]
    assert {"torch", "python", "nccl", "driver"} <= versions.keys()
    assert versions["nccl"] == nccl_version()


@pytest.mark.system
def test_a_host_without_its_gpus_trains_no_steps_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With GPUs that hang it took longer than the controller waits: it was called unreachable."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    request = FactsRequest(host="me", interface=None, peers=(), gpus=1, measure=True)
    unwanted = mock.Mock(steps=mock.Mock(side_effect=AssertionError("nothing is to be measured")))
    facts = gather(request, unwanted)
    assert (facts.gpus_visible, facts.gpus_usable) == (0, 0)
    assert (facts.step_s, facts.flop_per_s) == (None, None)


@pytest.mark.slow
@pytest.mark.system
def test_doctor_measures_between_the_ranks_of_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Gloo, in two processes; on GPUs the same program measures NCCL."""
    monkeypatch.chdir(tmp_path)
    request = FactsRequest(host="a", interface=None, peers=(), gpus=0, ranks=2, measure=True)
    with closing(Measuring(ranks=2, on_processor=True)) as measuring:
        facts = gather(request, measuring)
    assert facts.step_s is not None
    assert facts.inside_bytes_per_s is not None
    assert 1e6 < facts.inside_bytes_per_s < 1e12


def test_listening_sockets_are_found_by_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = server.getsockname()
        assert where in network.listening(network.descendants(os.getpid()))
        assert network.unreachable([where]) == []
    assert network.unreachable([where]) == [f"127.0.0.1:{where[1]}"]
    assert where not in network.listening([os.getpid()])


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ("1\n2\n", "1\n", [b"2", b"3"]),
        ("1\n2\n", "", [b"1", b"2", b"3"]),
        ("other\n", "1\n", [b"3"]),
        ("", "1\n", [b"3"]),
    ],
    ids=["goes on", "from the start", "of another time", "nothing here"],
)
def test_events_go_on_where_the_user_has_them(
    tmp_path: Path, there: str, here: str, expected: list[bytes]
) -> None:
    path = tmp_path / "events" / "log.jsonl"
    path.parent.mkdir()
    if there:
        path.write_text(there)
    mine = tmp_path / "mine"
    mine.write_text(here)
    with closing(log_beyond(path.parent, len(here), prefix_digest(mine, len(here)))) as log:
        seen = [*log.lines()]
        with path.open("a") as file:
            file.write("3\n4")  # the last line is not whole yet
        assert [*seen, *log.lines()] == expected


def test_only_the_host_of_a_killed_worker_reports_the_signal(
    tmp_path: Path,
) -> None:
    logs = [launch_log(tmp_path, number) for number in range(3)]
    logs[0].parent.mkdir()
    logs[0].write_text("Signal 9 (SIGKILL) received by PID 42\n")
    logs[1].write_text("Connection closed by peer\n")
    error = TrainingError("a worker ended without a word", remedy="look at its log")
    assert [work.weight_of(error, log) for log in logs] == ["signal", "other", "other"]


def test_an_agent_that_was_left_behind_makes_way_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from pathlib import Path\n"
        "from dragoman.cluster.agent.work import agent_lock\n"
        "with agent_lock(Path('.')):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    print(child.pid, flush=True)\n"
        "    child.wait()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as left_behind:
        assert left_behind.stdout is not None
        child = int(left_behind.stdout.readline())
        with agent_lock(tmp_path):
            assert left_behind.wait(10) == -signal.SIGKILL
            wait_until(lambda: state_of(child) in ("Z", ""))


def test_a_host_that_is_stopped_before_training_says_so(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """It waits for the store of a first host that has failed: it must not be taken for lost."""
    address = next((one for one in network.addresses().values() if one[:4] != "127."), None)
    if address is None:
        pytest.skip("this machine has no address but loopback")
    request = FactsRequest(host="me", interface=None, peers=(address,), gpus=0)
    tell(agent, request.model_dump_json())
    said(agent)
    with socket.create_server((address, 0)) as taken:
        nobody = taken.getsockname()[1]
    (tmp_path / "folder" / "run").mkdir()
    share = WorkRequest(
        job="train",
        number=1,
        endpoints=((address, nobody), (address, nobody)),
        ranks=1,
        token="0123456789abcdef",
        run="run",
    )
    tell(agent, share.model_dump_json())
    wait_until(lambda: any((tmp_path / "folder/run/logs").glob("agent-*.lock")))
    time.sleep(1.0)
    tell(agent, "stop")
    assert said(agent)["done"]["exit_code"] == 130


def test_ports_on_loopback_are_not_exposed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)),
        socket.create_server(("0.0.0.0", 0)) as everywhere,
    ):
        assert work._exposed("10.0.0.1") == [f"0.0.0.0:{everywhere.getsockname()[1]}"]


@pytest.mark.parametrize(("slots", "hidden"), [(1, True), (0, False)])
def test_ranks_on_the_processor_do_not_see_gpus_and_share_its_cores(
    slots: int, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine of slots may have GPUs, which are for others. With all cores a probe would find
    less work in a weight than each of four ranks has."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "cpu_cores", lambda: 8)
    host = Host(name="alpha", address="127.0.0.1", slots=4 * slots, gpus=4 * (1 - slots))
    card = InterfaceFacts(name="lo", address="127.0.0.1", mtu_bytes=1500, errors=0)
    facts = HostFacts(
        host=host.name, cpu_cores=1, versions={}, digests={}, interface=card, port=7,
        shared_memory_bytes=0, disk_free_bytes=0,
    )  # fmt: skip
    request = shares(Hosts(host=(host,)), ClusterFacts(hosts=(facts,)), job="probe")["alpha"]
    where = StoreAddress(*request.endpoints[0], request.token)
    share = Share(request.number, 1, "lo", where, on_processor=request.on_processor)
    found = probe_environment(request.ranks, share)
    assert (found.get("CUDA_VISIBLE_DEVICES") == "") == hidden
    assert (found["RANK"], found["WORLD_SIZE"], found["OMP_NUM_THREADS"]) == ("0", "1", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # which training follows, too
    assert probe_environment(request.ranks, share)["OMP_NUM_THREADS"] == "3"


def state_of(pid: int) -> str:
    """The kernel's letter for its state; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


_COUNTING = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("begins", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("commands", "asked"), [(["stop"], 1), (["stop", "stop"], 1), (["stop", "kill"], 2)]
)
def test_workers_that_save_are_not_killed_as_the_controller_is_lost(
    commands: list[str], asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their time to save, and are killed when it is over."""

    def hear() -> Iterator[bytes]:
        for command in commands:
            yield command.encode()
            time.sleep(0.3)  # signals that come at once are one

    def heard() -> int:
        return (tmp_path / "heard").read_text().count("asked")

    monkeypatch.setattr(work, "_SAVE_S", 2.0)
    channel = mock.Mock(hear=hear)
    with (
        (tmp_path / "heard").open("w") as file,
        subprocess.Popen([sys.executable, "-c", _COUNTING], stdout=file) as process,
    ):
        wait_until(lambda: "begins" in (tmp_path / "heard").read_text())
        with work._passing_signals(channel, process.pid):
            time.sleep(1.5)
            in_time = heard()
            wait_until(lambda: heard() > in_time, limit_s=20.0)
        process.kill()
    assert in_time == asked


def test_agents_write_no_bytecode(tmp_path: Path) -> None:
    """A full disk would keep a part of it; the next start would say "marshal data too short"."""
    code = tmp_path / code_place("0123")
    source = Path(dragoman.__file__).parent
    shutil.copytree(source, code / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    host = Host(
        address="10.0.0.1", name="alpha", gpus=1, python=sys.executable, folder=str(tmp_path)
    )
    command = agent_command(host, code="0123")
    environment = {"PATH": os.environ["PATH"]}  # whatever it says of bytecode
    subprocess.run(command, check=True, input=b"", capture_output=True, env=environment)
    assert not [*code.rglob("*.pyc")]
