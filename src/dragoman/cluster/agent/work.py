"""This host's share of a job that all hosts do together: training, or measuring the network.

The controller gives the commands. The first host opens the store in which all meet; the controller
sends its address to every host, and they begin. `stop` lets workers save and end, `kill` ends them
at once. The loss of the controller acts as `stop`, and a minute later as `kill`.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.files import try_lock
from dragoman.cluster.agent import network
from dragoman.cluster.agent.channel import Channel
from dragoman.cluster.agent.processes import Prepared
from dragoman.cluster.messages import Weight, WorkRequest
from dragoman.distributed.launch import (
    HungWorkerError,
    Share,
    WorkerError,
    launch_log,
    launch_workers,
    rank_environment,
)
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.telemetry.events import event_file
from dragoman.training.durable import discard, step_directories, step_number

_FORWARD_EVERY_S: Final = 0.2
_FORWARD_BYTES: Final = 1 << 20
"""The most bytes of events in one message."""
_OTHER_AGENT_S: Final = 10.0
"""How long an agent left over from a lost connection may take to end."""
_OTHER_AGENT_EVERY_S: Final = 0.1
_AGENT: Final = b"dragoman.cluster.agent"
_SAVE_S: Final = 60.0
"""How long workers may save after the controller is gone."""
_SIGNALLED: Final = re.compile(r"Signal \d+ \((SIG(?!TERM)\w+)\) received by PID")


def work(channel: Channel, values: dict[str, Any], prepared: Prepared) -> None:
    """Do this host's share of the job, and report how it ended."""
    request = WorkRequest.model_validate(values)
    try:
        with _store(request, prepared) as endpoint:
            # A port to which the other hosts connect once, to check that they reach this host.
            with socket.create_server((request.address, 0)) as test:
                channel.say("ready", store=endpoint, test_port=test.getsockname()[1])
                peers = [(address, port) for address, port in channel.expect()["peers"]]
                channel.say("reached", closed=network.unreachable(peers))
                begin = channel.expect()  # the port stays open until all have tried it
            share = Share(
                request.number,
                request.num_hosts,
                request.interface,
                StoreAddress.parse(begin["store"]),
                request.price_per_hour,
                request.on_processor,
            )
            _JOBS[request.job](channel, request, share, prepared)
    except DragomanError as error:
        weight = weight_of(error, launch_log(Path(request.run), request.number))
        kind = error.kind if isinstance(error, WorkerError) else ""
        channel.say("done", exit_code=error.exit_code, problem=str(error), weight=weight, kind=kind)
    else:
        channel.say("done", exit_code=0, problem="", weight="other")


def _train(channel: Channel, request: WorkRequest, share: Share, _prepared: Prepared) -> None:
    run = Path(request.run)
    (run / "logs").mkdir(exist_ok=True)
    with agent_lock(run / "logs"):
        launch_log(run, request.number).unlink(missing_ok=True)  # lines of an earlier run
        forget_newer(run / "checkpoints", request.checkpoint)
        with (
            _passing_signals(channel),
            # Only the first host, where rank 0 is, has a log; others may share its folder.
            nullcontext()
            if request.number
            else _forwarding(Spool(run / "events", *request.log), channel),
        ):
            launch_workers(
                ["dragoman.run.worker", "train", str(run)],
                ranks=request.ranks,
                run_directory=run,
                share=share,
            )


def forget_newer(checkpoints: Path, last: str) -> None:
    """Remove the checkpoints that are newer than this one; all if the name is ""."""
    for path in step_directories(checkpoints):
        if step_number(path.name) > step_number(last):
            with contextlib.suppress(FileNotFoundError):  # another host that shares the folder
                discard(path)


def _probe(channel: Channel, request: WorkRequest, share: Share, prepared: Prepared) -> None:
    """Let the measuring process measure the network; its lines go to the controller unchanged.

    Raises MachineError if it fails.
    """
    measuring = prepared.measuring(ranks=request.ranks, on_processor=request.on_processor)
    process = measuring.process
    with _passing_signals(channel, process.pid):
        measuring.measure_network(probe_environment(request, share))
        assert process.stdout is not None
        for line in process.stdout:
            channel.say("measured", line=line.decode(), exposed=_exposed(request.address))
        exit_code = process.wait()
    if exit_code:
        raise MachineError(
            "the network between the hosts could not be measured",
            remedy="check that the hosts reach each other's ports",
        )


def probe_environment(request: WorkRequest, share: Share) -> dict[str, str]:
    """The environment of the measuring process, with as many threads as a rank has in training."""
    return (
        rank_environment(request.ranks)
        | share.environment()
        | {
            "RANK": str(request.number),
            "WORLD_SIZE": str(request.num_hosts),
        }
    )


_JOBS: Final[dict[str, Callable[[Channel, WorkRequest, Share, Prepared], None]]] = {
    "train": _train,
    "probe": _probe,
}


