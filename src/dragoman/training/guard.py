"""Warns when steps take longer than they should, with the cause and the cost.

All ranks together find out which rank is slow, or which rate the network has now.
"""

from __future__ import annotations

import math
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.printable import first_of
from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.link_rate import measure_directions, measure_link
from dragoman.distributed.topology import Topology, find_topology
from dragoman.distributed.world import World
from dragoman.telemetry.events import (
    LASTS_S,
    STRAGGLER_RATIO,
    Alert,
    LinkChanged,
    Payload,
)
from dragoman.telemetry.host import (
    DISTURBING_SHARE,
    HourlyPrice,
    collective_interface,
    interface_counters,
    nominal_bits_per_s,
)
from dragoman.telemetry.sampler import MachineProbe

WINDOW_STEPS: Final = 10
_CALM_S: Final = 30.0
"""Steps are normal again when they have been for so long: otherwise slow steps that come and go,
as on a machine that others use, would be told each time."""
_FEWEST_STEPS: Final = 5
"""Least steps of a window that is judged because a periodic wait has just ended."""
_KNOWN_WAITS: Final = 2
_KEPT_WAITS: Final = 3
"""Exchanges whose median counts: one long wait alone is not a slow network."""
_USUAL_WINDOWS: Final = 20
"""Windows without a complaint whose median is the usual time."""
_MOST: Final = 0.75
"""Share of the steps since a change that must show it."""
TOLERATED: Final = 1.5
"""If steps take more than this multiple of the expected time, the cause matters."""
NORMAL: Final = 1.2
"""Slow steps are normal again below this multiple. It is lower than `TOLERATED`: otherwise steps
that hover near that limit would be slow and normal in turn."""
SLOW_STEPS: Final = "slow steps"
"""What all alerts of the guard about the time of a step are about: each replaces the one before."""
_WARM_STEPS: Final = 5
SEE_CARD: Final = "look at the cable, the port of the switch and ethtool on that host"
_LOOK_AT: Final = "look at what else runs on {}, and whether heat slows its processor or GPU"
_CHOOSE: Final = 'compare strategies with dragoman plan, or set distributed.strategy = "auto"'
WAITS: Final = 0.3
"""A wait of more than this share of the steps' time is the cause."""
_WORTH_A_WORD_S: Final = 600.0
"""If waits are as long as ever, alert only if the rest of the run would lose at least this."""


@dataclass(frozen=True, slots=True)
class Card:
    """The network card that the collectives use. nominal_bits_per_s: None if it claims none."""

    interface: str
    carrier_changes: int
    nominal_bits_per_s: float | None

    @classmethod
    def read(cls) -> Card | None:
        """The card's present state; None if there is no card."""
        interface = collective_interface()
        counters = None if interface is None else interface_counters(interface)
        if interface is None or counters is None:
            return None
        return cls(interface, counters["carrier_changes"], nominal_bits_per_s(interface))

    def since(self, before: Card) -> str:
        """The changes since then, in words; "" if there are none."""
        was, now = before.nominal_bits_per_s, self.nominal_bits_per_s
        if was is not None and now is not None and was != now:
            speeds = f"{units.BIT_RATE.text(now)}, {units.BIT_RATE.text(was)} before"
            return f"{self.interface} now runs at {speeds}"
        if self.carrier_changes != before.carrier_changes:
            return f"the cable of {self.interface} was out"
        return ""


