"""A run over several hosts, seen from where the user sits.

Everything that a host needs is brought to it by its digest and compared there; nothing starts where
doctor finds something wrong. Then every host runs its ranks, events come here as they are written,
and when the connection to a host ends, what was started there ends too.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from dragoman import units
from dragoman.cluster.agent.spool import prefix_digest
from dragoman.cluster.checkpoints import Courier, RunOnHosts
from dragoman.cluster.checks import Finding, Wanted, examine, is_fit
from dragoman.cluster.copying import Parcel, directory_parcel
from dragoman.cluster.examine import compare_files, examine_hosts, on_each
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.job import Job, shares
from dragoman.cluster.team import DONE, GONE, Message, Team
from dragoman.corpus.manifest import Manifest
from dragoman.errors import DragomanError, MachineError
from dragoman.launch import InterruptedRunError, WorkerError
from dragoman.telemetry.events import CheckpointWritten, Event, EventListener, read_line

_SAVE_S: Final = 60.0
"""How long workers may save and end after they were asked to, before they are killed."""
_MOURN_S: Final = 5.0
"""How long after one host's failure those of the others are waited for, to name the cause."""
_RUN_FILES: Final = ("recipe.toml", "manifest.json", "source.model", "target.model")
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED: Final = InterruptedRunError.exit_code
_WEIGHTS: Final = {"own": 0, "lost": 1, "signal": 2, "other": 3}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HostRun:
    """What to train where. needed_bytes: of disk on each host; prepared: the shards, here."""

    path: Path
    prepared: Path
    hosts: Hosts
    needed_bytes: int


class NotFitError(MachineError):
    """Doctor found something that must be put right first."""

    def __init__(self, findings: Sequence[Finding], facts: ClusterFacts) -> None:
        self.findings = list(findings)
        self.facts = facts
        wrong = [finding for finding in findings if finding.status == "failure"]
        first = wrong[0]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        super().__init__(
            f"{first.check}: {first.found}{more}", place=first.host, remedy=first.remedy
        )


def train_on_hosts(run: HostRun, *, listeners: Sequence[EventListener], tell: Tell) -> None:
    """Train until the recipe says stop, from the newest checkpoint that any of the hosts has.

    listeners: they see the events of rank 0. tell: what is being done, for people.
    Raises NotFitError, MachineError where a host is lost, InterruptedRunError where the user
    stopped it, and what the workers raise.
    """
    examined = examine_hosts(run.hosts)
    findings = examine(examined.facts, Wanted(run.hosts, run.needed_bytes))
    tell(_network_line(examined.facts))
    if not is_fit(findings):
        raise NotFitError(findings, examined.facts)
    remote = RunOnHosts(run.path, run.hosts, examined.code)
    _bring(run, remote, tell=tell)
    compared = compare_files(run.hosts, code=examined.code, run=remote.place)
    findings = examine(compared, Wanted(run.hosts, needed_bytes=0))
    if not is_fit(findings):
        raise NotFitError(findings, compared)
    try:
        _work(run, remote, examined.facts, listeners)
    finally:
        tell("bringing checkpoints and logs here")
        _bring_back(remote, tell)


def _bring(run: HostRun, remote: RunOnHosts, *, tell: Tell) -> None:
    """Give every host data, run and checkpoint, where it lacks them."""
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


def parcels_of(run: HostRun, remote: RunOnHosts) -> list[Parcel]:
    """Prepared data by its digest, and the files of the run."""
    data_place = f"data/{Manifest.load(run.prepared).digest[:16]}"
    record = json.loads((run.path / "corpus.json").read_text(encoding="utf-8"))
    corpus = json.dumps(record | {"prepared": data_place}, indent=1).encode()
    files = {name: run.path / name for name in _RUN_FILES}
    return [
        directory_parcel(data_place, run.prepared),
        Parcel(remote.place, {**files, "corpus.json": corpus}),
    ]


def _work(
    run: HostRun,
    remote: RunOnHosts,
    facts: ClusterFacts,
    listeners: Sequence[EventListener],
) -> None:
    requests = {
        name: request.model_copy(
            update={
                "events": _had(run.path / "events", remote.ranks_of(host)),
                "run": remote.place,
                "checkpoint": remote.newest(),
            }
        )
        for host, (name, request) in zip(
            run.hosts.host, shares(run.hosts, facts, job="train").items(), strict=True
        )
    }
    with ExitStack() as stack:
        requested = stack.enter_context(_stop_requests())
        courier = stack.enter_context(Courier(remote))
        record = _Record(run.path / "events", listeners, courier)
        team = stack.enter_context(Team(run.hosts.host, code=remote.code, verb="work"))
        job = Job.gather(team, requests)
        job.begin()
        _Watch(team, requested, record).until_over(run.path)


