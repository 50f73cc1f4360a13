"""A Ray cluster on hosts of a lab. Its ports are open to the lab's own network alone."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.laboratory import LabHost

PORT: Final = 6379
_RAY: Final = str(Path(sys.executable).with_name("ray"))
_OF_RAY: Final = ("site-packages/ray/", "-m ray.")
_TRIES: Final = 4
"""Ray gives a node 30 seconds to start, which a busy machine exceeds."""
_OBJECT_BYTES: Final = 200_000_000
_TOKEN: Final = "0123456789abcdef0123456789abcdef"


def why_no_ray() -> str:
    """Why there is no Ray here; empty if there is."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed: pip install 'dragoman[ray]'"
    return ""


def environment(**more: str) -> dict[str, str]:
    """For programs on the hosts: they import what this process imports, and know the token."""
    return {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # by default other work on the machine goes first
        **more,
    }


def start_node(
    host: LabHost, head: LabHost, *, cores: int = 1, pin: Sequence[str] = (), **env: str
) -> None:
    """Let a host be a node of a cluster, of which another one or it is the head.

    pin: words before the command, such as those of taskset.
    """
    where = ["--head", f"--port={PORT}", "--include-dashboard=false"]
    if host is not head:
        where = [f"--address={address_of(head)}"]
    size = [f"--num-cpus={cores}", f"--object-store-memory={_OBJECT_BYTES}"]
    own = [f"--node-ip-address={host.address}", "--temp-dir=/run/ray"]
    words = [*pin, _RAY, "start", *where, *own, *size]
    for tries_left in reversed(range(_TRIES)):
        done = host.run(words, env=environment(**env), timeout_s=240.0, check=not tries_left)
        if done.returncode == 0:
            return
        kill_node(host)


def address_of(head: LabHost) -> str:
    """The value of the option --ray."""
    return f"{head.address}:{PORT}"


def has_task(host: LabHost) -> bool:
    """Whether a process of the host does a task."""
    return any(words[0].startswith("ray::do_task") for words in host.processes().values())


def kill_node(host: LabHost) -> None:
    """End all that Ray runs on a host, without a chance to say so."""
    of_ray = [
        str(number)
        for number, words in host.processes().items()
        if words[0].startswith("ray::") or any(mark in " ".join(words) for mark in _OF_RAY)
    ]
    host.run(["kill", "-9", *of_ray], check=False)
