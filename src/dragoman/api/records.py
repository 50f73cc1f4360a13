"""The plan of a run, its report and its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.api.arguments import Count, RecipeLike, RunLike, checked, path_of
from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.run_directory import PREPARE_EVENTS, RunDirectory
from dragoman.reporting.measures import gradient_noise_tokens
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.telemetry.events import KINDS, event_files
from dragoman.telemetry.events import read_events as events_of_file
from dragoman.telemetry.host import HourlyPrice


@checked
def plan(
    recipe: RecipeLike,
    *,
    ranks: Count | str | None = None,
    hosts: str | Path | None = None,
    link: str | None = None,
    gpu: str | None = None,
    gpu_link: str | None = None,
    compute: str | None = None,
    price: str | None = None,
    like: RunLike | None = None,
    origin: str | Path | None = None,
) -> Plan:
    """Seconds per step, hours and cost of every strategy, before any machine is rented.

    ranks: 4 for four hosts of one rank, "2+1" for two hosts, "1x8" for one host of eight.
    hosts: hosts.toml or `10.0.0.1:2,10.0.0.2:1`, in place of ranks.
    link: between hosts, "100Mbit" or "1Gbit" for a port, "12MB/s" for a measurement.
    gpu: the kind of all ranks, such as "v100" or "cpu".
    gpu_link: "nvlink4", "pcie4", "200GB/s".
    compute: measured seconds of one rank's share of a step, such as "0.25s".
    price: the price of one host for an hour, such as "3 USD".
    like: a run of this model and text; its gradient noise predicts the gain of a larger batch.
    origin: the model that the training starts from, as in `train`.
    Raises ConfigError that names the missing or wrong part, and CheckpointError if the model to
    start from cannot be read.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if origin is not None:
        from dragoman.formats.load import Origin

        recipe = Origin.open(Path(origin), recipe).adapt(recipe)
    request = PlanRequest(
        link=link,
        hosts=None if hosts is None else str(hosts),
        ranks=None if ranks is None else str(ranks),
        gpu=gpu,
        gpu_link=gpu_link,
        compute=compute,
        price=price,
    )
    return plan_recipe(
        recipe,
        request,
        noise_tokens=None if like is None else _noise_tokens(path_of(like)),
    )


@checked
def report(run: RunLike, *, price: str | None = None) -> Report:
    """Twelve questions about a run, answered from its record; a notebook shows the page.

    price: the price of one machine for an hour, such as "3 USD"; None: the recorded price.
    Raises CheckpointError if there is no run, ConfigError if the price cannot be read.
    """
    return Report.of(
        read_facts(path_of(run), price=None if price is None else HourlyPrice.parse(price))
    )


@checked
def read_events(run: RunLike, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run and of the preparation of its text, in order of time.

    Each is a flat dictionary, so `pandas.DataFrame(read_events(run, "train_interval"))` is a table
    of events. The kinds and their fields are listed in docs/reference/events.md.

    kind: such as "train_interval" or "validated"; None: all kinds.
    Raises CheckpointError if there is no run, ConfigError if there is no such kind.
    """
    directory = path_of(run)
    events = RunDirectory(directory).events
    paths = event_files(events)
    if not paths:
        raise CheckpointError(
            "has no record of a training (events/*.jsonl)",
            place=directory,
            remedy="name a run whose training has begun",
        )
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            f"{kind!r} is not a kind of event",
            place="kind",
            remedy=f"give one of {', '.join(sorted(KINDS))}",
        )
    if (prepared := events / PREPARE_EVENTS).is_file():
        paths.insert(0, prepared)
    found = [
        {
            "kind": event.kind,
            "time": event.time,
            "host": event.host,
            "rank": event.rank,
            "step": event.step,
            **event.payload,
        }
        for path in paths
        for event in events_of_file(path)
        if kind in (None, event.kind)
    ]
    return sorted(found, key=lambda event: (event["time"], event["rank"]))


def _noise_tokens(run: Path) -> float:
    found = gradient_noise_tokens(read_facts(run))
    if found is None:
        raise ConfigError(
            "this run has not measured its gradient noise",
            place=f"--like {run}",
            remedy="name one with data.accumulate=2 or with several ranks, and 100 steps or more",
        )
    return found
