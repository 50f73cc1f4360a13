"""Doctor's last measurement of some hosts, for `plan`: kept on this machine, by their addresses."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from pydantic import ValidationError

from dragoman.base.files import write_whole
from dragoman.base.settings import Section
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.hosts import Hosts


class Measured(Section):
    """Facts of the hosts, and when they were measured, in seconds since 1970."""

    time: float
    facts: ClusterFacts


def remember(hosts: Hosts, facts: ClusterFacts) -> None:
    """Keep these facts in place of the last measurement, if they contain one.

    If they cannot be written they are not kept, and `plan` asks for what it lacks.
    """
    if not facts.pairs and len(hosts.host) > 1:
        return
    path = _path(hosts)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, Measured(time=time.time(), facts=facts).model_dump_json())


def recall(hosts: Hosts) -> Measured | None:
    """The last measurement of these hosts; None if there is none that can be read."""
    try:
        return Measured.model_validate_json(_path(hosts).read_bytes())
    except (OSError, ValidationError):
        return None


def _path(hosts: Hosts) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    known = json.dumps([[host.address, host.ranks] for host in hosts.host])
    return cache / "dragoman" / f"hosts-{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"
