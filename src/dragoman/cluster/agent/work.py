"""This host's share of the work of all hosts: training, or measuring the network.

The controller's `stop` lets workers save and end, its `kill` ends them at once. The loss of the
controller acts as `stop`, and a minute later as `kill`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.interrupts import StopHandler
from dragoman.cluster.agent import network
from dragoman.cluster.agent.channel import Channel
from dragoman.cluster.agent.measuring import Measuring
from dragoman.cluster.join import Node, rendezvous, share_of
from dragoman.cluster.messages import Done, Weight, WorkRequest
from dragoman.distributed.launch import (
    HungWorkerError,
    InterruptedRunError,
    Share,
    WorkerError,
    launch_log,
    launch_workers,
    rank_environment,
)
from dragoman.telemetry.events import event_file
from dragoman.telemetry.follower import Follower
from dragoman.training.durable import discard, step_directories, step_number

_OTHER_AGENT_S: Final = 10.0
"""How long an agent left over from a lost connection may take to end."""
_OTHER_AGENT_EVERY_S: Final = 0.1
_LOCK_FORM: Final = "hhqqi"
"""struct flock of Linux on machines of 64 bits: type, whence, start, length, process."""
_STORE_S: Final = 60.0
"""How long the first host may take to end an old agent and to open the store."""
_SAVE_S: Final = 60.0
"""How long workers may save after the controller is gone."""
_SIGNALLED: Final = re.compile(r"Signal \d+ \((SIG(?!TERM)\w+)\) received by PID")


def work(
    channel: Channel, request: WorkRequest, measuring: Measuring, listener: socket.socket
) -> None:
    """Do this host's share of the work, and report how it ended.

    listener: the socket whose port was told with the facts.
    """
    try:
        if request.job == "probe":
            _probe(channel, request, measuring, listener)
        else:
            listener.close()  # the store takes the port of the first one
            _train(channel, request)
        done = Done()
    except DragomanError as error:
        done = Done(
            exit_code=error.exit_code,
            problem=str(error),
            weight=weight_of(error, launch_log(Path(request.run), request.number)),
            kind=error.kind if isinstance(error, WorkerError) else "",
        )
    channel.say(done=done.model_dump())


def node_of(request: WorkRequest) -> Node:
    """This host among all of them."""
    address, port = request.endpoints[0]
    return Node(request.number, len(request.endpoints), address, port, request.token)


def _train(channel: Channel, request: WorkRequest) -> None:
    """Join the training, as `dragoman join` does, with the controller's copy of the run."""
    run = Path(request.run)
    (run / "logs").mkdir(exist_ok=True)
    with agent_lock(run / "logs"):
        launch_log(run, request.number).unlink(missing_ok=True)  # lines of an earlier run
        forget_newer(run / "checkpoints", request.checkpoint)
        # Only the first host, where rank 0 is, has a log; others may share its folder.
        log = None if request.number else log_beyond(run / "events", *request.log)

        def send_events(_meeting: Path) -> None:
            for line in log.lines() if log else ():
                channel.say(event=line.decode(errors="replace"))  # a full disk may tear a letter

        with (
            _passing_signals(channel, os.getpid()) as over,
            _EndBeforeTraining(),
            rendezvous(node_of(request), wait_s=_STORE_S) as share,
        ):
            share = replace(
                share, price_per_hour=request.price_per_hour, on_processor=request.on_processor
            )
            try:
                launch_workers(
                    ["dragoman.run.worker", "train", str(run)],
                    ranks=request.ranks,
                    run_directory=run,
                    share=share,
                    meanwhile=send_events,
                )
            finally:
                over.set()  # from now on a signal would end this process before it has said why


class _EndBeforeTraining(StopHandler):
    """A signal that comes before the launcher listens ends the agent with an answer: without one
    this host would seem lost, and be blamed for what another has failed in."""

    def receive(self, _number: int, _frame: FrameType | None) -> None:
        """End the wait for the other hosts."""
        raise InterruptedRunError("a signal came before training began")


