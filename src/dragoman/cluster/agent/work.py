"""This host's share of a job that all hosts do together: training, or measuring the network.

The controller gives the commands. The first host opens the store in which all meet; the controller
sends its address to every host, and they begin. `stop` lets workers save and end, `kill` ends them
at once; so does the loss of the controller, after a while.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.settings import Section
from dragoman.cluster.agent import network
from dragoman.cluster.agent.channel import Channel
from dragoman.cluster.agent.lock import agent_lock
from dragoman.cluster.agent.measuring import Measuring
from dragoman.cluster.agent.spool import Spool
from dragoman.cluster.messages import Weight
from dragoman.distributed.launch import (
    HungWorkerError,
    Share,
    WorkerError,
    launch_log,
    launch_workers,
    rank_environment,
)
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.training.durable import discard, step_directories, step_number

_FORWARD_EVERY_S: Final = 0.2
_STORE_S: Final = 60.0
_SAVE_S: Final = 60.0
"""How long workers may save after the controller is gone."""
_SIGNALLED: Final = re.compile(r"Signal \d+ \((SIG(?!TERM)\w+)\) received by PID")


class WorkRequest(Section):
    """One host's share. run: the run's directory below the folder, also its name on the host.

    events: file name, size and digest of the controller's copy for each of this host's ranks.
    checkpoint: the name of the one to resume from; newer ones belong to steps that were given up.
    price_per_hour: of all hosts, with its currency; "" if it is not known.
    on_processor: its ranks do not use the GPUs that the host may have.
    """

    job: Literal["train", "probe"]
    number: int
    num_hosts: int
    ranks: int
    interface: str
    address: str
    token: str
    run: str = ""
    checkpoint: str = ""
    price_per_hour: str = ""
    on_processor: bool = False
    events: dict[str, tuple[int, str]] = Field(default_factory=dict)


@dataclass
class Prepared:
    """Processes that import PyTorch while the controller is busy with other things.

    Each starts on first use, or earlier; the agent ends them all.
    """

    _measuring: Measuring | None = None
    _store: subprocess.Popen[bytes] | None = None

    def measuring(self, *, ranks: int, on_processor: bool) -> Measuring:
        """The process that measures; a new one if it has ended."""
        if self._measuring is None or self._measuring.process.poll() is not None:
            self._measuring = Measuring(ranks=ranks, on_processor=on_processor)
        return self._measuring

    def store(self) -> subprocess.Popen[bytes]:
        """The store of a training, which waits for its address."""
        if self._store is None:
            program = [sys.executable, "-P", "-m", "dragoman.distributed.store"]
            self._store = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._store

    def close(self) -> None:
        """End what there is."""
        if self._measuring is not None:
            self._measuring.close()
        if self._store is not None:
            self._store.kill()
            self._store.communicate()


def work(channel: Channel, values: dict[str, Any], prepared: Prepared) -> None:
    """Do the share and report how it ended."""
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
        channel.say("done", exit_code=error.exit_code, problem=str(error), weight=weight)
    else:
        channel.say("done", exit_code=0, problem="", weight="other")


def _train(channel: Channel, request: WorkRequest, share: Share, _prepared: Prepared) -> None:
    run = Path(request.run)
    (run / "logs").mkdir(exist_ok=True)
    with agent_lock(run / "logs"):
        launch_log(run, request.number).unlink(missing_ok=True)  # lines of an earlier run
        forget_newer(run / "checkpoints", request.checkpoint)
        spool = Spool(run / "events", request.events)
        with _passing_signals(channel), _forwarding(spool, channel):
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
    """One process on each host measures the network; its lines go to the controller unchanged."""
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
            remedy="see whether the hosts reach each other's ports",
        )


def probe_environment(request: WorkRequest, share: Share) -> dict[str, str]:
    """Environment of a host's process that measures, with as many threads as a rank in training."""
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
    """On the first host, open the store in which all meet and yield its address; elsewhere ""."""
    if request.number:
        yield ""
        return
    if request.job == "probe":  # the measuring process has imported PyTorch already
        measuring = prepared.measuring(ranks=request.ranks, on_processor=request.on_processor)
        port = measuring.open_store(request.address, timeout_s=_STORE_S)
    else:
        store = prepared.store()
        assert store.stdin is not None
        assert store.stdout is not None
        with contextlib.suppress(OSError):
            store.stdin.write(f"{request.address}\n".encode())
            store.stdin.flush()
        port = store.stdout.readline().decode().strip()
    if not port:
        raise MachineError(
            f"no store can be opened at {request.address}",
            remedy="see whether the address is this host's own",
        )
    try:
        yield str(StoreAddress(request.address, int(port), request.token))
    finally:
        prepared.close()


@contextmanager
def _passing_signals(channel: Channel, pid: int | None = None) -> Iterator[None]:
    """Inside the block the controller's stop and kill reach the job as signals.

    pid: of the process that does the job; None if this process launches it.
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
        for message in channel.hear():
            send(signal.SIGTERM)
            if message["do"] == "kill":  # the launcher kills at the second signal
                over.wait(0.2)
                send(signal.SIGTERM)
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
    """Addresses beside the private one at which processes of this agent take connections."""
    found = network.listening(network.descendants(os.getpid()))
    return sorted(
        f"{where}:{port}"
        for where, port in found
        if where != address and not ipaddress.ip_address(where).is_loopback
    )


def weight_of(error: DragomanError, log: Path) -> Weight:
    """How likely this error is the cause: torchrun's report separates killed from failed workers.

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
