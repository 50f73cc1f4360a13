"""Tasks on the nodes of a Ray cluster.

Ray places the tasks, repeats those of nodes that were lost, and uses nodes that join. `Nodes` are
the workers of `workers.parallel_map`, which sends items ahead and yields the results in their
order. A node must have the packages of this machine in the same versions.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, DragomanError, MachineError
from dragoman.base.memory import memory_errors_named
from dragoman.base.version import VERSION

AHEAD: Final = 4
"""Tasks that are sent per task that the nodes can do at the same time. A result waits for those
before it, so a task that is begun again holds up the others only after some more."""
ATTEMPTS: Final = 6
"""A task that has ended this many processes or nodes is given up."""
TEXT_PACKAGES: Final = ("numpy", "py3langid", "sentencepiece", "zstandard")
"""What decides how `prepare` cleans and encodes text."""
ANSWER_S: Final = 10.0
"""An address must answer in this time."""
_JOIN_S: Final = 30.0
_EMPTY_S: Final = 600.0
"""A task that is not done after this time is given up if there is no node then."""
_KEEPALIVE: Final = {
    "RAY_grpc_client_keepalive_time_ms": "65000",
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
}
"""A task on a node that is cut off is done again after 85 s; by default Ray waits 7 minutes. Ray's
servers close a connection that asks more often than once a minute."""
_ADDRESS: Final = re.compile(r"(?P<host>[^\s:/]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")
_PROBE: Final = """
import json, ray, sys
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="CRITICAL")
    said = ""
except Exception as error:
    said = str(error) or type(error).__name__
print(json.dumps(said))
"""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the cluster that this process has joined, as workers of `parallel_map`.

    packages: beside dragoman, those whose versions must be the same on every node.
    cores: how many cores of one node a task takes.
    shared: a file that every node must see as it is here; None: tasks bring what they need.
    """

    packages: tuple[str, ...]
    cores: int = 1
    shared: Path | None = None

    @contextmanager
    def open_pool(
        self, task: Callable[[Any], Any]
    ) -> Iterator[tuple[Callable[[Any], Sent], Callable[[], int]]]:
        """A function that sends an item, and one that says how many to send ahead.

        Raises MachineError if no node has enough cores.
        """
        import ray

        if not _places(self.cores, int(time.monotonic())):
            raise MachineError(
                f"no node of the cluster has {self.cores} cores for a task",
                place="ray",
                remedy="start a node: ray start --address=HOST:PORT; or give fewer threads",
            )
        seen = None if self.shared is None else (str(self.shared), self.shared.read_bytes())
        wanted = {package: _installed(package) for package in ("dragoman", *self.packages)}
        # In a list, so that a process reads the task once, and not with every item.
        sent = [ray.put(task)]
        remote = ray.remote(num_cpus=self.cores, max_retries=ATTEMPTS - 1)(do_task)
        yield (
            lambda item: Sent(remote.remote(sent, wanted, seen, item), self.cores),
            lambda: AHEAD * max(1, _places(self.cores, int(time.monotonic()))),
        )


