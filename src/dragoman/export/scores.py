"""What was measured of a checkpoint, found in its run's events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.errors import CheckpointError
from dragoman.export.bundle import BundleScore
from dragoman.run_directory import RunDirectory
from dragoman.telemetry.events import Event, TestScored, Validated, read_events
from dragoman.train.checkpoint import read_state


def scores_of(
    run: RunDirectory, checkpoint: Path, *, chosen: str
) -> tuple[tuple[BundleScore, ...], int | None]:
    """Scores of a checkpoint, and its step; the step is None where it is an average.

    chosen: as the user named it. Test scores are those of `dragoman evaluate`, which takes the
    best checkpoint, so that only the best has them.
    """
    try:
        step = read_state(checkpoint).step
    except CheckpointError:
        return (), None
    found: dict[str, list[BundleScore]] = {}
    for path in sorted(run.events.glob("rank-0000*.jsonl")):
        for event in read_events(path):
            if event.kind == Validated.kind and event.step == step:
                found["dev"] = list(_scores(event, f"dev, {event.payload['decoded_pairs']} lines"))
            elif event.kind == TestScored.kind and chosen == "best":
                name = event.payload["name"]
                found[name] = list(_scores(event, f"{name}, {event.payload['pairs']} lines"))
    return tuple(score for scores in found.values() for score in scores), step


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
