"""Doctor on real hosts: collects every fact that the checks need, from all hosts at once.

This machine keeps the last measurement for `dragoman plan`, by the hosts' addresses and ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import MachineError
from dragoman.base.files import write_whole
from dragoman.base.settings import Section
from dragoman.cluster import ssh
from dragoman.cluster.facts import ClusterFacts, HostFacts, PairFacts
from dragoman.cluster.files import code_digest, read_code, send_code
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.joins import HostJoin, Joins, Message
from dragoman.cluster.lines import FactsRequest, ProbeRequest, ProbeResult

_FACTS_S: Final = 120.0
_REACH_S: Final = 120.0
_MEASURE_S: Final = 180.0
"""How long measuring the network may show no progress. Time bounds its transfers, so the rate of a
link does not matter; a round of pairs takes 6 to 30 s."""
_CLOCK_QUESTIONS: Final = 5


@dataclass(frozen=True, slots=True)
class Collected:
    """Facts of the hosts, and the digest of the code that they have now."""

    facts: ClusterFacts
    code: str


def on_each(hosts: Sequence[Host], act: Callable[[Host], object]) -> dict[str, MachineError]:
    """Do the same for every host at once; returns the errors by host."""
    troubles: dict[str, MachineError] = {}

    def one(host: Host) -> None:
        try:
            act(host)
        except MachineError as error:
            troubles[host.name] = error

    with ThreadPoolExecutor(len(hosts)) as pool:
        try:
            list(pool.map(one, hosts))
        except BaseException:
            ssh.hang_up()  # the pool waits for its threads
            raise
    return troubles


def on_all(hosts: Sequence[Host], act: Callable[[Host], object]) -> None:
    """Do the same for every host at once; raise the first error."""
    for error in on_each(hosts, act).values():
        raise error


def bring_code(hosts: Sequence[Host]) -> tuple[str, dict[str, MachineError]]:
    """Copy the code that runs here to every host; returns its digest, and the errors by host."""
    code = read_code()
    return code_digest(code), on_each(hosts, lambda host: send_code(host, code))


def collect_facts(hosts: Hosts, *, run: str = "") -> Collected:
    """Collect the facts of all hosts, then measure between them.

    run: the run whose files are compared; "" if there is none yet.
    """
    code, troubles = bring_code(hosts.host)
    found: list[HostFacts] = []
    while answering := [host for host in hosts.host if host.name not in troubles]:
        with Joins(answering, code=code) as joins:
            try:
                found = ask(joins, hosts, run=run, measure=True)
            except MachineError as error:  # for example of a host whose Python lacks a package
                named = _named(error)
                if not {host.name for host in answering}.issuperset(named):
                    raise
                troubles |= dict.fromkeys(named, error)
                continue
            able = [one for one in found if one.interface and one.versions["torch"]]
            if len(hosts.host) > 1 and len(able) == len(hosts.host):
                return Collected(_measure(joins, ClusterFacts(hosts=tuple(found)), hosts), code)
            break
    facts = ClusterFacts(
        hosts=tuple(found),
        unreachable={name: error.problem for name, error in troubles.items()},
    )
    return Collected(facts, code)


@contextmanager
def marked(directory: Path) -> Iterator[str]:
    """Inside the block a file with the yielded name is in this directory, and in no other.

    A host that sees the file sees the same directory. Paths and inode numbers cannot show that if
    machines share a disk. Raises MachineError if the file cannot be made.
    """
    path = directory / f".controller-{secrets.token_hex(8)}"
    try:
        with disk_errors_named(directory):
            path.touch()
        yield path.name
    finally:
        path.unlink(missing_ok=True)


def ask(
    joins: Joins, hosts: Hosts, *, run: str = "", mark: str = "", measure: bool = False
) -> list[HostFacts]:
    """Facts of each of the joined hosts, and how far its clock is ahead of most others.

    hosts: all hosts that will train together.
    run: the run whose files are compared, "" if there is none yet.
    mark: the name of the file that `marked` has put into that run's directory here.
    measure: measure the speed of each host's steps, too.
    Raises MachineError if a host does not answer.
    """
    for name, join in joins.of.items():
        peers = tuple(one.address for one in hosts.host if one.address != join.host.address)
        request = FactsRequest(
            host=name,
            interface=join.host.interface,
            peers=peers,
            gpus=join.host.gpus,
            run=run,
            mark=mark,
            ranks=join.host.ranks,
            measure=measure,
        )
        join.tell(request)
    said = joins.each(lambda answer: answer.facts, timeout_s=_FACTS_S)
    # A host goes by the name that the user gave it, not by its own.
    found = [said[name].model_copy(update={"host": name}) for name in joins.of]
    ahead = {name: clock_ahead_s(joins, join) for name, join in joins.of.items()}
    # If two hosts disagree, this machine's own clock decides; it may itself be wrong.
    usual = statistics.median([*ahead.values(), 0.0]) if len(ahead) > 1 else 0.0
    if len(hosts.host) == 1:
        usual = next(iter(ahead.values()))
    return [one.model_copy(update={"clock_offset_s": ahead[one.host] - usual}) for one in found]


def clock_ahead_s(joins: Joins, join: HostJoin) -> float:
    """Seconds that a host's clock is ahead of this machine's, from the quickest of its answers.

    Raises MachineError if it does not answer.
    """
    answers = []
    for _ in range(_CLOCK_QUESTIONS):
        asked = time.time()
        join.tell("time")
        said = joins.each(lambda answer: answer.time, timeout_s=_FACTS_S, of=join.host.name)
        answered = time.time()
        answers.append((answered - asked, said[join.host.name] - (asked + answered) / 2))
    return min(answers)[1]


def _measure(joins: Joins, facts: ClusterFacts, hosts: Hosts) -> ClusterFacts:
    """The facts, extended by which hosts reach each other, and how fast."""
    exposed: dict[str, tuple[str, ...]] = {}
    found = ProbeResult()
    unmeasured: dict[str, str] = {}
    token = secrets.token_hex(8)
    endpoints = tuple(
        (one.interface.address, one.port)
        for one in facts.hosts
        if one.interface is not None and one.port is not None
    )
    for number, host in enumerate(hosts.host):
        joins.of[host.name].tell(
            ProbeRequest(
                number=number,
                ranks=host.ranks,
                token=token,
                on_processor=not host.gpus,
                endpoints=endpoints,
            )
        )
    try:
        closed = joins.each(lambda answer: answer.closed, timeout_s=_REACH_S)
    except MachineError as error:
        unmeasured = dict.fromkeys(_named(error), error.problem)
        return facts.model_copy(update={"unmeasured": unmeasured})
    if not any(closed.values()):
        joins.tell_all("begin")
        last = time.monotonic()
        for message in joins.until_done():
            if message is None:
                if time.monotonic() > last + _MEASURE_S:
                    limit = units.DURATION.text(_MEASURE_S)
                    unmeasured[hosts.host[0].name] = f"no progress for {limit}"
                    break
                continue
            last = time.monotonic()
            # The other hosts would wait long for a host that has failed.
            if trouble := _trouble(joins, message):
                unmeasured[message.host] = trouble
                break
            if message.answer is not None and message.answer.measured is not None:
                exposed[message.host] = message.answer.exposed
                if message.host == hosts.host[0].name:
                    try:
                        found = ProbeResult.model_validate_json(message.answer.measured)
                    except ValidationError:
                        unmeasured[message.host] = "its measurement is not understood"
                        break
    measured = [
        one.model_copy(
            update={
                "closed_ports": closed[one.host],
                "exposed_ports": exposed.get(one.host),
            }
        )
        for one in facts.hosts
    ]
    update = {"hosts": tuple(measured), "unmeasured": unmeasured} | _network(found, hosts)
    return facts.model_copy(update=update)


def _trouble(joins: Joins, message: Message) -> str:
    """Why a host measures no more; "" if it does, or is done."""
    if message.answer is None:
        return joins.of[message.host].failure().problem
    return message.answer.loss.problem if message.answer.loss else ""


def _named(error: MachineError) -> list[str]:
    """The hosts that an error of `Joins` is about: those that did not answer."""
    return str(error.place).split(", ")


def _network(found: ProbeResult, hosts: Hosts) -> dict[str, Any]:
    """The probe's results as fields of ClusterFacts; without rates if the probe did not end."""
    names = dict(enumerate(host.name for host in hosts.host))
    pairs = tuple(
        PairFacts(
            hosts=(names[pair.ranks[0]], names[pair.ranks[1]]), **pair.model_dump(exclude={"ranks"})
        )
        for pair in found.pairs
        if set(pair.ranks) <= names.keys()
    )
    return found.model_dump(exclude={"pairs"}) | {"pairs": pairs}


class LastMeasurement(Section):
    """Facts of the hosts, and when they were measured, in seconds since 1970."""

    time: float
    facts: ClusterFacts


def remember(hosts: Hosts, facts: ClusterFacts) -> None:
    """Keep these facts in place of the last measurement, if all hosts were measured.

    If they cannot be written, they are not kept, and `plan` asks for the missing ones.
    """
    if facts.unreachable or (not facts.pairs and len(hosts.host) > 1):
        return
    with contextlib.suppress(OSError, RuntimeError):
        path = _measurement_file(hosts)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, LastMeasurement(time=time.time(), facts=facts).model_dump_json())


def recall(hosts: Hosts) -> LastMeasurement | None:
    """The last measurement of these hosts; None if there is none that can be read."""
    try:
        return LastMeasurement.model_validate_json(_measurement_file(hosts).read_bytes())
    except (OSError, RuntimeError, ValidationError):
        return None


def _measurement_file(hosts: Hosts) -> Path:
    """The file of a measurement. Raises RuntimeError if the user has no home and no cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    known = json.dumps([[host.address, host.ranks] for host in hosts.host])
    return cache / "dragoman" / f"hosts-{hashlib.sha256(known.encode()).hexdigest()[:16]}.json"
