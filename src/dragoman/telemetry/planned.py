"""Events of what was planned, and of what then came otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dragoman.telemetry.events import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChosen(Payload):
    """What `auto` took, from what was measured just before.

    label: the strategy with its numbers. compute_s: of a step without network, on the slowest
    rank. link_...: of the sums that training makes, through each host's interface, each way.
    planned_wire_bytes: of a step, the same.
    """

    kind: ClassVar[str] = "strategy_chosen"
    strategy: str
    label: str
    why: str
    compute_s: float
    link_bytes_per_s: float
    link_latency_s: float
    planned_step_s: float
    planned_run_s: float
    planned_wire_bytes: int