@dataclass(frozen=True, slots=True)
class Window:
    """The median step among the last ones of one rank: seconds of its own work, which include the
    wait for data, and of waiting for other ranks and the network.

    cpu_share, own_cpu_share: the shares of the processors that were busy, and that this rank used;
    0 if the rank computes on a GPU, or the system does not tell.
    """

    rank: int
    host: str
    own_s: float
    waited_s: float
    data_wait_s: float
    cpu_share: float = 0.0
    own_cpu_share: float = 0.0

    @property
    def waited_share(self) -> float:
        """The share of the step spent waiting for other ranks and the network."""
        return self._share(self.waited_s)

    @property
    def data_wait_share(self) -> float:
        """The share of the step spent waiting for data."""
        return self._share(self.data_wait_s)

    def _share(self, seconds_s: float) -> float:
        step_s = self.own_s + self.waited_s
        return seconds_s / step_s if step_s else 0.0

    @property
    def name(self) -> str:
        """The rank and its host."""
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True, slots=True)
class Slowness:
    """Steps became slower than expected, or as fast as expected again.

    slow: whether they became slower. steps, left: their time, and that of the rest of the run, in
    words; left is "" if a budget decides when the run ends.
    card: changes of the network card since then.
    from_start: the first steps were slow already, so the usual time is not known.
    on_hosts: whether several machines train, each of which loses the time.
    """

    slow: bool
    steps: str
    left: str
    since_step: int
    since: float
    card: str = ""
    from_start: bool = False
    on_hosts: bool = False

    @property
    def began(self) -> str:
        """Since when it is so, in words."""
        return f"since step {units.COUNT.text(self.since_step)}, {units.time_of_day(self.since)}"

    @property
    def cost(self) -> str:
        """The time that the rest of the run will take, as a sentence."""
        if not self.left:
            return "The budget holds: the run gets fewer steps"
        return f"{'On every machine, the' if self.on_hosts else 'The'} rest will take {self.left}"


@dataclass(slots=True)
class _Steps:
    """Some consecutive steps: the first, when it began, their number, and seconds of one.

    data_wait_s, waited_s: the part of these seconds that was spent waiting for data, and for other
        ranks and the network; the latter is read only when steps are judged, because a GPU has to
        be waited for.
    met: all ranks have met after them.
    """

    first: int
    began: float
    steps: int
    step_s: float
    data_wait_s: float = 0.0
    waited_s: float = 0.0
    met: bool = True


