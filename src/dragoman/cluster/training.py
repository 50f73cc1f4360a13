"""A run over several hosts, as the controller does it.

Everything that a host needs is copied to it by its digest and compared there; nothing starts if
doctor finds something wrong. Then every host runs its ranks, events arrive here as they are
written, and when the connection to a host ends, everything started there ends too.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.errors import DragomanError, MachineError
from dragoman.base.files import file_sha256, read_regular
from dragoman.cluster.agent.facts import vocabulary_digest
from dragoman.cluster.agent.spool import prefix_digest
from dragoman.cluster.checkpoints import (
    CHECKPOINTS,
    CheckpointTransfer,
    RunOnHosts,
    newest_checkpoint,
)
from dragoman.cluster.checks import Finding, Wanted, examine, is_fit
from dragoman.cluster.copying import Parcel, directory_parcel
from dragoman.cluster.examine import ask, examine_hosts, marked, on_each
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.hosts import HOSTS_FILE, Host, Hosts, record_hosts
from dragoman.cluster.job import Job, shares
from dragoman.cluster.measured import remember
from dragoman.cluster.members import Members
from dragoman.cluster.team import Team
from dragoman.cluster.watch import (
    BrokenOffError,
    HostsReturnedError,
    Record,
    StopRequests,
    Watch,
)
from dragoman.corpus.manifest import Manifest
from dragoman.distributed.launch import InterruptedRunError
from dragoman.telemetry.events import (
    Alert,
    Event,
    EventListener,
    EventWriter,
)
from dragoman.training.durable import step_number
from dragoman.training.pace import BUDGET_FILE

_RUN_FILES: Final = ("recipe.toml", "manifest.json", "source.model", "target.model")
_MOST_TRIES: Final = 3
"""How often in a row training may break off without a new checkpoint."""
_BREATH_S: Final = 3.0
"""Seconds in which a machine notices that it has lost its processes."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HostRun:
    """A run and its hosts. needed_bytes: of disk on each host; prepared: the shards, here."""

    path: Path
    prepared: Path
    hosts: Hosts
    needed_bytes: int


class NotFitError(MachineError):
    """Doctor found something that must be fixed first."""

    def __init__(self, findings: Sequence[Finding], facts: ClusterFacts) -> None:
        self.findings = list(findings)
        self.facts = facts
        self.hosts = {finding.host for finding in findings if finding.status == "failure"}
        wrong = [finding for finding in findings if finding.status == "failure"]
        first = wrong[0]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        super().__init__(
            f"{first.check}: {first.found}{more}", place=first.host, remedy=first.remedy
        )


def train_on_hosts(run: HostRun, *, listeners: Sequence[EventListener], tell: Tell) -> None:
    """Train until the recipe ends the run, from the newest checkpoint on any of the hosts.

    If a host or a worker is lost, the hosts that answer resume from the last checkpoint: another
    number of ranks reads the same batches. A lost host that answers again is taken in: the others
    save, and all resume together.

    listeners: they receive the events of rank 0.
    tell: prints messages for people.
    Raises NotFitError, BrokenOffError if training breaks off again and again without a new
    checkpoint, InterruptedRunError if the user stopped it, and the errors of the workers.
    """
    with StopRequests() as requests:
        if not (run.path / HOSTS_FILE).exists():
            record_hosts(run.path, run.hosts)  # `resume` uses them after the user has fixed them
        code = _examined(run, tell=tell)
        record_hosts(run.path, run.hosts)  # replaces the old record, as these hosts are fit
        members, tries, reached, begun = Members(run.hosts), 0, -1, False
        while True:
            remote = RunOnHosts(run.path, members.present, code)
            there = replace(run, hosts=members.present)
            severity: str = "error"
            try:
                _train_once(there, remote, members, requests, listeners, tell=tell)
                return
            except HostsReturnedError as error:
                cause, severity = str(error), "info"
            except NotFitError as error:
                if not begun or not members.exclude(error.hosts):
                    raise
                cause = f"{error}; left out from now on"
            except MachineError as error:
                # Before anything has been trained, the user must fix what is wrong.
                if not begun and not isinstance(error, BrokenOffError):
                    raise
                tries = 1 if step_number(newest_checkpoint(run.path)) > reached else tries + 1
                if tries > _MOST_TRIES:
                    raise
                cause = str(error)
            begun = True
            newest = newest_checkpoint(run.path)
            reached = max(step_number(newest), reached)
            goes_on = f"training goes on from {newest or 'the beginning'}"
            _write_alert(run.path, listeners, severity=severity, cause=cause, remedy=goes_on)
            if severity == "error":
                time.sleep(_BREATH_S)
            members.find_present(tell=tell)