@dataclass(slots=True)
class _Watch:
    """Listens until every host is done, and decides when the others must end."""

    team: Team
    requested: list[int]
    record: _Record
    failures: list[tuple[int, int, DragomanError]] = field(default_factory=list)
    interrupted: bool = False
    _told: int = 0
    _kill_at: float = float("inf")

    def until_over(self, path: Path) -> None:
        """Return when all hosts came to the end; raise the likeliest cause where not."""
        for message in self.team.until_done(tick_s=0.2):
            if message is not None:
                self._see(message)
            self._heed_user()
            if time.monotonic() > self._kill_at:
                self._kill_at = float("inf")
                self.team.tell_all("kill")
        if self.failures:
            raise min(self.failures, key=lambda failure: failure[:2])[2]
        if self.interrupted:
            raise InterruptedRunError(
                "stopped; everything is saved", place=path, remedy=f"dragoman resume {path} goes on"
            )

    def _see(self, message: Message) -> None:
        if message.what == "events":
            self.record.append(message.values["file"], message.values["text"])
        elif message.what == GONE:
            self._fail("lost", self.team.agents[message.host].failure())
        elif message.what == DONE and message.values["exit_code"] == _INTERRUPTED:
            self.interrupted = True
        elif message.what == DONE and message.values["exit_code"]:
            problem = f"{message.host}: {message.values['problem']}"
            weight = message.values["weight"]
            self._fail(weight, WorkerError(problem, message.values["exit_code"]))

    def _fail(self, weight: str, error: DragomanError) -> None:
        if not self.failures:
            # Those that wait for the failed one in a collective will not heed a request to stop.
            self.team.tell_all("stop")
            self._kill_at = time.monotonic() + _MOURN_S
        self.failures.append((_WEIGHTS[weight], len(self.failures), error))

    def _heed_user(self) -> None:
        if len(self.requested) > self._told:
            self.team.tell_all("kill" if self._told else "stop")
            self._told = len(self.requested)
            self._kill_at = min(self._kill_at, time.monotonic() + _SAVE_S)


class _Record:
    """Events as they come: into the run's own files, and rank 0's to who listens."""

    def __init__(
        self, directory: Path, listeners: Sequence[EventListener], courier: Courier
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._listeners = listeners
        self._courier = courier

    def append(self, name: str, text: str) -> None:
        """Take over whole lines of one file."""
        lines = text.encode()
        with (self._directory / Path(name).name).open("ab") as file:
            file.write(lines)
        for event in filter(None, map(read_line, lines.splitlines())):
            if event.rank == 0:
                self._see(event)

    def _see(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
        if event.kind == CheckpointWritten.kind:
            self._courier.want(Path(event.payload["path"]).name)


def _had(directory: Path, ranks: range) -> dict[str, tuple[int, str]]:
    """Size and digest of what is here of the events of these ranks."""
    had = {}
    for rank in ranks:
        path = directory / f"rank-{rank:04d}.jsonl"
        size = path.stat().st_size if path.is_file() else 0
        had[path.name] = (size, prefix_digest(path, size))
    return had


def _bring_back(remote: RunOnHosts, tell: Tell) -> None:
    """Checkpoints and logs of every host that still answers."""
    try:
        remote.collect()
        for host in remote.hosts.host:
            remote.fetch_directory(host, "logs", remote.path / "logs" / host.name)
    except DragomanError as error:
        tell(f"not everything came back: {error}")


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """The SIGINT and SIGTERM that came, which do nothing else inside the block."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, receive) for number in _STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_first(troubles: dict[str, MachineError]) -> None:
    for error in troubles.values():
        raise error


def _network_line(facts: ClusterFacts) -> str:
    if facts.all_reduce_bytes_per_s is None:
        return f"{len(facts.hosts)} hosts answer"
    rate = units.BYTE_RATE.text(facts.all_reduce_bytes_per_s)
    return f"{len(facts.hosts)} hosts answer; all-reduce between them: {rate} each way"
