"""`join_host` as a process, spoken to through pipes as ssh would."""

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
from dragoman.base.process import descendants
from dragoman.cluster import join_host, network
from dragoman.cluster.files import code_digest, code_place, read_code
from dragoman.cluster.host_facts import gather
from dragoman.cluster.hosts import Host
from dragoman.cluster.join_host import join_lock, log_beyond, prefix_digest, probe_environment
from dragoman.cluster.joins import join_command
from dragoman.cluster.lines import FactsRequest, TrainRequest
from dragoman.cluster.measuring import Measuring
from dragoman.distributed.devices import nccl_version
from dragoman.distributed.launch import Share
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.telemetry import host as machine
from processes import wait_until

SOURCE = Path(dragoman.__file__).resolve().parents[1]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "dragoman.cluster.join_host", "folder"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def said(joined: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert joined.stdout is not None
    values = json.loads(joined.stdout.readline())
    assert isinstance(values, dict)
    return values


def tell(joined: subprocess.Popen[bytes], line: str) -> None:
    assert joined.stdin is not None
    joined.stdin.write(line.encode() + b"\n")
    joined.stdin.flush()


def asking(gpus: int) -> str:
    """The line of a request to a host of so many GPUs."""
    request = FactsRequest(host="me", interface=None, peers=("127.0.0.1",), gpus=gpus)
    return request.model_dump_json()


def test_tells_facts_and_time_and_ends_with_its_input(
    joined: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    tell(joined, "")
    tell(joined, asking(gpus=0))
    facts = said(joined)["facts"]
    assert facts["host"] == "me"
    assert facts["interface"]["name"] == "lo"
    assert network.unreachable([("127.0.0.1", facts["port"])]) == []
    assert facts["digests"] == {"code": code_digest(read_code())}
    assert facts["disk_write_bytes_per_s"] > 0
    tell(joined, "time")
    assert said(joined)["time"] == pytest.approx(time.time(), abs=60)
    assert joined.stdin is not None
    joined.stdin.close()
    assert joined.wait(20) == 0
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.system
def test_a_host_names_nccl_and_the_driver_if_gpus_are_expected(
    joined: subprocess.Popen[bytes],
) -> None:
    tell(joined, asking(gpus=1))
    versions = said(joined)["facts"]["versions"]
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
        assert where in network.listening(descendants(os.getpid()))
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


def test_a_join_that_was_left_behind_makes_way_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from pathlib import Path\n"
        "from dragoman.cluster.join_host import join_lock\n"
        "with join_lock(Path('.')):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    print(child.pid, flush=True)\n"
        "    child.wait()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as left_behind:
        assert left_behind.stdout is not None
        child = int(left_behind.stdout.readline())
        with join_lock(tmp_path):
            assert left_behind.wait(10) == -signal.SIGKILL
            wait_until(lambda: state_of(child) in ("Z", ""))


def test_a_host_that_is_stopped_before_training_says_so(
    joined: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """It waits for the store of a first host that has failed: it must not be taken for lost."""
    address = next((one for one in network.addresses().values() if one[:4] != "127."), None)
    if address is None:
        pytest.skip("this machine has no address but loopback")
    request = FactsRequest(host="me", interface=None, peers=(address,), gpus=0)
    tell(joined, request.model_dump_json())
    said(joined)
    with socket.create_server((address, 0)) as taken:
        nobody = taken.getsockname()[1]
    (tmp_path / "folder" / "run").mkdir()
    share = TrainRequest(
        number=1,
        ranks=1,
        token="0123456789abcdef",
        store=(address, nobody),
        fewest=2,
        most=2,
        run="run",
    )
    tell(joined, share.model_dump_json())
    wait_until(lambda: any((tmp_path / "folder/run/logs").glob("join-*.lock")))
    time.sleep(1.0)
    tell(joined, "stop")
    assert said(joined)["done"] == 130


def test_ports_on_loopback_are_not_exposed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)),
        socket.create_server(("0.0.0.0", 0)) as everywhere,
    ):
        assert join_host._exposed("10.0.0.1") == [f"0.0.0.0:{everywhere.getsockname()[1]}"]


@pytest.mark.parametrize(("slots", "hidden"), [(1, True), (0, False)])
def test_ranks_on_the_processor_do_not_see_gpus_and_share_its_cores(
    slots: int, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine of slots may have GPUs, which are for others. With all cores a probe would find
    less work in a weight than each of four ranks has."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "cpu_cores", lambda: 8)
    where = StoreAddress("127.0.0.1", 7, "0123456789abcdef")
    share = Share(0, 1, "lo", where, on_processor=bool(slots))
    found = probe_environment(4, share)
    assert (found.get("CUDA_VISIBLE_DEVICES") == "") == hidden
    assert (found["RANK"], found["WORLD_SIZE"], found["OMP_NUM_THREADS"]) == ("0", "1", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # which training follows, too
    assert probe_environment(4, share)["OMP_NUM_THREADS"] == "3"


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

    monkeypatch.setattr(join_host, "_SAVE_S", 2.0)
    channel = mock.Mock(hear=hear)
    with (
        (tmp_path / "heard").open("w") as file,
        subprocess.Popen([sys.executable, "-c", _COUNTING], stdout=file) as process,
    ):
        wait_until(lambda: "begins" in (tmp_path / "heard").read_text())
        with join_host._Orders(channel, process.pid):
            time.sleep(1.5)
            in_time = heard()
            wait_until(lambda: heard() > in_time, limit_s=20.0)
        process.kill()
    assert in_time == asked


def test_a_stopped_join_makes_way_at_once(tmp_path: Path) -> None:
    program = (
        "import time; from pathlib import Path\n"
        "from dragoman.cluster.join_host import join_lock\n"
        "with join_lock(Path('.')):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as left_behind:
        assert left_behind.stdout is not None
        assert left_behind.stdout.readline()
        left_behind.send_signal(signal.SIGSTOP)
        with join_lock(tmp_path):
            assert left_behind.wait(10) == -signal.SIGKILL


def test_what_left_its_group_ends_with_the_join(tmp_path: Path) -> None:
    """A program that a worker has started and left behind, deaf to the gentle signal."""
    deaf = "trap '' TERM; echo $$ > pid; while true; do sleep 1; done"
    program = (
        "import ctypes, subprocess, time; from pathlib import Path\n"
        "from dragoman.cluster import join_host\n"
        "ctypes.CDLL(None).prctl(join_host._PR_SET_CHILD_SUBREAPER, 1)\n"
        f"subprocess.run(['sh', '-c', 'setsid sh -c \"$0\" &', {deaf!r}])\n"
        "while not Path('pid').exists() or not Path('pid').read_text(): time.sleep(0.05)\n"
        "join_host.end_all()\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=30)
    assert state_of(int((tmp_path / "pid").read_text())) in ("Z", "")


def test_hosts_write_no_bytecode(tmp_path: Path) -> None:
    """A full disk would keep a part of it; the next start would say "marshal data too short"."""
    code = tmp_path / code_place("0123")
    source = Path(dragoman.__file__).parent
    shutil.copytree(source, code / "dragoman", ignore=shutil.ignore_patterns("__pycache__"))
    host = Host(
        address="10.0.0.1", name="alpha", gpus=1, python=sys.executable, folder=str(tmp_path)
    )
    command = join_command(host, code="0123")
    environment = {"PATH": os.environ["PATH"]}  # whatever it says of bytecode
    subprocess.run(command, check=True, input=b"", capture_output=True, env=environment)
    assert not [*code.rglob("*.pyc")]