def _examined(run: HostRun, *, tell: Tell) -> str:
    """Wait until all hosts are fit and return the digest of their code; else NotFitError."""
    examined = examine_hosts(run.hosts)
    remember(run.hosts, examined.facts)
    _require_fit(examined.facts, Wanted(run.hosts, run.needed_bytes))
    tell(_network_line(examined.facts))
    return examined.code


def _require_fit(facts: ClusterFacts, wanted: Wanted) -> None:
    findings = examine(facts, wanted)
    if not is_fit(findings):
        raise NotFitError(findings, facts)


def _train_once(
    run: HostRun,
    remote: RunOnHosts,
    members: Members,
    requests: StopRequests,
    listeners: Sequence[EventListener],
    *,
    tell: Tell,
) -> None:
    with ExitStack() as stack:
        team = stack.enter_context(Team(run.hosts.host, code=remote.code))
        team.agents[run.hosts.host[0].name].tell("prepare_store")  # while data is being copied
        _bring(run, remote, tell=tell)
        with marked(run.path) as mark:
            facts = ClusterFacts(hosts=tuple(ask(team, run.hosts, run=remote.place, mark=mark)))
        digests = digests_here(run.path, run.prepared) | {"code": remote.code}
        _require_fit(facts, Wanted(run.hosts, needed_bytes=0, digests=digests))
        with CheckpointTransfer(remote) as transfer:
            try:
                with requests.deferred(), stack.pop_all():
                    _work(run, team, transfer, facts, members, listeners, requests)
            finally:
                bring_back(transfer, requests, tell=tell)


def _bring(run: HostRun, remote: RunOnHosts, *, tell: Tell) -> None:
    """Copy data, run and checkpoint to every host that lacks them."""
    parcels = parcels_of(run, remote)

    def bring(host: Host) -> None:
        for parcel in parcels:
            started = time.monotonic()
            if parcel.send(host):
                took = units.DURATION.text(time.monotonic() - started)
                size = units.SIZE.text(parcel.size_bytes)
                tell(f"{host.name}: {parcel.place}, {size} in {took}")

    _raise_first(on_each(run.hosts.host, bring))
    remote.collect()  # what an earlier session left on the hosts
    _raise_first(on_each(run.hosts.host, remote.spread))


def digests_here(run: Path, prepared: Path) -> dict[str, str]:
    """Digests of this machine's copies of what the hosts must have."""
    return {
        "recipe": file_sha256(run / "recipe.toml"),
        "vocabulary": vocabulary_digest(run),
        "data": Manifest.load(prepared).digest,
    }


def parcels_of(run: HostRun, remote: RunOnHosts) -> list[Parcel]:
    """Prepared data by its digest, and the files of the run."""
    data_place = f"data/{Manifest.load(run.prepared).digest[:16]}"
    record = json.loads(read_regular(run.path / "corpus.json", limit=1 << 20))
    corpus = json.dumps(record | {"prepared": data_place}, indent=1).encode()
    files = {name: run.path / name for name in _RUN_FILES}
    if (run.path / BUDGET_FILE).is_file():  # the first host's clock keeps to it
        files[BUDGET_FILE] = run.path / BUDGET_FILE
    return [
        directory_parcel(data_place, run.prepared),
        Parcel(remote.place, {**files, "corpus.json": corpus}),
    ]


