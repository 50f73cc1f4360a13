"""`dragoman join` on a host of `train --hosts`: `python -m dragoman.cluster.join_host FOLDER`.

Its standard input and output are the connection to the controller (`lines`). It first tells what
doctor asks for; then it measures the network with the other hosts, or joins their training, in
which torchrun starts the workers again if one is lost or another host comes.

The controller's `stop` lets workers save and end, its `kill` ends them at once. The loss of the
controller acts as `stop`, and a few seconds later as `kill`. Whatever was started here, also if it
has left its group, ends with this program.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import ipaddress
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.interrupts import StopHandler
from dragoman.base.process import descendants
from dragoman.cluster import network
from dragoman.cluster.channel import Channel
from dragoman.cluster.host_facts import gather
from dragoman.cluster.join import Node, rendezvous, share_of
from dragoman.cluster.lines import FactsRequest, Loss, ProbeRequest, TrainRequest
from dragoman.cluster.measuring import Measuring
from dragoman.distributed.launch import (
    HungWorkerError,
    InterruptedRunError,
    Share,
    StartAgainError,
    Weight,
    WorkerError,
    WorkerLoss,
    launch_log,
    launch_workers,
    rank_environment,
)
from dragoman.telemetry.events import event_file
from dragoman.telemetry.follower import Follower
from dragoman.training.durable import discard, step_directories, step_number

_OTHER_JOIN_S: Final = 10.0
"""How long a program left over from a lost connection may take to end."""
_LOOK_EVERY_S: Final = 0.1
_LOCK_FORM: Final = "hhqqi"
"""struct flock of Linux on machines of 64 bits: type, whence, start, length, process."""
_STORE_S: Final = 60.0
"""How long the store of the first host may take to answer."""
_SAVE_S: Final = 5.0
"""How long workers may save after the controller is gone."""
_GENTLE_S: Final = 0.5
"""How long a process may take to end by itself at the end of this program."""
_PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> None:
    """Make the folder if it is missing, change to it, and do what the controller asks."""
    folder = sys.argv[1]
    # Programs started from here find this code wherever they run.
    os.environ["PYTHONPATH"] = str(Path(os.environ["PYTHONPATH"]).resolve())
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    with contextlib.suppress(AttributeError):  # processes without a parent become our children
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        answer(Channel())
    finally:
        end_all()


def answer(channel: Channel) -> None:
    """Do what the controller asks; end when it is gone, or when the work is done.

    Raises ValueError if a request is not understood.
    """
    line = channel.expect()
    if b'"facts"' not in line:
        _work(channel, lambda: _train(channel, TrainRequest.model_validate_json(line)))
        return
    request = FactsRequest.model_validate_json(line)
    with closing(Measuring(ranks=request.ranks, on_processor=not request.gpus)) as measuring:
        facts = gather(request, measuring)
        # The peers connect to this port once; of the first host, the store for measuring opens.
        address = facts.interface.address if facts.interface else "127.0.0.1"
        with socket.create_server((address, 0)) as listener:
            facts = facts.model_copy(update={"port": listener.getsockname()[1]})
            channel.say(facts=facts.model_dump(mode="json"))
            line = channel.expect()
            if b'"probe"' in line:
                probe = ProbeRequest.model_validate_json(line)
                _work(channel, lambda: _probe(channel, probe, measuring, listener))
                return
    _work(channel, lambda: _train(channel, TrainRequest.model_validate_json(line)))


def _work(channel: Channel, work: Callable[[], None]) -> None:
    """Work, and report how it ended."""
    try:
        work()
        channel.say(done=0)
    except DragomanError as error:
        kind = error.kind if isinstance(error, WorkerError) else ""
        loss = Loss(problem=str(error), weight=weight_of(error), kind=kind)
        channel.say(loss=loss.model_dump(), done=error.exit_code)


def weight_of(error: DragomanError) -> Weight:
    """How likely this error is the cause of those of other hosts."""
    if isinstance(error, WorkerError):
        return "own"
    return "hung" if isinstance(error, HungWorkerError) else "other"


def _train(channel: Channel, request: TrainRequest) -> None:
    """Join the training, as `dragoman join` does, with the controller's copy of the run."""
    run = Path(request.run)
    (run / "logs").mkdir(exist_ok=True)
    with (
        join_lock(run / "logs"),
        _EndBeforeTraining() as waiting,
        _Orders(channel, os.getpid()) as orders,
    ):
        launch_log(run, request.number).unlink(missing_ok=True)  # lines of an earlier run
        forget_newer(run / "checkpoints", request.checkpoint)
        # Only the first host, where rank 0 is, has a log; others may share its folder.
        log = None if request.number else log_beyond(run / "events", *request.log)

        def look(_meeting: Path) -> None:
            for line in log.lines() if log else ():
                channel.say(event=line.decode(errors="replace"))  # a full disk may tear a letter
            if orders.again is not None:
                raise StartAgainError

        def tell(loss: WorkerLoss) -> None:
            channel.say(loss=Loss(problem=loss.problem, weight=loss.weight).model_dump())

        address, port = request.store
        node = Node(request.number, request.most, address, port, request.token)
        with rendezvous(node, wait_s=_STORE_S) as share:
            if not request.number:
                channel.say(port=share.store.port)
            share = replace(
                share,
                price_per_hour=request.price_per_hour,
                on_processor=request.on_processor,
                fewest=request.fewest,
            )
            while True:
                try:
                    launch_workers(
                        ["dragoman.run.worker", "train", str(run)],
                        ranks=request.ranks,
                        run_directory=run,
                        share=share,
                        meanwhile=look,
                        on_loss=tell,
                    )
                    waiting.is_over = True
                    return
                except StartAgainError:
                    share = orders.follow(share)
                except BaseException:
                    waiting.is_over = True
                    raise


