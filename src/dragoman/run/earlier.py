"""The learning curve of an earlier run on the same text: the only forecast before the first step.

How well a model translates depends on the text above all. Curves of other texts do not tell: their
intervals reached from 22 to 67 BLEU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from dragoman.base.errors import DragomanError
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.run_directory import runs_in
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts

_MOST_RUNS: Final = 20
"""The newest runs of the text that are read."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A finished run on the same text, and its best BLEU on the dev text up to a number of target
    tokens; None if it had translated nothing until then. weights: of its whole model."""

    path: Path
    weights: int | None
    points: tuple[tuple[int, float], ...]

    @property
    def end(self) -> tuple[int, float]:
        """The target tokens that it saw, and its best BLEU."""
        return self.points[-1][0], max(bleu for _, bleu in self.points)

    def after(self, tokens: float) -> float | None:
        """Its best BLEU after this many target tokens."""
        return max((bleu for seen, bleu in self.points if seen <= tokens), default=None)


def earlier_run(manifest: Manifest, runs: Path) -> EarlierRun | None:
    """The run on this text that saw the most of it; None if no finished run of this folder did."""
    found = []
    for path in runs_in(runs):
        with suppress(DragomanError):  # of another version, or damaged: it is no forecast
            if _text(Manifest.load(path)) == _text(manifest):
                facts = read_facts(path)
                points = tuple(_points(facts))
                if points and facts.is_finished:
                    found.append(EarlierRun(path, facts.num_parameters, points))
        if len(found) == _MOST_RUNS:
            break
    return max(found, key=lambda one: one.end[0], default=None)


def _text(manifest: Manifest) -> tuple[object, ...]:
    """The direction and the files of a training text."""
    digests = sorted(one.sha256 for one in manifest.sources if one.split == "train")
    return (*manifest.config.directions[0], *digests)


def _points(facts: Facts) -> Iterator[tuple[int, float]]:
    """(target tokens, BLEU) of each validation that translated."""
    steps, tokens = facts.intervals["step"], np.nan_to_num(facts.intervals["target_tokens"])
    for validation in facts.validations:
        # An interval that ends later counts, too, if none ends at the step of the validation.
        whole = int(np.searchsorted(steps, validation.step)) + 1
        seen = int(tokens[:whole].sum()) if validation.step else 0
        if seen and validation.bleu is not None:
            yield seen, validation.bleu
