"""What transfers and waits of a step tell, and what the hosts of a run cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.reporting.checks import BY_KEY, judge
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import LinkMeasured, StrategyChosen
from recorded_runs import Recorded


def test_the_choice_of_auto_is_named(tmp_path: Path) -> None:
    facts = read_facts(Recorded(steps=2000).write(tmp_path / "run"))
    chosen = StrategyChosen.model_construct(strategy="sync", label="sync bf16", why="it is cheap")
    rows = {
        row.name: row.text
        for verdict in judge(replace(facts, chosen=chosen))
        for row in verdict.evidence
    }
    assert rows["strategy, chosen by auto"] == "sync bf16: it is cheap"


@pytest.mark.parametrize(("sync_s", "said"), [(0.0, "bursts"), (3.2, "other traffic"), (2.25, "")])
def test_waits_that_bytes_do_not_explain_have_a_remedy(
    sync_s: float, said: str, tmp_path: Path
) -> None:
    link = LinkMeasured(
        interface="eth0", peer="host-b", bytes_per_s=12e6, latency_s=3e-4, method="test"
    )
    run = Recorded(steps=2000, sync_s=(sync_s, sync_s), extra=[(0, link)])
    remedy = BY_KEY["network_fit"].of(read_facts(run.write(tmp_path / "run"))).remedy
    assert said in remedy
    assert bool(said) == bool(remedy)
