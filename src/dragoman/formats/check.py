"""Does an export translate like our own search?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dragoman.base.errors import CheckpointError
from dragoman.evaluation.metrics import chrf
from dragoman.formats.bundle import Verified
from dragoman.model.search import Hypothesis

_LEAST_IDENTICAL: Final = 0.9
_LEAST_CHRF: Final = 98.0
_MOST_NATS: Final = 0.2


def compare(ours: Sequence[str], theirs: Sequence[str]) -> Verified:
    """An export's translations beside our own of the same sentences; spaces at an end do not count.

    Some tokenizers remove these, which a model that has hardly learned puts there.
    """
    identical = sum(a.strip() == b.strip() for a, b in zip(ours, theirs, strict=True))
    nearness = 100.0 if identical == len(ours) else chrf(theirs, ours).value
    return Verified(sentences=len(ours), identical=identical, chrf=round(nearness, 2))


def check_equal(verified: Verified, *, place: Path) -> None:
    """Check an export that has all bits of the weights.

    If two translations are equally likely, rounding decides between them. That changes about one
    line in a hundred of a trained model, and more of a model that has hardly learned. A wrong
    export, such as one with another norm or other positions, changes nearly all lines.
    Raises CheckpointError if too many lines differ.
    """
    few = verified.identical < _LEAST_IDENTICAL * verified.sentences
    if few or verified.chrf < _LEAST_CHRF:
        raise _wrong(
            f"translates {verified.sentences - verified.identical} of {verified.sentences} "
            f"sentences differently from our own search (chrF against it: {verified.chrf:.1f})",
            place,
        )


def check_near(
    hypotheses: Sequence[Hypothesis], log_probabilities: Sequence[Sequence[float]], *, place: Path
) -> None:
    """Check an export with fewer bits by the probability that it gives our own translations.

    Its own translations may differ much if the model has hardly learned.
    log_probabilities: the export's, for each piece of the hypotheses and for their end.
    Raises CheckpointError if their mean distance from ours is over 0.2 nats per token.
    """
    distances = []
    for hypothesis, theirs in zip(hypotheses, log_probabilities, strict=True):
        # A translation that was cut off has no end, so one of two sums is the right one.
        whole, cut = sum(theirs), sum(theirs[:-1])
        distance = min(abs(total - hypothesis.log_probability) for total in (whole, cut))
        distances.append(distance / len(theirs))
    mean = sum(distances) / max(1, len(distances))
    if not mean <= _MOST_NATS:
        raise _wrong(f"is {mean:.2f} nats per token away from the model", place)


def _wrong(problem: str, place: Path) -> CheckpointError:
    return CheckpointError(
        f"the export {problem}; nothing was written",
        place=place,
        remedy="export it to another format, and report this",
    )