@dataclass
class StepGuard:
    """Watches the last ten steps of this rank.

    expected_s: the time of a step by the plan; without a plan, the usual time: the median of
    windows that were not slow. A network that was slow from the beginning is reported, too, by how
    long the first steps waited for it.

    The time of the median step counts. It would miss the waits of strategies that wait only now and
    then. For these, the time is the median without waits, plus the mean wait per step between two
    exchanges (the median of the last three such means).

    judges_steps: one rank judges for all; the others report only slow first steps, which they may
        see alone.
    watches_card: one rank of each host watches its network card.
    price: the cost of all machines together per hour; None if it is not known.
    alone: whether there is no other rank to ask why steps are slow; otherwise the slowness is kept
        in `slowness` until all ranks have met to find the cause.
    has_budget: a budget decides when the run ends, so slow steps cost no time but other steps.
    on_processor: the rank computes on processors, which other programs may use as well.
    """

    sync: GradientSync
    max_steps: int
    expected_s: float | None = None
    judges_steps: bool = True
    watches_card: bool = True
    price: HourlyPrice | None = None
    rank: int = 0
    alone: bool = True
    has_budget: bool = False
    on_processor: bool = False
    slowness: Slowness | None = field(default=None, init=False)
    last: Window = field(init=False)
    _processors: MachineProbe | None = field(init=False)
    _planned: bool = field(default=False, init=False)
    _usual_s: list[float] = field(default_factory=list, init=False)
    _window: list[_Steps] = field(default_factory=list, init=False)
    """The updates since steps were last judged."""
    _recent: deque[_Steps] = field(default_factory=deque, init=False)
    """The updates of the last two windows."""
    _steps: int = field(default=-_WARM_STEPS, init=False)
    """Steps of the window."""
    _told_s: float | None = field(default=None, init=False)
    _turn: _Steps | None = field(default=None, init=False)
    """The turn to slower steps, or back to normal ones, until these have lasted."""
    _lasted_s: float = field(default=0.0, init=False)
    """How long they have."""
    _turned_at: int = field(default=0, init=False)
    """The first step of the last change that was found: the next one comes after it."""
    _card: Card | None = field(default=None, init=False)
    _first: _Steps | None = field(default=None, init=False)
    """The first update of this process."""
    _since_met: list[_Steps] | None = field(default=None, init=False)
    """The updates since all ranks met; None until they have met once."""
    _waits: deque[_Steps] = field(
        default_factory=lambda: deque[_Steps](maxlen=_KEPT_WAITS), init=False
    )
    """The mean wait of a step between two exchanges, for each pair of exchanges."""
    _know_waits: bool = field(default=False, init=False)
    _start_is_judged: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._card = Card.read()
        self._host = socket.gethostname()
        # Other programs hardly slow down a GPU, and only Linux tells of them.
        looks = self.on_processor and sys.platform == "linux"
        self._processors = MachineProbe(disk=Path()) if looks else None
        self._planned = self.expected_s is not None
        self.last = Window(self.rank, self._host, 0.0, 0.0, 0.0)

    def learn_anew(self) -> None:
        """Forget which time of a step was planned or usual: a stage with other text begins."""
        self.expected_s, self._planned = None, False
        self._usual_s.clear()
        self._told_s = self._turn = None
        self._window.clear()
        self._recent.clear()
        self._since_met = None
        self._steps = -_WARM_STEPS

    def see(self, *, step: int, seconds_s: float, data_wait_s: float) -> Alert | None:
        """Add the update that ends at `step`; returns an alert if one is due."""
        self.sync.waits.end_lap()
        self._steps += 1
        update = _Steps(
            step,
            time.time() - seconds_s,
            1,
            seconds_s,
            data_wait_s=data_wait_s,
            met=self.sync.settled,
        )
        if self._first is None:
            self._first = update
        if self._steps <= 0:
            return None
        self._window.append(update)
        self._recent.append(update)
        enough = _FEWEST_STEPS if self.sync.period > 1 and update.met else WINDOW_STEPS
        if self._steps < enough or len(self._window) < 2:
            return None
        step_s = self._step_s()
        changed = self._card_changed()
        left = self.max_steps - step
        if self.judges_steps:
            alert = self._judge(step_s, left, changed)
        else:
            alert = self._judge_the_start(step_s, left)
        if alert is None and self.slowness is None and changed and self.watches_card:
            cause = f"{changed} on {self._host}"
            alert = Alert(severity="warning", cause=cause, remedy=SEE_CARD)
        while len(self._recent) > 2 * len(self._window):
            self._recent.popleft()
        self._window.clear()
        self._steps = 0
        return alert

    def _step_s(self) -> float:
        """Seconds of a step in this window; `last` is set to the median step.

        If all steps wait alike, a few odd ones are noise. If only some steps wait for other ranks,
        the result is the median step without its wait, plus the mean wait per step between two
        exchanges.
        """
        waits_s = self.sync.waits.laps_s(self.sync.waits.laps - len(self._window))
        for update, waited_s in zip(self._window, waits_s, strict=True):
            update.waited_s = waited_s
        own_s = statistics.median(update.step_s - update.waited_s for update in self._window)
        if self.sync.period > 1:
            for update in self._window:
                self._note_exchange(update)
            waited_s = self._wait_s
            step_s = own_s + waited_s
        else:
            waited_s = statistics.median(update.waited_s for update in self._window)
            steps_s = [update.step_s for update in self._window]
            all_but_slowest_s = (sum(steps_s) - max(steps_s)) / (len(steps_s) - 1)
            step_s = min(all_but_slowest_s, statistics.median(steps_s))
        data_wait_s = statistics.median(update.data_wait_s for update in self._window)
        shares = self._cpu_shares()
        self.last = Window(self.rank, self._host, max(own_s, 0.0), waited_s, data_wait_s, *shares)
        return step_s

    def _cpu_shares(self) -> tuple[float, float]:
        """The shares of the processors that were busy and that this rank used, since the last
        call."""
        if self._processors is None:
            return 0.0, 0.0
        busy, others = self._processors.cpu_shares()
        return busy, busy - (others or 0.0)

    def _note_exchange(self, update: _Steps) -> None:
        """Record the mean wait of a step between two exchanges, if one ended with this update."""
        if self._since_met is not None:
            self._since_met.append(update)
        if not update.met:
            return
        if self._since_met:
            first, steps = self._since_met[0], len(self._since_met)
            all_s = sum(passed.waited_s for passed in self._since_met)
            self._waits.append(_Steps(first.first, first.began, steps, all_s / steps))
            if len(self._waits) == _KNOWN_WAITS and not self._know_waits:
                # Until now a step was judged without its waits.
                self._know_waits = True
                self._usual_s.clear()
                self.expected_s = self.expected_s if self._planned else None
                self._told_s = self._turn = None
                self._start_is_judged = False
        self._since_met = []

    @property
    def _wait_s(self) -> float:
        """Mean wait of a step in the last exchanges; 0 if too few have passed, or if each step
        waits."""
        return statistics.median(wait.step_s for wait in self._waits) if self._know_waits else 0.0

    def _judge(self, step_s: float, left: int, changed: str) -> Alert | None:
        first = not self._start_is_judged
        self._start_is_judged = True
        expected_s = step_s if self.expected_s is None else self.expected_s
        if self._told_s is not None and step_s <= NORMAL * expected_s:
            return self._judge_the_end(self._told_s, step_s)
        if step_s <= TOLERATED * (self._told_s or expected_s):
            if self._told_s is not None or step_s <= NORMAL * expected_s:
                self._turn = None
            if self._told_s is not None:
                return None
            if not self._planned and len(self._usual_s) < _USUAL_WINDOWS:
                self._usual_s.append(step_s)
                self.expected_s = statistics.median(self._usual_s)
            return self._slow_from_the_start(step_s, left) if first and not self._planned else None
        if (turn := self._lasting(expected_s, step_s, LASTS_S)) is None:
            return None
        self._told_s = turn.step_s
        by = "planned" if self._planned else "usual"
        steps = self._window[-1].first - turn.first + 1
        took = f"the last {steps} steps took {units.STEP_TIME.text(turn.step_s)}, "
        took += f"{units.STEP_TIME.text(expected_s)} was {by}"
        cost = self._cost(turn.step_s, expected_s, left)
        return self._say(Slowness(True, took, cost, turn.first, turn.began, changed))

    def _judge_the_end(self, told_s: float, step_s: float) -> Alert | None:
        """Steps that were slow are normal in this window."""
        if (turn := self._lasting(told_s, step_s, _CALM_S)) is None:
            return None
        self._told_s = None
        says = f"steps take {units.STEP_TIME.text(turn.step_s)} again"
        return self._say(Slowness(False, says, "", turn.first, turn.began))

    def _lasting(self, before_s: float, step_s: float, least_s: float) -> _Steps | None:
        """The turn of the time of steps from `before_s` to `step_s`, if it has lasted so long."""
        if self._turn is None or (self._turn.step_s > before_s) is not (step_s > before_s):
            self._turn = self._turned(before_s, step_s)
            self._lasted_s = self._turn.steps * self._turn.step_s
        else:
            self._lasted_s += sum(update.step_s for update in self._window)
        if self._lasted_s < least_s:
            return None
        turn, self._turn = self._turn, None
        self._turned_at = turn.first
        return turn

    def _judge_the_start(self, step_s: float, left: int) -> Alert | None:
        """If the judging rank itself is the slow one, only the ranks that wait see it."""
        if self._start_is_judged:
            return None
        self._start_is_judged = True
        return None if self._planned else self._slow_from_the_start(step_s, left)

    def _say(self, slowness: Slowness) -> Alert | None:
        """Alert at once if there is no other rank to ask; otherwise the ranks meet first."""
        if not self.alone:
            self.slowness = slowness
            return None
        return (
            explained(slowness, *why([self.last], from_start=slowness.from_start))
            if slowness.slow
            else recovered(slowness)
        )

    def _turned(self, before_s: float, step_s: float) -> _Steps:
        """The steps since their time changed from `before_s` to `step_s`: three of four show it.

        If the strategy waits only now and then, there may be none; then the window counts.
        """
        if self._wait_s > step_s / 2:
            slow = [steps for steps in self._waits if steps.step_s >= self._wait_s / 2]
            return _Steps(slow[0].first, slow[0].began, sum(steps.steps for steps in slow), step_s)
        recent = [steps for steps in self._recent if steps.first > self._turned_at]
        between_s = math.sqrt(before_s * step_s)
        turned = [(steps.step_s > between_s) is (step_s > before_s) for steps in recent]
        for number, has_turned in enumerate(turned):
            since = recent[number:]
            if has_turned and len(since) > 1 and sum(turned[number:]) >= _MOST * len(since):
                middle_s = statistics.median(update.step_s for update in since)
                return _Steps(since[0].first, since[0].began, len(since), middle_s)
        first = self._window[0]
        return _Steps(first.first, first.began, self._steps, step_s)

    def _slow_from_the_start(self, step_s: float, left: int) -> Alert | None:
        """The alert if, without a plan, waiting for others makes the first steps long."""
        working_s = step_s * (1 - self.last.waited_share)
        wasted_s = left * (step_s - working_s)
        if step_s <= TOLERATED * working_s or wasted_s < _WORTH_A_WORD_S:
            return None
        took = f"the last {self._steps} steps took {units.STEP_TIME.text(step_s)}, "
        took += f"{units.STEP_TIME.text(working_s)} without waiting"
        cost = self._cost(step_s, working_s, left)
        first = self._first or self._window[0]
        return self._say(Slowness(True, took, cost, first.first, first.began, from_start=True))

    def _cost(self, step_s: float, expected_s: float, left: int) -> str:
        if self.has_budget:
            return ""
        was, now = (units.DURATION.text(round(left * s)) for s in (expected_s, step_s))
        extra = self.price.text(left * (step_s - expected_s)) if self.price else ""
        more = f", for {extra} more" if extra else ""
        return f"{now}, not {was}{more}"

    def _card_changed(self) -> str:
        """The changes of the network card since the last call; "" if there are none."""
        before, self._card = self._card, Card.read()
        if before is None or self._card is None:
            return ""
        return self._card.since(before)


