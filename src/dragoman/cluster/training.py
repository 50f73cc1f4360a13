"""A run over several hosts, as the controller does it.

Everything that a host needs is copied to it by its digest and compared there; nothing starts if
doctor finds something wrong. Then `dragoman join` runs on every host, over ssh (`join_host`). The
first host has the store, in which torchrun's elastic agents meet; its console is shown here. When
the connection to a host ends, everything started there ends too.

If another host is lost, the others go on without it; when it answers again, it is compared and
joins. If the first host is lost, all of this begins again with the others, from the newest
checkpoint that any host or this machine has.
"""

from __future__ import annotations

import json
import queue
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from dragoman.base import units
from dragoman.base.errors import CheckpointError, DragomanError, MachineError
from dragoman.base.files import file_sha256, read_regular
from dragoman.base.terminal import open_console
from dragoman.cluster import ssh
from dragoman.cluster.checkpoints import (
    CHECKPOINTS,
    CheckpointTransfer,
    RunOnHosts,
    newest_checkpoint,
)
from dragoman.cluster.checks import Finding, RunNeeds, examine, is_fit
from dragoman.cluster.collect import (
    ask,
    clock_ahead_s,
    collect_facts,
    marked,
    on_all,
    on_each,
    remember,
)
from dragoman.cluster.doctor_view import print_findings
from dragoman.cluster.facts import ClusterFacts, HostFacts
from dragoman.cluster.files import Content, files_below, read_code, send, send_code, size_bytes
from dragoman.cluster.host_facts import vocabulary_digest
from dragoman.cluster.hosts import HOSTS_FILE, Host, Hosts, record_hosts
from dragoman.cluster.join_host import prefix_digest
from dragoman.cluster.joins import Joins
from dragoman.cluster.lines import TrainRequest
from dragoman.cluster.members import (
    Members,
    Patience,
    Record,
    Returned,
    Severity,
    StopRequests,
)
from dragoman.corpus.manifest import FILE_NAME, Manifest
from dragoman.distributed.launch import InterruptedRunError
from dragoman.recipe.estimate import estimate
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import Alert, EventListener, EventWriter, event_file
from dragoman.training.clock import BUDGET_FILE, Budget, read_budget

_RUN_FILES: Final = ("recipe.toml", "manifest.json", "source.model", "target.model")
_BREATH_S: Final = 3.0
"""Seconds before all begins again, in which a machine notices the loss of its processes."""
_LOOK_EVERY_S: Final = 15.0
"""Seconds between tries of the absent hosts."""
_NOBODY_S: Final = 300.0
"""How long all hosts may be unreachable: this machine's own line may be down."""
_AGAIN_S: Final = 5.0
_CLOCK: Final = "clock"
_ANSWER_S: Final = 20.0
_STORE_S: Final = 60.0
"""How long the first host may take to end an old program and to open the store."""

PrintLine = Callable[[str], None]


class NotFitError(MachineError):
    """Doctor found something that must be fixed first."""

    def __init__(self, findings: Sequence[Finding], facts: ClusterFacts) -> None:
        self.findings = list(findings)
        self.facts = facts
        wrong = [finding for finding in findings if finding.status == "failure"]
        self.hosts = {finding.host for finding in wrong}
        first = wrong[0]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        super().__init__(
            f"{first.check}: {first.found}{more}", place=first.host, remedy=first.remedy
        )

    def show_more(self) -> None:
        """Print doctor's findings."""
        print_findings(self.findings, self.facts, open_console(outlives_reader=True))


def train_on_hosts(
    run: RunDirectory, hosts: Hosts, *, listeners: Sequence[EventListener], print_line: PrintLine
) -> None:
    """Train until the recipe ends the run, from the newest checkpoint on any of the hosts.

    If a host or a worker is lost, the others resume from the last checkpoint: another number of
    ranks reads the same batches. A lost host that answers again is taken in: the others save, and
    all resume together.

    listeners: they receive the events of rank 0.
    print_line: prints messages for people.
    Raises NotFitError; MachineError if training cannot begin, if no host answers for long, or if it
    breaks off again and again without a new checkpoint; InterruptedRunError if the user stopped it;
    and the errors of the workers.
    """
    with StopRequests() as requests:
        if not (run.path / HOSTS_FILE).exists():
            record_hosts(run.path, hosts)  # `resume` uses them after the user has fixed them
        disk = estimate(run.recipe(), world_size=sum(hosts.ranks_per_host)).disk
        collected = collect_facts(hosts)
        remember(hosts, collected.facts)
        _require_fit(collected.facts, RunNeeds(hosts, disk.size_bytes))
        print_line(_network_line(collected.facts))
        record_hosts(run.path, hosts)  # replaces the old record, as these hosts are fit
        _Training(run, hosts, collected.code, requests, listeners, print_line).to_the_end()


