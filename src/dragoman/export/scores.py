"""What was measured of a checkpoint, found in its run's events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.base.errors import CheckpointError
from dragoman.base.files import file_sha256
from dragoman.export.bundle import BundleScore
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import Event, TestScored, Validated, read_events
from dragoman.train.checkpoint import read_state
from dragoman.train.durable import DIGESTS_FILE


def scores_of(run: RunDirectory, checkpoint: Path) -> tuple[tuple[BundleScore, ...], int | None]:
    """Scores of a checkpoint, and its step; the step is None where it is an average.

    Test scores are those that `dragoman evaluate` found for these very weights, with the recipe's
    own search.
    """
    try:
        step = read_state(checkpoint).step
    except CheckpointError:
        step = None
    weights = file_sha256(checkpoint / DIGESTS_FILE)
    found: dict[str, list[BundleScore]] = {}
    for path in sorted(run.events.glob("rank-0000*.jsonl")):
        for event in read_events(path):
            said = event.payload
            if event.kind == Validated.kind and step is not None and event.step == step:
                found["dev"] = list(_scores(event, f"dev, {said['decoded_pairs']} lines"))
            elif event.kind == TestScored.kind and _is_of(event, weights):
                name = said["name"]
                found[name] = list(_scores(event, f"{name}, {said['pairs']} lines"))
    return tuple(score for scores in found.values() for score in scores), step


def _is_of(event: Event, weights: str) -> bool:
    """Events of earlier versions do not say whose score they are."""
    settings = event.payload.get("settings")
    if not isinstance(settings, str) or event.payload.get("weights") != weights:
        return False
    return not any(setting.startswith("search.") for setting in settings.split(" "))


def _scores(event: Event, text: str) -> Iterator[BundleScore]:
    for metric in ("bleu", "chrf"):
        value = event.payload.get(metric)
        if value is not None:
            yield BundleScore(
                text=text,
                value=value,
                low=event.payload[f"{metric}_low"],
                high=event.payload[f"{metric}_high"],
                signature=event.payload[f"{metric}_signature"],
            )
