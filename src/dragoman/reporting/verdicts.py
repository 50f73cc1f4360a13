"""The twelve questions about a training run, in their order.

Pure: facts in, verdicts out. Missing evidence gives "cannot tell".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dragoman.reporting import learning, network, rates, speed, totals
from dragoman.reporting.facts import Facts
from dragoman.reporting.verdict import Verdict

# To add a question, write a function like these and list it here.
QUESTIONS: tuple[Callable[[Facts], Verdict], ...] = (
    totals.duration,
    learning.trained,
    learning.overfitting,
    speed.processors,
    network.network,
    rates.rate,
    totals.corpus,
    totals.checkpoint_files,
    totals.checkpoint_size,
    speed.step_time,
    network.network_fit,
    totals.cost,
)
JUDGED: Final = frozenset({"trained", "overfitting", "processors", "network", "duration", "cost"})
"""Keys of the answers that say how good a run was, and what it took; the others are facts."""


def judge(facts: Facts) -> list[Verdict]:
    """The answers to all questions, in their order."""
    verdicts = [question(facts) for question in QUESTIONS]
    if facts.imported is None:
        return verdicts
    return [replace(verdict, remedy="") for verdict in verdicts]  # remedies name our settings