def forget_newer(checkpoints: Path, last: str) -> None:
    """Remove the checkpoints that are newer than this one; all if the name is ""."""
    for path in step_directories(checkpoints):
        if step_number(path.name) > step_number(last):
            with contextlib.suppress(FileNotFoundError):  # another host that shares the folder
                discard(path)


def _probe(
    channel: Channel, request: WorkRequest, measuring: Measuring, listener: socket.socket
) -> None:
    """Let the measuring process measure the network; its lines go to the controller unchanged.

    Raises MachineError if it fails.
    """
    own = request.endpoints[request.number]
    peers = [endpoint for endpoint in request.endpoints if endpoint != own]
    channel.say(closed=network.unreachable(peers))
    with listener:  # open until all have tried it
        channel.expect()
    share = replace(share_of(node_of(request)), on_processor=request.on_processor)
    process = measuring.process
    with _passing_signals(channel, process.pid):
        store = None if request.number else own
        measuring.measure_network(probe_environment(request.ranks, share), store=store)
        assert process.stdout is not None
        for line in process.stdout:
            channel.say(measured=line.decode(), exposed=_exposed(own[0]))
        exit_code = process.wait()
    if exit_code:
        raise MachineError(
            "the network between the hosts could not be measured",
            remedy="check that the hosts reach each other's ports",
        )


def probe_environment(ranks: int, share: Share) -> dict[str, str]:
    """The environment of the measuring process, with as many threads as a rank has in training."""
    place = {"RANK": str(share.number), "WORLD_SIZE": str(share.num_hosts)}
    return rank_environment(ranks) | share.environment() | place


@contextmanager
def _passing_signals(channel: Channel, pid: int) -> Iterator[threading.Event]:
    """Inside the block the controller's stop and kill reach a process as signals, until the event
    is set.

    The first signal asks it to save and end, the second kills it. After a stop, the second is sent
    only upon a kill, or a minute after the end of the connection.
    """
    over = threading.Event()

    def signal_it() -> None:
        with contextlib.suppress(ProcessLookupError):
            if not over.is_set():
                os.kill(pid, signal.SIGTERM)

    def pass_on() -> None:
        asked = False
        for command in channel.hear():
            if not asked:
                signal_it()
                asked = True
            if command == b"kill":  # the launcher kills at the second signal
                over.wait(0.2)
                signal_it()
        if not asked:
            signal_it()
        over.wait(_SAVE_S)
        signal_it()

    threading.Thread(target=pass_on, daemon=True).start()
    try:
        yield over
    finally:
        over.set()


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
    path = logs / f"agent-{socket.gethostname()}.lock"
    with path.open("ab") as lock:
        deadline = time.monotonic() + _OTHER_AGENT_S
        while (holder := _holder_unless_locked(lock.fileno())) is not None:
            for pid in network.descendants(holder) if holder > 0 else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise MachineError(
                    "another agent of this run is still running and could not be killed",
                    place=path,
                    remedy=f"kill process {holder} on this host"
                    if holder > 0
                    else "end it on the host or in the container that it runs in",
                )
            time.sleep(_OTHER_AGENT_EVERY_S)
        yield


def _holder_unless_locked(descriptor: int) -> int | None:
    """Lock a file; if another process has locked it, return its id: 0 if it is not visible here."""
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        asked = struct.pack(_LOCK_FORM, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, holder = struct.unpack(_LOCK_FORM, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        if kind != fcntl.F_UNLCK:  # it has not ended meanwhile
            return int(holder)


def log_beyond(directory: Path, size: int, digest: str) -> Follower:
    """Follows the run's log here, from where the controller's copy ends.

    size, digest: the size and sha256 of the controller's copy. A file here that is shorter or
    begins differently is from another attempt, and is removed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = event_file(directory)
    if path.is_file() and (path.stat().st_size < size or prefix_digest(path, size) != digest):
        path.unlink()
    return Follower(path, start=size)


def prefix_digest(path: Path, size: int) -> str:
    """sha256 of the first bytes of a file; of nothing if the file does not exist."""
    whole = hashlib.sha256()
    if size and path.is_file():
        with path.open("rb") as file:
            whole.update(file.read(size))
    return whole.hexdigest()
