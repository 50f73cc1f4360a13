"""A run over several hosts, as the controller does it.

Everything that a host needs is copied to it by its digest and compared there; nothing starts if
doctor finds something wrong. Then every host runs its ranks, events arrive here as they are
written, and when the connection to a host ends, everything started there ends too.

An attempt to train on the hosts that are present is followed by another one, from the newest
checkpoint that any host or this machine has,

- if absent hosts answer again, and the others have saved for them;
- if a host or a worker was lost: without the hosts that do not answer;
- if doctor rejects hosts, and there was an earlier attempt: without them for good.
"""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from dragoman.base import units
from dragoman.base.errors import CheckpointError, DragomanError, MachineError
from dragoman.base.files import file_sha256, read_regular
from dragoman.base.terminal import open_console
from dragoman.cluster import ssh
from dragoman.cluster.agent.facts import vocabulary_digest
from dragoman.cluster.agent.work import prefix_digest
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
from dragoman.cluster.facts import ClusterFacts
from dragoman.cluster.files import Content, files_below, send, size_bytes
from dragoman.cluster.follow import HostFollower, Record, StopRequests, WorkerLostError
from dragoman.cluster.hosts import HOSTS_FILE, Host, Hosts, record_hosts
from dragoman.cluster.team import Team, shares
from dragoman.corpus.manifest import FILE_NAME, Manifest
from dragoman.distributed.launch import InterruptedRunError
from dragoman.recipe.estimate import estimate
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import Alert, EventListener, EventWriter, event_file
from dragoman.training.clock import BUDGET_FILE, Budget, read_budget
from dragoman.training.durable import step_number

_RUN_FILES: Final = ("recipe.toml", "manifest.json", "source.model", "target.model")
_MOST_IN_VAIN: Final = 3
"""How many times in a row training may break off at the same checkpoint and be tried again."""
_BREATH_S: Final = 3.0
"""Seconds before the next attempt, in which a machine notices the loss of its processes."""
_LOOK_AFTER_S: Final = 15.0
"""Seconds between tries of the absent hosts; doubled after each attempt without all hosts."""
_LOOK_AT_MOST_S: Final = 900.0
_NOBODY_S: Final = 300.0
"""How long all hosts may be unreachable: this machine's own line may be down."""
_AGAIN_S: Final = 5.0
_ANSWER_S: Final = 20.0

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

    If a host or a worker is lost, the hosts that answer resume from the last checkpoint: another
    number of ranks reads the same batches. A lost host that answers again is taken in: the others
    save, and all resume together.

    listeners: they receive the events of rank 0.
    print_line: prints messages for people.
    Raises NotFitError; MachineError if the first attempt cannot begin, if no host answers for long,
    or if training breaks off again and again without a new checkpoint; InterruptedRunError if the
    user stopped it; and the errors of the workers.
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
        _Training(run, Members(hosts), collected.code, requests, listeners, print_line).to_the_end()


def _require_fit(facts: ClusterFacts, needs: RunNeeds) -> None:
    findings = examine(facts, needs)
    if not is_fit(findings):
        raise NotFitError(findings, facts)