class _EndBeforeTraining(StopHandler):
    """A signal that comes before the launcher listens ends this program with an answer: without
    one this host would seem lost, and be blamed for what another has failed in.

    is_over: whether the work has ended, so that a late signal must not take the place of its end.
    """

    is_over = False

    def receive(self, _number: int, _frame: FrameType | None) -> None:
        """End the wait for the other hosts."""
        if not self.is_over:
            raise InterruptedRunError("a signal came before training began")


class _Orders:
    """Inside the block the controller's orders reach a process: stop and kill as signals.

    The first signal asks it to save and end, the second kills it. After a stop, the second is sent
    only upon a kill, or some seconds after the end of the connection.

    again: the last order to begin anew: the token of the others, and how many hosts there are.
    """

    def __init__(self, channel: Channel, pid: int) -> None:
        self.again: tuple[str, int] | None = None
        self._channel = channel
        self._pid = pid
        self._over = threading.Event()

    def __enter__(self) -> _Orders:
        threading.Thread(target=self._pass_on, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # from now on a signal would end this process before it has said why

    def follow(self, share: Share) -> Share:
        """This host's share among the hosts that are left."""
        assert self.again is not None
        (token, fewest), self.again = self.again, None
        return replace(share, store=replace(share.store, token=token), fewest=fewest)

    def _signal(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not self._over.is_set():
                os.kill(self._pid, signal.SIGTERM)

    def _pass_on(self) -> None:
        asked = False
        for command in self._channel.hear():
            name, *words = command.decode(errors="replace").split()
            if name == "again" and not asked:
                self.again = (words[0], int(words[1]))
            if name not in ("stop", "kill"):
                continue
            if not asked:
                self._signal()
                asked = True
            if name == "kill":  # the launcher kills at the second signal
                self._over.wait(0.2)
                self._signal()
        if not asked:
            self._signal()
        self._over.wait(_SAVE_S)
        self._signal()


def end_all() -> None:
    """End every process that was started here: with a signal, and soon by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GENTLE_S
        while (left := descendants(os.getpid())[1:]) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(_LOOK_EVERY_S)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def forget_newer(checkpoints: Path, last: str) -> None:
    """Remove the checkpoints that are newer than this one; all if the name is ""."""
    for path in step_directories(checkpoints):
        if step_number(path.name) > step_number(last):
            with contextlib.suppress(FileNotFoundError):  # another host that shares the folder
                discard(path)


def _probe(
    channel: Channel, request: ProbeRequest, measuring: Measuring, listener: socket.socket
) -> None:
    """Let the measuring process measure the network; its lines go to the controller unchanged.

    Raises MachineError if it fails.
    """
    own = request.endpoints[request.number]
    peers = [endpoint for endpoint in request.endpoints if endpoint != own]
    channel.say(closed=network.unreachable(peers))
    with listener:  # open until all have tried it
        channel.expect()
    address, port = request.endpoints[0]
    node = Node(request.number, len(request.endpoints), address, port, request.token)
    share = replace(share_of(node), on_processor=request.on_processor)
    process = measuring.process
    with _Orders(channel, process.pid):
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


def _exposed(address: str) -> list[str]:
    """address:port at which the processes of this program accept connections, except on the private
    address and loopback."""
    found = network.listening(descendants(os.getpid()))
    return sorted(
        f"{where}:{port}"
        for where, port in found
        if where != address and not ipaddress.ip_address(where).is_loopback
    )


@contextmanager
def join_lock(logs: Path) -> Iterator[None]:
    """Inside the block this process alone has joined the run on this machine.

    After a lost connection the controller may be back before its old program has given up, or that
    was stopped. Two would write the same events and share the device.

    logs: the folder of the run's logs; hosts may share it. Another one is killed with all that it
    started. Raises MachineError if it cannot be killed.
    """
    path = logs / f"join-{socket.gethostname()}.lock"
    with path.open("ab") as lock:
        deadline = time.monotonic() + _OTHER_JOIN_S
        while (holder := _holder_unless_locked(lock.fileno())) is not None:
            for pid in descendants(holder) if holder > 0 else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise MachineError(
                    "this host is still training the run for another controller, and that could "
                    "not be ended",
                    place=path,
                    remedy=f"kill process {holder} on this host"
                    if holder > 0
                    else "end it on the host or in the container that it runs in",
                )
            time.sleep(_LOOK_EVERY_S)
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


if __name__ == "__main__":
    main()