@lru_cache(maxsize=1)
def _places(cores: int, _second: int) -> int:
    """The tasks of so many cores that the nodes can do at the same time. _second: of the clock."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(resources.get("CPU", 0) // cores) for resources in alive)


@dataclass(frozen=True, slots=True)
class Sent:
    """An item that the nodes work on; used like a `concurrent.futures.Future`."""

    reference: Any
    cores: int

    def cancel(self) -> None:
        """Leave the item out, if it is not done yet."""
        import ray

        ray.cancel(self.reference)

    def result(self) -> Any:
        """The result, once it is there.

        Raises the error of the task; MachineError if there is no node, or the task was given up.
        """
        import ray
        from ray import exceptions

        while not ray.wait([self.reference], timeout=_EMPTY_S)[0]:
            if not _places(self.cores, int(time.monotonic())):
                raise MachineError(
                    f"has had no node with {self.cores} cores for {_EMPTY_S / 60:.0f} minutes",
                    place="the Ray cluster",
                    remedy="start nodes, then run the same command again to resume",
                )
        try:
            return ray.get(self.reference)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, DragomanError):
                raise error.cause from None
            said = str(error)
            if "failed to import on the worker" not in said:
                raise
            missing = re.findall(r"^(?:ModuleNotFound|Import)Error: (.+)", said, re.MULTILINE)
            raise MachineError(
                f"cannot import dragoman: {missing[-1] if missing else 'unknown reason'}",
                place=f"node {error.ip}",
                remedy="install there, in the Python that runs Ray: "
                f"pip install 'dragoman[ray]=={VERSION}'",
            ) from error
        except exceptions.RayError as error:
            said = str(error).strip().splitlines()[0]
            raise MachineError(
                f"gave up a task after {ATTEMPTS} attempts: {said}",
                place="Ray",
                remedy="look whether the nodes have enough memory; the same command resumes",
            ) from error


class _Opened:
    """The task that this process of a node does, and its reference."""

    reference: Any = None
    task: Callable[[Any], Any]


def do_task(
    sent: Sequence[Any], wanted: Mapping[str, str], seen: tuple[str, bytes] | None, item: Any
) -> Any:
    """Apply the task to an item, in a process of Ray on a node.

    sent: the reference of Ray to the task. wanted: the versions that this node must have, by
    package. seen: a file and its content, which this node must see.
    Raises the errors of the task, of which those that are not about a line of text name the node.
    """
    import ray

    here = Path(seen[0] if seen else tempfile.gettempdir())
    try:
        with (
            memory_errors_named("give the node more memory, or each task more cores"),
            disk_errors_named(here),
        ):
            if _Opened.reference != sent[0]:
                _check_packages(wanted)
                if seen and (not here.is_file() or here.read_bytes() != seen[1]):
                    raise MachineError(
                        "is not the folder that the command sees",
                        place=here.parent,
                        remedy="let all nodes see it under this path, through a network file "
                        "system",
                    )
                os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a task is given cores alone
                _Opened.reference, _Opened.task = sent[0], ray.get(sent[0])
            return _Opened.task(item)
    except DragomanError as error:
        if not isinstance(error, CorpusError):  # that is about a line, which is wrong everywhere
            place = f", {error.place}" if error.place else ""
            error.set_words(place=f"node {ray.util.get_node_ip_address()}{place}")
        raise


def _check_packages(wanted: Mapping[str, str]) -> None:
    """Raises MachineError if this node lacks a package or has another version of it."""
    for package, other in wanted.items():
        if (found := _installed(package)) != other:
            raise MachineError(
                f"has {package} {found}, not {other}" if found else f"has no {package}",
                remedy=f"install there: pip install {package}=={other}",
            )


def _installed(package: str) -> str:
    """The version of a package, without its build; "" if it is not there."""
    if package == "dragoman":
        return VERSION
    try:
        return version(package).split("+")[0]
    except PackageNotFoundError:
        return ""


@contextmanager
def join_ray(address: str) -> Iterator[None]:
    """Join a cluster that runs, as `ray start` has made it.

    address: HOST:PORT of its head, or "auto" for the cluster to which this machine belongs.
    Raises ConfigError if it is neither, MachineError if Ray is not installed or does not answer.
    """
    match = _ADDRESS.fullmatch(address)
    if address != "auto" and match is None:
        raise ConfigError(
            "is not the address of a Ray cluster",
            place=f"ray {address}",
            remedy="give HOST:PORT of its head, such as 10.0.0.1:6379, or auto",
        )
    if importlib.util.find_spec("ray") is None:
        raise MachineError("Ray is not installed", remedy="install it: pip install 'dragoman[ray]'")
    if match is not None:
        _check_answer(match["host"].strip("[]"), int(match["port"]), address)
    for name, value in _KEEPALIVE.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():  # by the script that calls us
        yield
        return
    _check_joins(address)
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    if in_main_thread:  # Ray has put its own there
        signal.signal(signal.SIGTERM, before)
    with redirect_stdout(sys.stderr):  # Ray's words about lost nodes are not a result
        try:
            yield
        finally:
            ray.shutdown()  # a thread of Ray may print until it is back


def _check_answer(host: str, port: int, address: str) -> None:
    """Raises MachineError if nothing listens there."""
    try:
        socket.create_connection((host, port), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or "no answer"
        raise MachineError(
            f"does not answer: {said}",
            place=f"ray {address}",
            remedy="check the address, and start the cluster: ray start --head --port=6379",
        ) from error


def _check_joins(address: str) -> None:
    """Join in another process first: Ray may wait for minutes, and may end the process that joins.

    Raises MachineError if the cluster cannot be joined.
    """
    remedy = (
        "give the head of a Ray cluster of this version, and let this machine take part: "
        "ray start --address=HOST:PORT --num-cpus=0"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_JOIN_S,
            check=False,
        )
        printed = done.stdout.strip().splitlines()
        problem = json.loads(printed[-1]) if done.returncode == 0 and printed else "it ended"
        errors = done.stderr
    except subprocess.TimeoutExpired as error:
        problem = f"no answer as a Ray cluster in {_JOIN_S:.0f} s"
        errors = (error.stderr or b"").decode(errors="replace")
    if "InvalidAuthToken" in errors:
        problem, remedy = "it wants another token", "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    if problem:
        said = problem.strip().splitlines()[0]
        raise MachineError(f"cannot be joined: {said}", place=f"ray {address}", remedy=remedy)
