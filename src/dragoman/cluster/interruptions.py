"""Expected time and cost of a run on machines that may be taken away at any moment (spot).

Hosts are taken away independently of each other, at a constant rate: the time until any host is
taken away is exponential with mean M, 1 / M = sum over hosts of 1 / M_host. A run of W seconds of
work saves after every tau seconds of work; a save takes delta. An interruption costs the work since
the last checkpoint, and R until all train again. Each segment is repeated until it succeeds, and so
is each restart, so the expected wall clock is exactly

    T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau

(Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22, section 3). The best tau is about sqrt(2 delta M) (Young 1974), more
exactly the series of `best_every_s` (Daly 2006).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dragoman.base import units
from dragoman.cluster.strategies import Cluster, Prediction
from dragoman.cluster.workload import Workload

RESTART_S: Final = 37.0
"""Seconds from a host's loss until the others train again (docs/how-to/two-machines.md)."""
RESTART_SOURCE: Final = "measured: lab hosts of two cores; assumed for others"
_LONGEST_S: Final = 100 * 365.25 * 86_400.0
"""Longer expected times count as infinite: a hundred years."""
SAVED_BYTES: Final = 12
"""Bytes of a checkpoint for each weight: itself and Adam's two averages, in fp32."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The expected course of a run whose hosts may be taken away.

    mean_s: mean seconds between two interruptions of any host.
    every_steps, every_s: steps and seconds of work between two checkpoints.
    save_s: seconds to save a checkpoint.
    restart_s: seconds from an interruption until all train again.
    best_every_steps: the steps between two checkpoints that make the run shortest.
    run_s, best_run_s: the expected wall clock with every_steps and with best_every_steps; infinite
        above a hundred years.
    price, best_price: the cost of run_s and of best_run_s, if all hosts are paid for all of the
        time; None if a price is not known.
    steady_s, steady_price: wall clock and cost without interruptions, at the price of hosts that
        are never taken away; at their spot price if that is not known.
    """

    mean_s: float
    every_steps: int
    every_s: float
    save_s: float
    restart_s: float
    best_every_steps: int
    run_s: float
    best_run_s: float
    price: float | None
    best_price: float | None
    steady_s: float
    steady_price: float | None

    @property
    def count(self) -> float:
        """The expected number of interruptions; their rate is constant, even during a restart."""
        return self.run_s / self.mean_s


def interrupted(cluster: Cluster, chosen: Prediction, workload: Workload) -> Interrupted | None:
    """The expected course of a run; None if no host of the cluster may be taken away."""
    spots = [machine.spot for machine in cluster.machines if machine.spot is not None]
    if not spots:
        return None
    mean_s = 1 / math.fsum(1 / spot.mean_s for spot in spots)
    restart_s = RESTART_S + max(spot.replacement_s for spot in spots)
    save_s = workload.num_parameters * SAVED_BYTES / cluster.save_bytes_per_s
    work_s = workload.max_steps * chosen.step_s

    def run_s(steps: int) -> float:
        return expected_s(
            work_s,
            every_s=steps * chosen.step_s,
            save_s=save_s,
            restart_s=restart_s,
            mean_s=mean_s,
        )

    every = min(workload.save_every_steps, workload.max_steps)
    best = round(best_every_s(save_s=save_s, mean_s=mean_s) / chosen.step_s)
    best = min(max(best, 1), workload.max_steps)
    spot_price, steady_price = cluster.spot_price_per_hour, cluster.price_per_hour
    return Interrupted(
        mean_s=mean_s,
        every_steps=every,
        every_s=every * chosen.step_s,
        save_s=save_s,
        restart_s=restart_s,
        best_every_steps=best,
        run_s=run_s(every),
        best_run_s=run_s(best),
        price=_price(spot_price, run_s(every)),
        best_price=_price(spot_price, run_s(best)),
        steady_s=work_s,
        steady_price=_price(steady_price, work_s),
    )


def expected_s(
    work_s: float, *, every_s: float, save_s: float, restart_s: float, mean_s: float
) -> float:
    """The expected wall clock of `work_s` seconds of work; infinite above a hundred years."""
    try:
        segment_s = mean_s * math.exp(restart_s / mean_s) * math.expm1((every_s + save_s) / mean_s)
    except OverflowError:
        return math.inf
    expected = segment_s * work_s / every_s
    return expected if expected <= _LONGEST_S else math.inf


def best_every_s(*, save_s: float, mean_s: float) -> float:
    """Seconds of work between two checkpoints for the shortest wall clock.

    Daly 2006, equation 37: Young's sqrt(2 delta M) with two more terms, less delta; M if delta is
    at least 2 M.
    """
    if save_s >= 2 * mean_s:
        return mean_s
    part = save_s / (2 * mean_s)
    return math.sqrt(2 * save_s * mean_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def _price(per_hour: float | None, seconds_s: float) -> float | None:
    return None if per_hour is None else per_hour * seconds_s / units.HOUR_S