def explained(slowness: Slowness, cause: str, remedy: str) -> Alert:
    """The alert for slow steps, with their cause."""
    if slowness.card:
        cause, remedy = f"{cause}; {slowness.card}", SEE_CARD
    return Alert(
        severity="warning",
        cause=f"{slowness.steps}: {cause}; {slowness.began}. {slowness.cost}",
        remedy=remedy,
        about=SLOW_STEPS,
    )


def recovered(slowness: Slowness) -> Alert:
    """The alert that steps are as fast as expected again."""
    return Alert(
        severity="info",
        cause=f"{slowness.steps}, {slowness.began}",
        remedy="nothing needs to be done",
        about=SLOW_STEPS,
    )


def _crowded(windows: Sequence[Window], hosts: Set[str]) -> str:
    """The share of the processors that other programs used on the most crowded of these hosts, in
    words; "" if it is small."""
    by_host = {
        host: [window for window in windows if window.host == host] for host in sorted(hosts)
    }
    others = {
        host: max(window.cpu_share for window in ranks)
        - sum(window.own_cpu_share for window in ranks)
        for host, ranks in by_host.items()
    }
    host = max(others, key=lambda name: others[name])
    if others[host] <= DISTURBING_SHARE:
        return ""
    share = units.SHARE.text(others[host])
    return f"other programs used {share} of the processors of {host}"


