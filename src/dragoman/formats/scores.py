"""The scores of a checkpoint, from the events of its run, for the card of an export."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.base.errors import CheckpointError
from dragoman.base.files import file_sha256
from dragoman.formats.bundle import BundleScore
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import (
    DirectionScored,
    Event,
    TestScored,
    Validated,
    event_file,
    read_events,
)
from dragoman.training.checkpoint import read_state
from dragoman.training.durable import DIGESTS_FILE


def scores_of(
    run: RunDirectory, checkpoint: Path, overrides: Sequence[str] = ()
) -> tuple[tuple[BundleScore, ...], int | None]:
    """Scores of a checkpoint from its run's events, and its step; None for an average.

    Dev scores are those of a checkpoint of the run itself. Test scores are those that
    `dragoman evaluate` found for these very weights, with the recipe's own search settings, changed
    by exactly these overrides.
    """
    try:
        step = read_state(checkpoint).step
    except CheckpointError:
        step = None
    weights = file_sha256(checkpoint / DIGESTS_FILE)
    is_own = checkpoint.resolve().parent == run.checkpoints.resolve()
    found: dict[tuple[str, str], tuple[Event, int]] = {}
    measured: set[str] = set()
    log = event_file(run.events)
    if log.is_file():
        for event in read_events(log):
            said = event.payload
            is_dev = is_own and step is not None and event.step == step and not overrides
            if event.kind == Validated.kind and is_dev:
                found["dev", ""] = event, said["decoded_pairs"]
            elif event.kind == TestScored.kind:
                name, target = said["name"], said.get("target")
                if _is_of(event, weights, overrides):
                    measured.add(name)
                    text = f"{name} into {target}" if target else name
                    found[text, said.get("source") or ""] = event, said["pairs"]
                else:
                    measured.discard(name)
            elif event.kind == DirectionScored.kind:  # it follows the score of its text
                name = said["text"]
                if is_dev if name == "valid" else name in measured:
                    text = "dev" if name == "valid" else name
                    text += f" {said['source']}-{said['target']}"
                    found[text, ""] = event, said["pairs"]
    names = Counter(text for text, _ in found)
    scores: list[BundleScore] = []
    for (text, source), (event, lines) in found.items():
        folder = Path(source).parent.name if names[text] > 1 else ""
        scores += _scores_in(event, f"{folder}/{text}, {lines} lines".removeprefix("/"))
    return tuple(scores), step


def _is_of(event: Event, weights: str, overrides: Sequence[str]) -> bool:
    """Whether a score is of these weights and overrides; events of earlier versions do not say."""
    settings = event.payload.get("settings")
    if not isinstance(settings, str) or event.payload.get("weights") != weights:
        return False
    given = map(_plain, re.split(r"\s+(?=\w+\.[\w.]+\s*=)", settings))
    return {one for one in given if one.startswith("search.")} == set(map(_plain, overrides))


def _plain(setting: str) -> str:
    """A setting without the spaces that it may have around its equals sign."""
    return re.sub(r"\s*=\s*", "=", setting.strip(), count=1)


def _scores_in(event: Event, text: str) -> Iterator[BundleScore]:
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
