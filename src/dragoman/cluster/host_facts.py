"""The facts for doctor that this host can find out alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256, read_regular
from dragoman.cluster import network
from dragoman.cluster.facts import PACKAGES, HostFacts, InterfaceFacts
from dragoman.cluster.files import code_digest, read_code
from dragoman.cluster.lines import FactsRequest
from dragoman.cluster.measuring import Measuring
from dragoman.corpus.manifest import FILE_NAME, Manifest, OutputFile, digest_files
from dragoman.distributed.launch import (
    NO_GPUS,
    torchrun_command,
    workers_environment,
)
from dragoman.telemetry import host

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_WRITE_BYTES: Final = 4 << 20
_WRITE_AT_MOST: Final = 16
_WRITE_S: Final = 0.5
_DEVICES_S: Final = 60
_STEPS_S: Final = 90
_INSIDE_S: Final = 60


def gather(request: FactsRequest, measuring: Measuring) -> HostFacts:
    """The facts of this host; its folder is the current directory.

    measuring: used only if the request asks for measurements and this host can train.
    """
    visible, usable, below = _gpus() if request.gpus else (0, 0, {})
    disk = Path.cwd()
    # Without its GPUs it would train on its processor, or hang until the controller gives up.
    able = usable > 0 or not request.gpus
    speed = {}
    if request.measure and able:
        speed = measuring.steps(timeout_s=_STEPS_S) | _inside(request)
    shared_memory_bytes = 0
    with contextlib.suppress(OSError):
        shared_memory_bytes = shutil.disk_usage(_SHARED_MEMORY).total
    return HostFacts(
        host=request.host,
        gpus_visible=visible,
        gpus_usable=usable,
        cpu_cores=host.cpu_cores(),
        versions=_versions() | below,
        digests=_digests(request.run),
        shares_run_directory=bool(request.mark) and (Path(request.run) / request.mark).exists(),
        interface=_interface(request),
        name_resolves_to=network.resolve(socket.gethostname()),
        shared_memory_bytes=shared_memory_bytes,
        disk_free_bytes=shutil.disk_usage(disk).free,
        disk_write_bytes_per_s=_write_speed(disk),
        step_s=speed.get("step_s"),
        flop_per_s=speed.get("flop_per_s"),
        inside_bytes_per_s=speed.get("inside_bytes_per_s"),
    )


def facts_here() -> HostFacts:
    """The facts of this machine, on which a run trains alone: all GPUs, or one rank without them.

    Files of runs go below the current directory.
    """
    visible, _, _ = _gpus()
    request = FactsRequest(
        host="this-machine",
        interface=None,
        peers=(),
        gpus=visible,
        ranks=max(visible, 1),
        measure=_version("torch") is not None,
    )
    with closing(Measuring(ranks=request.ranks, on_processor=not visible)) as measuring:
        return gather(request, measuring)


def _interface(request: FactsRequest) -> InterfaceFacts | None:
    """The interface to the peers. A host without peers needs none but loopback."""
    peers = [address for peer in request.peers for address in network.resolve(peer)]
    name = network.route_to(peers) if request.peers else request.interface or network.LOOPBACK
    return network.interface_facts(name) if name in network.addresses() else None


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    return versions | {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[int, int, dict[str, str | None]]:
    """GPUs that torch sees, those that compute correctly, and the versions of their software."""
    program = [sys.executable, "-P", "-m", "dragoman.distributed.devices"]
    found = _results(program, timeout_s=_DEVICES_S)
    below = {"nccl": found.get("nccl"), "driver": host.gpu_driver_version()}
    return found.get("visible", 0), found.get("usable", 0), below


def _inside(request: FactsRequest) -> dict[str, float]:
    """Rate of all-reduces between this host's ranks; empty if there is one rank or they fail."""
    if request.ranks == 1:
        return {}
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        meeting = Path(folder)
        module = ["dragoman.distributed.link_rate"]
        program = torchrun_command(module, ranks=request.ranks, meeting=meeting)
        environment = workers_environment(request.ranks, meeting)
        environment |= {} if request.gpus else NO_GPUS
        return _results(program, timeout_s=_INSIDE_S, environment=environment)


def _results(
    program: list[str], *, timeout_s: float, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """The results that a program prints as JSON; empty if it fails or takes too long."""
    try:
        done = subprocess.run(
            program, capture_output=True, timeout=timeout_s, check=True, env=environment
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return {}
    return found


def _digests(run_name: str) -> dict[str, str | None]:
    """Digests of the code, and of a run's recipe, data and subword models; None if not readable.

    Without a run here, only that of the code.
    """
    digests: dict[str, str | None] = {"code": code_digest(read_code())}
    if not run_name:
        return digests
    run = Path(run_name)
    if not run.is_dir():  # not copied here yet
        return digests
    digests |= dict.fromkeys(("recipe", "data", "vocabulary"))
    with contextlib.suppress(OSError, ValueError, RecursionError, CorpusError):
        digests["recipe"] = file_sha256(run / "recipe.toml")
        prepared = Path(json.loads(read_regular(run / "corpus.json", limit=1 << 20))["prepared"])
        digests["vocabulary"] = vocabulary_digest(prepared)
        digests["data"] = data_digest(prepared)
    return digests


def vocabulary_digest(folder: Path) -> str:
    """The digest of both subword models in a prepared corpus or a run. Raises OSError."""
    models = [file_sha256(folder / f"{side}.model") for side in ("source", "target")]
    return hashlib.sha256("".join(models).encode()).hexdigest()


def data_digest(prepared: Path) -> str:
    """The digest of a prepared corpus from its present files, not from its manifest.

    Raises OSError if a file is missing, CorpusError if the manifest is missing or broken.
    """
    files = Manifest.load(prepared).files
    found = {
        name: OutputFile(sha256=file_sha256(prepared / name), size_bytes=0)
        for name in files
        if name != FILE_NAME
    }
    return digest_files(found)


def _write_speed(folder: Path) -> float | None:
    """Bytes per second written to the disk; None if nothing can be written."""
    path = folder / f".speed-{os.getpid()}"
    block = os.urandom(_WRITE_BYTES)
    started = time.perf_counter()
    written = 0
    try:
        with path.open("wb") as file:
            while written < _WRITE_AT_MOST and time.perf_counter() - started < _WRITE_S:
                file.write(block)
                written += 1
            file.flush()
            os.fsync(file.fileno())
        return written * _WRITE_BYTES / (time.perf_counter() - started)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