def why(windows: Sequence[Window], *, from_start: bool = False) -> tuple[str, str]:
    """Cause and remedy of slow steps, from the last steps of every rank, or of this one alone.

    from_start: the network was never faster, so another strategy helps, not a search for a fault.
    """
    waited = min(window.waited_share for window in windows)
    starved = [window for window in windows if window.data_wait_share > WAITS]
    if waited > max(WAITS, *(window.data_wait_share for window in windows)):
        cause = f"{units.SHARE.text(waited)} of it waits for other ranks and the network"
        doctor = "run dragoman doctor: it measures every link and every host"
        return cause, _CHOOSE if from_start else doctor
    if starved:
        starved.sort(key=lambda window: -window.data_wait_share)
        shares = (
            f"{window.name}: {units.SHARE.text(window.data_wait_share)}" for window in starved
        )
        cause = f"{first_of(shares)} of it waits for data"
        return cause, "look at the disk and at what else uses the processor"
    slowest_first = sorted(windows, key=lambda window: -window.own_s)
    for usual_s, usual in (
        (statistics.median_low([window.own_s for window in windows]), "the median rank"),
        (slowest_first[-1].own_s, "the fastest rank"),  # most of them may be slow
    ):
        slow = [window for window in slowest_first if window.own_s >= STRAGGLER_RATIO * usual_s > 0]
        if slow and len(windows) > 1:
            takes = (
                f"{window.name} takes {units.STEP_TIME.text(window.own_s)} by itself"
                for window in slow
            )
            hosts = " and ".join(dict.fromkeys(window.host for window in slow))
            cause = f"{first_of(takes)}, {usual} {units.STEP_TIME.text(usual_s)}"
            crowded = _crowded(windows, {window.host for window in slow})
            return (
                f"{cause}; {crowded}" if crowded else cause,
                _LOOK_AT.format(hosts),
            )
    hosts = first_of(dict.fromkeys(window.host for window in windows))
    if crowded := _crowded(windows, {window.host for window in windows}):
        return crowded, f"end what else runs on {hosts}, or let it wait"
    everywhere = f"of {windows[0].name}" if len(windows) == 1 else "of all ranks alike"
    return f"it is the compute itself, {everywhere}", _LOOK_AT.format(hosts)


