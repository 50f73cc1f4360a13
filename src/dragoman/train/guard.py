"""Says when steps take longer than they should: why, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dragoman import units
from dragoman.distributed.strategy import GradientSync
from dragoman.telemetry.events import Alert
from dragoman.telemetry.network import Counters, collective_interface, nominal_bits_per_s
from dragoman.telemetry.price import HourlyPrice

WINDOW_STEPS: Final = 50
TOLERATED: Final = 1.5
"""Times the expected; what is slower than this has a cause that is worth looking for."""
_WARM_STEPS: Final = 5
_SEE_CARD: Final = "look at the cable, the port of the switch and ethtool on that host"
_CHOOSE: Final = 'compare strategies with dragoman plan, or set distributed.strategy = "auto"'
_WHERE_IT_GOES: Final = 0.3
"""Of the steps' time: a wait that takes more than this is the cause."""
_WORTH_A_WORD_S: Final = 600.0
"""What waiting must cost until the end to be told of where it is as it always was."""


@dataclass(frozen=True, slots=True)
class Card:
    """The network card that the collectives use. nominal_bits_per_s: None where it claims none."""

    interface: str
    carrier_changes: int
    nominal_bits_per_s: float | None

    @classmethod
    def read(cls) -> Card | None:
        """As it is now; None where there is none."""
        interface = collective_interface()
        counters = None if interface is None else Counters.read(interface)
        if interface is None or counters is None:
            return None
        return cls(interface, counters.carrier_changes, nominal_bits_per_s(interface))

    def since(self, before: Card) -> str:
        """What is otherwise than before, in words."""
        was, now = before.nominal_bits_per_s, self.nominal_bits_per_s
        if was is not None and now is not None and was != now:
            speeds = f"{units.BIT_RATE.text(now)}, {units.BIT_RATE.text(was)} before"
            return f"{self.interface} now runs at {speeds}"
        if self.carrier_changes != before.carrier_changes:
            return f"the cable of {self.interface} was out"
        return ""


@dataclass
class StepGuard:
    """Looks at the last fifty steps of this rank.

    expected_s: of a step by the plan; where there is none, what the first fifty steps took. A
    network that was slow from the beginning is told of, too: by how long these waited for it.

    What counts is the mean of all steps but the slowest: strategies that wait now and then would
    pass under a median, and one odd step would not under a plain mean.

    judges_steps: one rank speaks for all. watches_card: one rank of each host looks at its network
    card. price: of all machines, where it is known.
    """

    sync: GradientSync
    max_steps: int
    expected_s: float | None = None
    judges_steps: bool = True
    watches_card: bool = True
    price: HourlyPrice | None = None
    _by: str = field(default="planned", init=False)
    _times_s: list[float] = field(default_factory=list, init=False)
    _steps: int = field(default=-_WARM_STEPS, init=False)
    _data_wait_s: float = field(default=0.0, init=False)
    _exposed_s: float = field(default=0.0, init=False)
    _told_s: float | None = field(default=None, init=False)
    _card: Card | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._card = Card.read()

    def see(self, *, step: int, steps: int, seconds_s: float, data_wait_s: float) -> Alert | None:
        """Take in an update of so many steps that ends at `step`; an alert where one is due."""
        self._steps += steps
        if self._steps <= 0:
            self._exposed_s = self.sync.exposed_s
            return None
        self._times_s.append(seconds_s)
        self._data_wait_s += data_wait_s
        if self._steps < WINDOW_STEPS or len(self._times_s) < 2:
            return None
        steps_in_all_but_one = self._steps * (len(self._times_s) - 1) / len(self._times_s)
        step_s = (sum(self._times_s) - max(self._times_s)) / steps_in_all_but_one
        changed = self._card_changed()
        alert = self._judge(step_s, self.max_steps - step, changed) if self.judges_steps else None
        if alert is None and changed and self.watches_card:
            alert = Alert(severity="warning", cause=changed, remedy=_SEE_CARD)
        self._restart()
        return alert

    def _judge(self, step_s: float, left: int, changed: str) -> Alert | None:
        if self.expected_s is None:
            self.expected_s, self._by = step_s, "usual"
            return self._slow_from_the_start(step_s, left)
        if step_s <= TOLERATED * self.expected_s:
            back, self._told_s = self._told_s is not None, None
            return self._recovered(step_s) if back else None
        if self._told_s is not None and step_s <= TOLERATED * self._told_s:
            return None
        self._told_s = step_s
        cause, remedy = self._why()
        if changed:
            cause, remedy = f"{cause}; {changed}", _SEE_CARD
        return self._slow(step_s, self.expected_s, left, f"was {self._by}: {cause}", remedy)

    def _slow_from_the_start(self, step_s: float, left: int) -> Alert | None:
        """Where nothing was planned: whether waiting for others makes all of this long."""
        cause, _ = self._why()
        working_s = step_s * (1 - self._waited)
        wasted_s = left * (step_s - working_s)
        if step_s <= TOLERATED * working_s or wasted_s < _WORTH_A_WORD_S:
            return None
        return self._slow(step_s, working_s, left, f"without waiting: {cause}", _CHOOSE)

    def _slow(self, step_s: float, expected_s: float, left: int, why: str, remedy: str) -> Alert:
        was, now = (units.DURATION.text(round(left * s)) for s in (expected_s, step_s))
        extra = self.price.text(left * (step_s - expected_s)) if self.price else ""
        return Alert(
            severity="warning",
            cause=f"the last {self._steps} steps took {units.STEP_TIME.text(step_s)}, "
            f"{units.STEP_TIME.text(expected_s)} {why}. The rest will take "
            f"{now} on every machine, not {was}{f', for {extra} more' if extra else ''}",
            remedy=remedy,
        )

    def _recovered(self, step_s: float) -> Alert:
        cause = f"steps take {units.STEP_TIME.text(step_s)} again"
        return Alert(severity="info", cause=cause, remedy="nothing is to be done")

    def _why(self) -> tuple[str, str]:
        waited, starved = self._waited, self._data_wait_s / sum(self._times_s)
        if waited > max(_WHERE_IT_GOES, starved):
            cause = f"{units.SHARE.text(waited)} of it waits for other ranks and the network"
            return cause, "run dragoman doctor: it measures every link and every host"
        if starved > _WHERE_IT_GOES:
            cause = f"{units.SHARE.text(starved)} of it waits for data"
            return cause, "look at the disk and at what else uses the processor"
        return "it is the compute itself", "look at what else uses the device, and at its clock"

    @property
    def _waited(self) -> float:
        """For other ranks and the network, of the time of these steps."""
        return (self.sync.exposed_s - self._exposed_s) / sum(self._times_s)

    def _card_changed(self) -> str:
        """What happened to the network card since the last time; "" where nothing did."""
        before, self._card = self._card, Card.read()
        if before is None or self._card is None:
            return ""
        return self._card.since(before)

    def _restart(self) -> None:
        self._times_s.clear()
        self._steps = 0
        self._data_wait_s = 0.0
        self._exposed_s = self.sync.exposed_s