def _require_fit(facts: ClusterFacts, needs: RunNeeds) -> None:
    findings = examine(facts, needs)
    if not is_fit(findings):
        raise NotFitError(findings, facts)


class _Returning:
    """Inside the block a thread looks for lost hosts, and gives those that answer what they lack.

    prepare: does the latter; raises MachineError if the host is not there, NotFitError if it must
        not come back.
    """

    def __init__(self, prepare: Callable[[Host], None], absent: Sequence[Host]) -> None:
        self.found: queue.Queue[Returned] = queue.Queue()
        self._prepare = prepare
        self._absent = list(absent)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def look_for(self, host: Host) -> None:
        """Look for one more."""
        self._absent.append(host)

    def __enter__(self) -> _Returning:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(1.0)
        while self._thread.is_alive():
            ssh.hang_up()  # a copy to a host that is wanted no more
            self._thread.join(0.1)

    def _look(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            for host in [*self._absent]:
                error: MachineError | None = None
                try:
                    self._prepare(host)
                except NotFitError as unfit:
                    error = unfit
                except DragomanError:
                    continue
                if not self._over.is_set():
                    self._absent.remove(host)
                    self.found.put(Returned(host, error))


@dataclass(slots=True)
class _Training:
    """The training of a run to its end.

    code: the digest of the code on the hosts.
    has_begun: whether hosts have trained; before, the user must fix what goes wrong.
    facts: of each host that has what it needs, by its name.
    unfit: names of hosts that must not come back.
    """

    run: RunDirectory
    hosts: Hosts
    code: str
    requests: StopRequests
    listeners: Sequence[EventListener]
    print_line: PrintLine
    has_begun: bool = False
    facts: dict[str, HostFacts] = field(default_factory=dict)
    unfit: set[str] = field(default_factory=set)
    patience: Patience = field(default_factory=Patience)

    def to_the_end(self) -> None:
        """Train, again with another first host if one is lost. Raises the error that ends it."""
        present: Sequence[Host] = self.hosts.host
        while True:
            try:
                self._train(present)
                return
            except NotFitError as error:
                self.unfit |= error.hosts
                if not self.has_begun or not self._usable:
                    raise
                self._alert("error", f"{error}; left out from now on")
            except MachineError as error:
                if not self.has_begun or self.patience.is_over:
                    raise
                if not self.patience.lose(newest_checkpoint(self.run.path)):
                    raise
                self._alert("error", str(error))
            time.sleep(_BREATH_S)
            present = self._present()

    @property
    def _usable(self) -> list[Host]:
        return [host for host in self.hosts.host if host.name not in self.unfit]

    def _only(self, hosts: Sequence[Host]) -> Hosts:
        return self.hosts.model_copy(update={"host": tuple(hosts)})

    def _present(self) -> list[Host]:
        """Hosts that accept a login. MachineError if none does for five minutes."""
        deadline = time.monotonic() + _NOBODY_S
        while True:
            troubles = on_each(self._usable, _log_in)
            if len(troubles) < len(self._usable):
                break
            if time.monotonic() > deadline:
                raise next(iter(troubles.values()))
            self.print_line(f"no host answers: {next(iter(troubles.values())).problem}")
            time.sleep(_AGAIN_S)
        for name, error in troubles.items():
            self.facts.pop(name, None)  # it is compared when it is back
            self.print_line(f"{name} is left out until it answers: {error.problem}")
        return [host for host in self._usable if host.name not in troubles]

    def _alert(self, severity: Severity, cause: str, newest: str = "") -> None:
        """Record why the training goes on from a checkpoint, and show it."""
        newest = newest or newest_checkpoint(self.run.path) or "the beginning"
        with EventWriter(self.run.events) as events:
            remedy = f"training goes on from {newest}"
            alert = events.write(Alert(severity=severity, cause=cause, remedy=remedy))
        for listener in self.listeners:
            listener(alert)

    def _train(self, present: Sequence[Host]) -> None:
        """Train on these hosts, and on those that come back, until the training is over.

        Raises WorkerLostError if the first host was lost.
        """
        remote = RunOnHosts(self.run.path, self._only(present))
        fresh = [host for host in present if host.name not in self.facts]
        with ExitStack() as stack:
            joins = stack.enter_context(Joins(fresh, code=self.code))
            budget = read_budget(self.run.path)
            if budget is not None and present[0] in fresh:
                # Rank 0 keeps to it, by the clock of its host.
                budget = budget.by_clock(clock_ahead_s(joins, joins.of[present[0].name]))
            self._bring(remote, budget)
            self._compare(joins, present)
            for host in present:
                joins.open(host)
            with CheckpointTransfer(remote) as transfer:
                is_over = False
                try:
                    with self.requests.deferred(), stack.pop_all():
                        self._follow(joins, present, transfer)
                        is_over = True
                finally:
                    bring_back(
                        transfer,
                        # A run with a budget ends with its export, and no time is left for more.
                        best_alone=is_over and budget is not None,
                        is_unwanted=self.requests.count > 1,
                        print_line=self.print_line,
                    )

    def _follow(self, joins: Joins, present: Sequence[Host], transfer: CheckpointTransfer) -> None:
        """Let the hosts begin, and follow them to the end."""
        absent = [host for host in self._usable if host not in present]
        ordered = {host.name: host for host in [*present, *absent]}
        numbers = {name: number for number, name in enumerate(ordered)}
        first = present[0].name
        card = self.facts[first].interface
        assert card is not None  # doctor has looked
        store = (card.address, 0)
        log = event_file(self.run.events)
        size = log.stat().st_size if log.is_file() else 0
        prefix = (size, prefix_digest(log, size))

        def begin(name: str, token: str, fewest: int) -> None:
            host = ordered[name]
            price = host.paid_per_hour
            joins.of[name].tell(
                TrainRequest(
                    number=numbers[name],
                    ranks=host.ranks,
                    token=token,
                    on_processor=not host.gpus,
                    store=store,
                    fewest=fewest,
                    most=len(ordered),
                    run=transfer.run.place,
                    checkpoint=record.newest or newest_checkpoint(self.run.path),
                    price_per_hour="" if price is None else f"{price} {self.hosts.currency}",
                    log=prefix,
                )
            )
            training = sorted(joins.of, key=lambda one: numbers[one])
            hosts = self._only([ordered[one] for one in training])
            transfer.run = RunOnHosts(self.run.path, hosts)

        def lose(name: str) -> None:
            self.facts.pop(name)
            returning.look_for(ordered[name])

        record = Record(self.run.events, self.listeners, transfer)
        with _Returning(self._take_in, absent) as returning:
            members = Members(
                joins=joins,
                first=first,
                requests=self.requests,
                record=record,
                patience=self.patience,
                begin=begin,
                lost=lose,
                returned=returning.found,
                alert=lambda severity, cause: self._alert(severity, cause, record.newest),
                steps_between_votes=self.run.recipe().distributed.options.steps_between_votes,
            )
            begin(first, members.token, len(present))
            ports = joins.each(lambda answer: answer.port, timeout_s=_STORE_S, of=first)
            store = (card.address, ports[first])
            for host in present[1:]:
                begin(host.name, members.token, len(present))
            self.has_begun = True
            members.until_over(self.run.path)

    def _take_in(self, host: Host) -> None:
        """Give a host that is back what it needs, and compare it with the others.

        Raises MachineError if it is not there, NotFitError if something is wrong with it.
        """
        _log_in(host)
        send_code(host, read_code())
        for place, files in _copies(self.run, f"runs/{self.run.path.name}", None).items():
            send(host, place, files)
        with Joins([host], code=self.code) as joins:
            self._compare(
                joins, [one for one in self.hosts.host if one.name in self.facts] + [host]
            )

    def _compare(self, joins: Joins, hosts: Sequence[Host]) -> None:
        """Compare hosts that come with those that are there. Raises NotFitError.

        joins: the hosts that come. hosts: these and the others.
        """
        if not joins.of:
            return
        together = self._only(hosts)
        with marked(self.run.path) as mark:
            found = ask(joins, together, run=f"runs/{self.run.path.name}", mark=mark)
        known = [self.facts[host.name] for host in hosts if host.name not in joins.of]
        facts = ClusterFacts(hosts=(*known, *found))
        digests = digests_here(self.run) | {"code": self.code}
        needs = RunNeeds(together, needed_bytes=0, digests=digests)
        findings = examine(facts, needs)
        if self.has_begun:  # a clock alone is no reason to do without a host
            for finding in findings:
                if finding.check == _CLOCK and finding.status == "failure":
                    self.print_line(f"{finding.host}: its clock is {finding.found}")
            findings = [finding for finding in findings if finding.check != _CLOCK]
        if not is_fit(findings):
            raise NotFitError(findings, facts)
        self.facts |= {one.host: one for one in found}

    def _bring(self, remote: RunOnHosts, budget: Budget | None) -> None:
        """Copy data, run and checkpoint to every host that lacks them."""
        copies = _copies(self.run, remote.place, budget)

        def bring(host: Host) -> None:
            for place, files in copies.items():
                started = time.monotonic()
                if send(host, place, files):
                    took = units.DURATION.text(time.monotonic() - started)
                    size = units.SIZE.text(size_bytes(files))
                    self.print_line(f"{host.name}: {place}, {size} in {took}")

        on_all(remote.hosts.host, bring)
        try:
            remote.collect()  # what an earlier session left on the hosts
        except CheckpointError as error:
            if not newest_checkpoint(self.run.path):
                raise
            self._alert("warning", str(error))
        on_all(remote.hosts.host, remote.spread)


def _log_in(host: Host) -> None:
    ssh.run(host, ["true"], timeout_s=_ANSWER_S)


def digests_here(run: RunDirectory) -> dict[str, str]:
    """Digests of the files that hosts must have, from this machine's copies."""
    return {
        "recipe": file_sha256(run.recipe_file),
        "vocabulary": vocabulary_digest(run.path),
        "data": Manifest.load(run.prepared()).digest,
    }


def _copies(
    run: RunDirectory, place: str, budget: Budget | None
) -> dict[str, Mapping[str, Content]]:
    """The files that a host needs, by their places there: prepared text and files of the run.

    Downloads, rejected pairs, and whatever a link or a stray file adds stay here.
    """
    prepared = run.prepared()
    manifest = Manifest.load(prepared)
    data_place = f"data/{manifest.digest[:16]}"
    needed = {*manifest.files, FILE_NAME}
    data = {name: file for name, file in files_below(prepared).items() if name in needed}
    record = json.loads(read_regular(run.path / "corpus.json", limit=1 << 20))
    corpus = json.dumps(record | {"prepared": data_place}, indent=1).encode()
    files: dict[str, Content] = {name: run.path / name for name in _RUN_FILES}
    files["corpus.json"] = corpus
    if budget is not None:
        files[BUDGET_FILE] = budget.model_dump_json(indent=1).encode()
    return {data_place: data, place: files}


def bring_back(
    transfer: CheckpointTransfer,
    *,
    best_alone: bool = False,
    is_unwanted: bool = False,
    print_line: PrintLine,
) -> None:
    """Copy checkpoints and logs from every host that still answers.

    best_alone: copy only the best checkpoint; the rest stays on the hosts.
    is_unwanted: the user has said already that all shall end at once.
    If a signal interrupts it, it raises InterruptedRunError, which names the hosts that hold the
    rest. Other errors are only printed.
    """
    run = transfer.run
    try:
        if is_unwanted:
            raise InterruptedRunError("nothing is copied")
        what = "the best checkpoint" if best_alone else "checkpoints"
        print_line(f"bringing {what} and logs here; Ctrl-C leaves them on the hosts")
        transfer.finish(best_alone=best_alone)
    except InterruptedRunError as error:
        what, where = transfer.newest, run.hosts.host[:1]
        if not what or (run.path / CHECKPOINTS / what).is_dir():
            what, where = "the rest", run.hosts.host
        names = ", ".join(host.name for host in where)
        raise InterruptedRunError(
            f"the run was stopped before everything was copied here; {what} is still on {names}, "
            f"in {where[0].folder}/{run.place}/{CHECKPOINTS}",
            place=run.path,
            remedy=f"dragoman train {shlex.quote(str(run.path))} fetches it and resumes",
        ) from error
    except DragomanError as error:
        print_line(f"not everything came back: {error}")


def _network_line(facts: ClusterFacts) -> str:
    if len(facts.hosts) == 1:
        return "1 host answers"
    if facts.all_reduce_bytes_per_s is None:
        return f"{len(facts.hosts)} hosts answer"
    rate = units.BYTE_RATE.text(facts.all_reduce_bytes_per_s)
    return f"{len(facts.hosts)} hosts answer; all-reduce between them: {rate} each way"