_CHANGED: Final = 1.5
"""A link's rate has changed if it is larger or smaller by this factor."""
_AS_SLOW: Final = 1.5
"""Every direction within this factor of the slowest is slow, too."""


class Examination:
    """The ranks meet to examine why steps are slow, or as fast again.

    link_bytes_per_s: the rate of the network between hosts when the run began; None: not known.
    """

    def __init__(self, world: World, link_bytes_per_s: float | None) -> None:
        self._world = world
        self._known = link_bytes_per_s
        self._topology: Topology | None = None

    def run(self, guard: StepGuard) -> list[Payload]:
        """Every rank calls it; the main one gets the events to write, the others nothing."""
        windows = [Window(**values) for values in self._world.gather_json(asdict(guard.last))]
        # Several may have seen it; the first one judges all steps.
        seen_here = None if guard.slowness is None else asdict(guard.slowness)
        first = next(filter(None, self._world.gather_json(seen_here)), None)
        if first is None:
            # On GPUs votes count one exchange later: if two ranks have asked one after the other,
            # the first alert already answers both.
            return []
        guard.slowness = None
        if self._topology is None:
            self._topology = find_topology(self._world)
        slowness = replace(Slowness(**first), on_hosts=self._topology.num_hosts > 1)
        changed = None
        waits = min(window.waited_share for window in windows) > WAITS
        if self._topology.num_hosts > 1 and (waits or not slowness.slow):
            changed = self._measure(self._topology, windows, slowness)
        if not self._world.is_main:
            return []
        if not slowness.slow:
            return [*([changed] if changed is not None else []), recovered(slowness)]
        cause, remedy = why(windows, from_start=slowness.from_start)
        if changed is not None and changed.now_bytes_per_s < changed.before_bytes_per_s:
            return [changed, _slow_link(changed, slowness)]
        if waits and self._topology.num_hosts > 1 and self._known is not None:
            rate = units.BYTE_RATE.text(self._known)
            cause += f", which carries {rate} each way, as much as before"
        return [explained(slowness, cause, remedy)]

    def _measure(
        self, topology: Topology, windows: list[Window], slowness: Slowness
    ) -> LinkChanged | None:
        """The rates of the network now, if they have changed."""
        now = measure_link(self._world, topology).bytes_per_s
        before, self._known = self._known, now
        if before is None or 1 / _CHANGED < now / before < _CHANGED:
            return None
        where = ""
        if now < before:
            rates = measure_directions(self._world, topology, bytes_per_s=now)
            slowest = min(rates.values())
            hosts = [windows[ranks[0]].host for ranks in topology.hosts]
            where = ", ".join(
                f"{hosts[sender]} to {hosts[receiver]}"
                for (sender, receiver), rate in rates.items()
                if rate <= _AS_SLOW * slowest
            )
        return LinkChanged(
            interface=collective_interface() or "",
            where=where,
            before_bytes_per_s=before,
            now_bytes_per_s=now,
            since_step=slowness.since_step,
            since=round(slowness.since, 3),
        )


def _slow_link(changed: LinkChanged, slowness: Slowness) -> Alert:
    now, before = (
        units.BYTE_RATE.text(rate) for rate in (changed.now_bytes_per_s, changed.before_bytes_per_s)
    )
    since = f"step {units.COUNT.text(slowness.since_step)}, {units.time_of_day(slowness.since)}"
    link = f"the link {changed.interface}, {changed.where}," if changed.interface else "the link"
    card = f"; {slowness.card}" if slowness.card else ""
    return Alert(
        severity="warning",
        cause=f"{link} fell from {before} to {now} each way at {since}{card}: "
        f"{slowness.steps}. {slowness.cost}",
        remedy=f"{SEE_CARD}; dragoman doctor measures every link",
        about=SLOW_STEPS,
    )
