"""Lines on the nodes of a Ray cluster, in units of work; the results come in order.

Ray places the units, repeats those of nodes that were lost, and uses nodes that join. This module
decides the rest: which lines make a unit, how many units to send ahead, and in which order their
results are written. A unit is what is searched or scored together without Ray, so that the result
and the places where an interrupted file resumes are the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import open_regular
from dragoman.base.line_files import TransformLines
from dragoman.base.version import VERSION
from dragoman.corpus.manifest import FILE_NAME as MANIFEST_FILE
from dragoman.corpus.subword import VOCABULARIES
from dragoman.formats.bundle import is_bundle
from dragoman.inference.ray_unit import Finished, Job, do_unit
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.durable import DIGESTS_FILE, read_digests

Cut = Callable[[Iterable[str]], Iterator[list[str]]]
"""Lines -> the lines of each unit."""
AHEAD: Final = 2
"""Units that are sent per unit that can be worked on: one more waits for the next free core."""
HELD: Final = 16
"""Units per unit that can be worked on, from the first not yet written: later results are held."""
ATTEMPTS: Final = 6
"""A unit that has ended this many processes or nodes is given up."""
ANSWER_S: Final = 10.0
"""An address must answer in this time."""
_JOIN_S: Final = 30.0
_LOOK_S: Final = 1.0
_EMPTY_S: Final = 600.0
"""How long the work waits for a node if none is left."""
_KEEPALIVE: Final = {
    "RAY_grpc_client_keepalive_time_ms": "65000",
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
}
"""A unit on a node that is cut off is done again after 85 s; by default Ray waits 7 minutes. Ray's
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


def on_nodes(job: Job, files: Mapping[str, Path], cut: Cut, counts: Counter[str]) -> TransformLines:
    """A function for `transform_file` that lets the nodes of the joined cluster do the work.

    files: the files of the models, by the names that they get on the nodes.
    counts: the counts of each unit are added to them.
    Raises MachineError if no node has enough cores.
    """
    import ray

    if not _places(job.cores):
        raise MachineError(
            f"no node of the cluster has {job.cores} cores for a unit of work",
            place="ray",
            remedy="start a node: ray start --address=HOST:PORT; or give fewer threads",
        )
    said = job.model_dump_json()
    whole = hashlib.sha256(said.encode())
    parcel = {}
    for name, path in files.items():
        with open_regular(path) as file:
            content = file.read()
        whole.update(f"\0{name}\0{hashlib.sha256(content).hexdigest()}".encode())
        parcel[name] = ray.put(content)
    key = whole.hexdigest()
    remote = ray.remote(num_cpus=job.cores, max_retries=ATTEMPTS - 1)(do_unit)

    def lines(text: Iterable[str], first: int) -> Iterator[list[str]]:
        def sent() -> Iterator[Any]:
            number = first
            for unit in cut(text):
                yield remote.remote(key, said, parcel, "".join(f"{one}\n" for one in unit), number)
                number += len(unit)

        for finished in _in_order(sent(), job.cores):
            finished.raise_error()
            counts.update(finished.counts)
            yield list(finished.written)

    return lines


def _in_order(units: Iterator[Any], cores: int) -> Iterator[Finished]:
    """The results in the order of the units, of which a bounded number is sent ahead.

    units: sends the next one and gives Ray's reference to its result.
    """
    import ray

    working: dict[Any, int] = {}
    done: dict[int, Finished] = {}
    sent = written = 0
    places = _places(cores)
    looked = alive = time.monotonic()
    while True:
        ahead = min(AHEAD * max(1, places) - len(working), HELD * max(1, places) - sent + written)
        for reference in itertools.islice(units, max(0, ahead)):
            working[reference] = sent
            sent += 1
        if not working:
            return
        ready, _ = ray.wait([*working], timeout=_LOOK_S)
        for reference in ready:
            done[working.pop(reference)] = _result(reference)
        while written in done:
            yield done.pop(written)
            written += 1
        if (now := time.monotonic()) - looked < _LOOK_S:
            continue
        places, looked = _places(cores), now
        alive = now if places else alive
        if now - alive > _EMPTY_S:
            raise MachineError(
                f"has had no node with {cores} cores for {_EMPTY_S / 60:.0f} minutes",
                place="the Ray cluster",
                remedy="start nodes, then run the same command again to resume",
            )


def _places(cores: int) -> int:
    """Units that the nodes can work on at the same time."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(resources.get("CPU", 0) // cores) for resources in alive)


def model_files(path: Path, checkpoints: Sequence[str]) -> tuple[dict[str, Path], tuple[str, ...]]:
    """The files of a run or an export that its translations depend on, by their names on a node.

    Returns the folders of the checkpoints there, too; none for an export.
    Raises CheckpointError.
    """
    if is_bundle(path):
        return {name: path / name for name in (*read_digests(path), DIGESTS_FILE)}, ()
    from dragoman.formats.trained_model import checkpoint_path
    from dragoman.training.checkpoint import weights_file

    run = RunDirectory.open(path)
    files = {name: path / name for name in ("recipe.toml", MANIFEST_FILE, *VOCABULARIES)}
    folders = []
    for number, which in enumerate(checkpoints):
        folder = checkpoint_path(run, which, run.recipe())
        folders.append(f"checkpoint-{number}")
        for file in (weights_file(folder), folder / DIGESTS_FILE):
            files[f"{folders[-1]}/{file.name}"] = file
    return files, tuple(folders)


def _result(reference: Any) -> Finished:
    import ray
    from ray import exceptions

    try:
        return Finished.model_validate_json(ray.get(reference))
    except exceptions.RayTaskError as error:
        said = str(error)
        if "failed to import on the worker" not in said:
            raise
        node = re.search(r"\bip=([^\s,)]+)", said)
        missing = re.findall(r"^(?:ModuleNotFound|Import)Error: (.+)", said, re.MULTILINE)
        raise MachineError(
            f"cannot import dragoman: {missing[-1] if missing else 'unknown reason'}",
            place=f"node {node[1] if node else ''}".strip(),
            remedy="install there, in the Python that runs Ray: "
            f"pip install 'dragoman[ray]=={VERSION}'",
        ) from error
    except exceptions.RayError as error:
        said = str(error).strip().splitlines()[0]
        raise MachineError(
            f"gave up a unit of work after {ATTEMPTS} attempts: {said}",
            place="Ray",
            remedy="look whether the nodes have enough memory; the same command resumes",
        ) from error


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
    try:
        with redirect_stdout(sys.stderr):  # Ray's words about lost nodes are not a result
            yield
    finally:
        ray.shutdown()


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