@contextmanager
def _store(request: WorkRequest, prepared: Prepared) -> Iterator[str]:
    """On the first host, open the store in which all meet and yield its address; else yield ""."""
    if request.number:
        yield ""
        return
    if request.job == "probe":  # the measuring process has imported PyTorch already
        measuring = prepared.measuring(ranks=request.ranks, on_processor=request.on_processor)
        port = measuring.open_store(request.address)
    else:
        port = prepared.store().open(request.address)
    try:
        yield str(StoreAddress(request.address, port, request.token))
    finally:
        prepared.close()


@contextmanager
def _passing_signals(channel: Channel, pid: int | None = None) -> Iterator[None]:
    """Inside the block the controller's stop and kill reach the job as signals.

    The first signal asks the job to save and end, the second kills it. After a stop, the second is
    sent only upon a kill, or a minute after the end of the connection.

    pid: the id of the process that does the job; None if this process launches it.
    """
    launcher = threading.get_ident()
    over = threading.Event()

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if over.is_set():
                return
            if pid is None:
                signal.pthread_kill(launcher, number)
            else:
                os.kill(pid, number)

    def pass_on() -> None:
        asked = False
        for message in channel.hear():
            if not asked:
                send(signal.SIGTERM)
                asked = True
            if message["do"] == "kill":  # the launcher kills at the second signal
                over.wait(0.2)
                send(signal.SIGTERM)
        if not asked:
            send(signal.SIGTERM)
        over.wait(_SAVE_S)
        send(signal.SIGTERM)

    threading.Thread(target=pass_on, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _forwarding(spool: Spool, channel: Channel) -> Iterator[None]:
    """Inside the block events go to the controller as they are written, the last at its end."""
    over = threading.Event()

    def forward() -> None:
        while not over.wait(_FORWARD_EVERY_S):
            spool.forward(channel)

    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        spool.forward(channel)


def _exposed(address: str) -> list[str]:
    """address:port at which this agent's processes accept connections, except on the private
    address and loopback."""
    found = network.listening(network.descendants(os.getpid()))
    return sorted(
        f"{where}:{port}"
        for where, port in found
        if where != address and not ipaddress.ip_address(where).is_loopback
    )


def weight_of(error: DragomanError, log: Path) -> Weight:
    """How likely this error is the cause; torchrun's report tells killed from failed workers.

    log: the output of torchrun.
    """
    if isinstance(error, WorkerError):
        return "own"
    if isinstance(error, HungWorkerError):
        return "hung"
    try:
        report = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "other"
    return "signal" if _SIGNALLED.search(report) else "other"


@contextmanager
def agent_lock(logs: Path) -> Iterator[None]:
    """Inside the block this process is the run's only agent on this machine.

    After a lost connection the controller is back before its old agent has given up. Two agents
    would write the same events and share the device.

    logs: the folder of the run's logs; hosts may share it. Another agent is killed with all that it
    started. Raises MachineError if it cannot be killed.
    """
    path = logs / f"agent-{socket.gethostname()}.pid"
    with path.open("a+") as record:
        deadline = time.monotonic() + _OTHER_AGENT_S
        while not try_lock(record.fileno()):
            record.seek(0)
            _end_agent(record.read())
            if time.monotonic() > deadline:
                raise MachineError(
                    "another agent of this run is still running and could not be killed",
                    place=path,
                    remedy="kill the process whose number is in this file",
                )
            time.sleep(_OTHER_AGENT_EVERY_S)
        record.truncate(0)
        record.write(str(os.getpid()))
        record.flush()
        yield


def _end_agent(text: str) -> None:
    """Kill the agent with this process id, which holds the lock, and all that it started.

    Until the new holder of the lock has written its own id, the file has that of a dead agent. By
    now another program may have that id: it is left alone.
    """
    if text.isdecimal() and _is_agent(text):
        for pid in network.descendants(int(text)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_agent(pid: str) -> bool:
    try:
        return _AGENT in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


class Spool:
    """Reads what is appended to the run's log, whole lines only.

    had, digest: the size and sha256 of the controller's copy. A file here that is shorter or begins
    differently is from another attempt, and is removed.
    """

    def __init__(self, directory: Path, had: int, digest: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = event_file(directory)
        self._read = _goes_on(self._path, had, digest)

    def forward(self, channel: Channel) -> None:
        """Send the lines that were written since the last call."""
        while lines := self._next():
            channel.say("events", text=lines.decode())

    def _next(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                found = file.read(_FORWARD_BYTES)
        except FileNotFoundError:
            return b""
        lines = found[: found.rfind(b"\n") + 1]
        self._read += len(lines)
        return lines


def prefix_digest(path: Path, size: int) -> str:
    """sha256 of the first bytes of a file; of nothing if the file does not exist."""
    whole = hashlib.sha256()
    if size and path.is_file():
        with path.open("rb") as file:
            whole.update(file.read(size))
    return whole.hexdigest()


def _goes_on(path: Path, size: int, digest: str) -> int:
    """The number of bytes of this file that the controller has; 0 if there is no file.

    A file that does not continue the controller's copy is removed.
    """
    if path.is_file() and (path.stat().st_size < size or prefix_digest(path, size) != digest):
        path.unlink()
    return size if path.is_file() else 0