def _work(
    run: HostRun,
    team: Team,
    transfer: CheckpointTransfer,
    facts: ClusterFacts,
    members: Members,
    listeners: Sequence[EventListener],
    requests: StopRequests,
) -> None:
    remote = transfer.run
    work = {
        name: request.model_copy(
            update={
                "events": _had(run.path / "events", remote.ranks_of(host)),
                "run": remote.place,
                "checkpoint": newest_checkpoint(run.path),
                "price_per_hour": _price(run.hosts),
            }
        )
        for host, (name, request) in zip(
            run.hosts.host, shares(run.hosts, facts, job="train").items(), strict=True
        )
    }
    record = Record(run.path / "events", listeners, transfer)
    Job.gather(team, work).begin()
    with members.looked_for() as returned:
        Watch(team, requests, record, returned).until_over(run.path)


def _price(hosts: Hosts) -> str:
    price = hosts.price_per_hour
    return "" if price is None else f"{price} {hosts.currency}"


def _had(directory: Path, ranks: range) -> dict[str, tuple[int, str]]:
    """Size and digest of the events that are here, for each of these ranks."""
    had = {}
    for rank in ranks:
        path = directory / f"rank-{rank:04d}.jsonl"
        size = path.stat().st_size if path.is_file() else 0
        had[path.name] = (size, prefix_digest(path, size))
    return had


def bring_back(transfer: CheckpointTransfer, requests: StopRequests, *, tell: Tell) -> None:
    """Copy checkpoints and logs from every host that still answers.

    If a signal interrupts it, it raises InterruptedRunError, which names the hosts that hold the
    rest.
    """
    run = transfer.run
    try:
        tell("bringing checkpoints and logs here; Ctrl-C leaves them on the hosts")
        transfer.finish()
    except InterruptedRunError as error:
        with requests.deferred():
            transfer.give_up()
        what, where = transfer.newest, run.hosts.host[:1]
        if not what or (run.path / CHECKPOINTS / what).is_dir():
            what, where = "what has not come", run.hosts.host
        names = ", ".join(host.name for host in where)
        raise InterruptedRunError(
            f"stopped before all was here; {what} is still on {names}, "
            f"in {where[0].folder}/{run.place}/{CHECKPOINTS}",
            place=run.path,
            remedy=f"dragoman resume {shlex.quote(str(run.path))} brings it and goes on",
        ) from error
    except DragomanError as error:
        tell(f"not everything came back: {error}")


def _write_alert(
    path: Path,
    listeners: Sequence[EventListener],
    *,
    severity: str,
    cause: str,
    remedy: str,
) -> None:
    """Write an alert into the record of rank 0, and pass it to the listeners."""
    with EventWriter(path / "events") as events:
        for listener in listeners:
            events.subscribe(_Unclosed(listener))
        events.write(Alert(severity=severity, cause=cause, remedy=remedy))


class _Unclosed(EventListener):
    """A listener that outlives the writer it listens to."""

    def __init__(self, listener: EventListener) -> None:
        self._listener = listener

    def __call__(self, event: Event) -> None:
        """Pass it on."""
        self._listener(event)

    def close(self) -> None:
        """Do nothing: its owner closes the listener."""


def _raise_first(troubles: dict[str, MachineError]) -> None:
    for error in troubles.values():
        raise error


def _network_line(facts: ClusterFacts) -> str:
    if len(facts.hosts) == 1:
        return "1 host answers"
    if facts.all_reduce_bytes_per_s is None:
        return f"{len(facts.hosts)} hosts answer"
    rate = units.BYTE_RATE.text(facts.all_reduce_bytes_per_s)
    return f"{len(facts.hosts)} hosts answer; all-reduce between them: {rate} each way"