class Members:
    """The hosts of a run: those that are present, and those that must not come back.

    present: in the order of hosts.toml, in which ranks are counted.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.present = hosts
        self._all = hosts
        self._unfit: set[str] = set()
        self._pause_s = _LOOK_AFTER_S

    @property
    def absent(self) -> list[Host]:
        """Hosts that may come back."""
        there = {host.name for host in self.present.host} | self._unfit
        return [host for host in self._all.host if host.name not in there]

    def exclude(self, names: set[str]) -> bool:
        """Go on without hosts of these names for good; False if no host would be left."""
        self._unfit |= names
        return any(host.name not in self._unfit for host in self._all.host)

    def find_present(self, *, print_line: PrintLine) -> None:
        """Hosts that accept a login become present. MachineError if none does for five minutes."""
        deadline = time.monotonic() + _NOBODY_S
        while True:
            asked = [host for host in self._all.host if host.name not in self._unfit]
            troubles = on_each(asked, _log_in)
            if len(troubles) < len(asked):
                break
            if time.monotonic() > deadline:
                raise next(iter(troubles.values()))
            print_line(f"no host answers: {next(iter(troubles.values())).problem}")
            time.sleep(_AGAIN_S)
        for name, error in troubles.items():
            print_line(f"{name} is left out until it answers: {error.problem}")
        left = tuple(host for host in asked if host.name not in troubles)
        self.present = self._all.model_copy(update={"host": left})

    @contextmanager
    def looked_for(self) -> Iterator[Callable[[], Sequence[str]]]:
        """Inside the block a thread tries the absent hosts over ssh until one round finds some that
        answer. Yields a function that returns their names."""
        absent, back, over = self.absent, list[str](), threading.Event()
        if not absent:
            yield tuple
            return
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LOOK_AT_MOST_S)

        def look() -> None:
            while not back and not over.wait(pause_s):
                back.extend(
                    host.name
                    for host in absent
                    if not over.is_set() and not on_each([host], _log_in)
                )

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield lambda: back
        finally:
            over.set()
            thread.join()


def _log_in(host: Host) -> None:
    ssh.run(host, ["true"], timeout_s=_ANSWER_S)


@dataclass(slots=True)
class _Training:
    """The training of a run, attempt after attempt.

    code: the digest of the code on the hosts.
    is_first: whether this is the first attempt, in which the user must fix what goes wrong.
    """

    run: RunDirectory
    members: Members
    code: str
    requests: StopRequests
    listeners: Sequence[EventListener]
    print_line: PrintLine
    is_first: bool = True

    def to_the_end(self) -> None:
        """Make attempts until one finishes. Raises the error that ends the training."""
        in_vain, reached = 0, -1
        while True:
            try:
                returned = self._train()
                if not returned:
                    return
                self._alert("info", f"{', '.join(returned)}: answers again")
            except NotFitError as error:
                if self.is_first or not self.members.exclude(error.hosts):
                    raise
                self._alert("error", f"{error}; left out from now on")
                time.sleep(_BREATH_S)
            except MachineError as error:
                if self.is_first and not isinstance(error, WorkerLostError):
                    raise
                newest = step_number(newest_checkpoint(self.run.path))
                in_vain = 1 if newest > reached else in_vain + 1
                if in_vain > _MOST_IN_VAIN:
                    raise
                self._alert("error", str(error))
                time.sleep(_BREATH_S)
            self.is_first = False
            reached = max(step_number(newest_checkpoint(self.run.path)), reached)
            self.members.find_present(print_line=self.print_line)

    def _alert(self, severity: Literal["info", "warning", "error"], cause: str) -> None:
        """Record why the training goes on from a checkpoint, and show it."""
        newest = newest_checkpoint(self.run.path) or "the beginning"
        with EventWriter(self.run.events) as events:
            remedy = f"training goes on from {newest}"
            alert = events.write(Alert(severity=severity, cause=cause, remedy=remedy))
        for listener in self.listeners:
            listener(alert)

    def _train(self) -> Sequence[str]:
        """Train on the present members. Returns the names of the absent hosts that answer again, if
        the others have ended for them; none if the training is over."""
        hosts = self.members.present
        remote = RunOnHosts(self.run.path, hosts)
        with ExitStack() as stack:
            team = stack.enter_context(Team(hosts.host, code=self.code))
            budget = read_budget(self.run.path)
            if budget is not None:  # rank 0 keeps to it, by the clock of its host
                budget = budget.by_clock(clock_ahead_s(team, hosts.host[0]))
            self._bring(remote, budget)
            with marked(self.run.path) as mark:
                facts = ClusterFacts(hosts=tuple(ask(team, hosts, run=remote.place, mark=mark)))
            digests = digests_here(self.run) | {"code": self.code}
            _require_fit(facts, RunNeeds(hosts, needed_bytes=0, digests=digests))
            with CheckpointTransfer(remote) as transfer:
                is_over = False
                try:
                    with self.requests.deferred(), stack.pop_all():
                        record = Record(self.run.events, self.listeners, transfer)
                        self._begin(team, remote, facts)
                        with self.members.looked_for() as returned:
                            votes = self.run.recipe().distributed.options.steps_between_votes
                            follower = HostFollower(team, self.requests, record, returned, votes)
                            names = follower.until_over(self.run.path)
                            is_over = not names
                            return names
                finally:
                    bring_back(
                        transfer,
                        # A run with a budget ends with its export, and no time is left for more.
                        best_alone=is_over and budget is not None,
                        print_line=self.print_line,
                    )

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

    def _begin(self, team: Team, remote: RunOnHosts, facts: ClusterFacts) -> None:
        """Give every host its share, upon which it joins the training."""
        price = remote.hosts.price_per_hour
        log = event_file(self.run.events)
        size = log.stat().st_size if log.is_file() else 0
        requests = shares(
            remote.hosts,
            facts,
            job="train",
            run=remote.place,
            checkpoint=newest_checkpoint(self.run.path),
            price_per_hour="" if price is None else f"{price} {remote.hosts.currency}",
            log=(size, prefix_digest(log, size)),
        )
        for name, request in requests.items():
            team.agents[name].tell(request)


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
    print_line: PrintLine,
) -> None:
    """Copy checkpoints and logs from every host that still answers.

    best_alone: copy only the best checkpoint; the rest stays on the hosts.
    If a signal interrupts it, it raises InterruptedRunError, which names the hosts that hold the
    rest. Other errors are only printed.
    """
    run = transfer.run
    try:
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
