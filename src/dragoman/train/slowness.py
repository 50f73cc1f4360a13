"""All ranks find out together why steps are slow: which rank, or what the network carries now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from dragoman.base import units
from dragoman.distributed.link_rate import measure_directions, measure_link
from dragoman.distributed.topology import Topology, find_topology
from dragoman.distributed.world import World
from dragoman.telemetry.events import Alert, LinkChanged, Payload
from dragoman.telemetry.host import collective_interface
from dragoman.train.guard import (
    SEE_CARD,
    WAITS,
    Slowness,
    StepGuard,
    Window,
    explained,
    moment,
    recovered,
    why,
)

_CHANGED: Final = 1.5
"""Times as much or as little: a link's rate has changed."""
_AS_SLOW: Final = 1.5
"""Times the slowest direction: one that carries less is slow, too."""


class Examination:
    """What ranks find when they meet because steps are slow, or as fast again.

    link_bytes_per_s: what the network between hosts carried when the run began; None: not known.
    """

    def __init__(self, world: World, link_bytes_per_s: float | None) -> None:
        self._world = world
        self._known = link_bytes_per_s
        self._topology: Topology | None = None

    def run(self, guard: StepGuard) -> list[Payload]:
        """Every rank calls it; the main one gets what there is to tell, the others nothing."""
        windows = [Window(**one) for one in self._world.gather_json(asdict(guard.last))]
        # Several may have seen it; the first is the one that judges all steps.
        found = next(
            one for one in self._world.gather_json(_as_json(guard.found)) if one is not None
        )
        guard.found = None
        slowness = Slowness(**found)
        if self._topology is None:
            self._topology = find_topology(self._world)
        changed = None
        waits = min(one.waited_share for one in windows) > WAITS
        if self._topology.num_hosts > 1 and (waits or not slowness.slow):
            changed = self._measure(self._topology, windows, slowness)
        if not self._world.is_main:
            return []
        if not slowness.slow:
            return [one for one in (changed, recovered(slowness)) if one is not None]
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
        """What the network carries now, where that is another rate than it was."""
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
    since = f"step {units.COUNT.text(slowness.since_step)}, {moment(slowness.since)}"
    link = f"the link {changed.interface}, {changed.where}," if changed.interface else "the link"
    card = f"; {slowness.card}" if slowness.card else ""
    return Alert(
        severity="warning",
        cause=f"{link} carries {now} each way since {since}, {before} before{card}: "
        f"{slowness.steps}. {slowness.left}",
        remedy=f"{SEE_CARD}; dragoman doctor measures every link",
    )


def _as_json(found: Slowness | None) -> dict[str, object] | None:
    return None if found is None else asdict(found)
