"""`auto` on real links: its measurements, its choice and its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.distributed.world import World
from dragoman.telemetry.events import StrategyChosen, read_events
from lab.conftest import OpenLab
from lab.ranks_on_hosts import run_on_hosts


def chosen(world: World, directory: str, overrides: list[str]) -> Any:
    """The strategy for a small model, and whether the measurement left its weights alone."""
    import torch

    from dragoman.recipe.recipe import load_recipe
    from dragoman.run.auto import choose_strategy
    from toy_fit import recorder
    from toy_task import TOY_MODEL, ToyPairs, toy_training

    recipe = load_recipe("demo", overrides)
    shape = TOY_MODEL.model_copy(update={"d_model": 128, "d_ffn": 512})
    with (
        recorder(Path(directory), rank=world.rank) as events,
        toy_training(ToyPairs(300), model=shape, world=world) as training,
    ):
        before = [weight.clone() for weight in training.model.parameters()]
        config, *_ = choose_strategy(
            recipe,
            training.model,
            training.stream,
            precision="fp32",
            world=world,
            events=events,
        )
        same = all(map(torch.equal, before, training.model.parameters()))
    return [config.model_dump(mode="json"), same]


@pytest.mark.parametrize(
    ("rate", "strategies"), [("1gbit", {"sync", "diloco"}), ("8mbit", {"diloco"})]
)
def test_the_choice_follows_the_link(
    make_lab: OpenLab, tmp_path: Path, rate: str, strategies: set[str]
) -> None:
    lab = make_lab(["alpha", "beta"], rate=rate)
    overrides = ["distributed.strategy=auto"]
    said = run_on_hosts(chosen, str(tmp_path / "events"), overrides, hosts=lab.hosts)
    assert said == [[said[0][0], True]] * 2
    assert said[0][0]["strategy"] in strategies
    events = read_events(tmp_path / "events" / "log.jsonl")
    (reported,) = (event.payload for event in events if event.kind == StrategyChosen.kind)
    assert reported["strategy"] == said[0][0]["strategy"]
    assert reported["why"]
    assert reported["planned_step_s"] >= reported["compute_s"]
    if rate == "8mbit":
        # A bucket of tokens lets a little more through.
        assert reported["link_bytes_per_s"] == pytest.approx(0.945e6, rel=0.15)
        diloco = said[0][0]["diloco"]
        assert diloco["every"] == 3, "the longest period whose quality is known"
