"""An export is called done when it translates as our own search does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dragoman.errors import CheckpointError
from dragoman.evaluate.metrics import chrf
from dragoman.export.bundle import Quantization, Verified

NUM_SENTENCES: Final = 100
_LEAST_CHRF: Final[dict[Quantization, float]] = {"float32": 98.0, "float16": 90.0, "int8": 70.0}
_LEAST_IDENTICAL: Final[dict[Quantization, float]] = {"float32": 0.9, "float16": 0.0, "int8": 0.0}


def compare(
    ours: Sequence[str], theirs: Sequence[str], *, quantization: Quantization, place: Path
) -> Verified:
    """How near the export comes to our own translations of the same sentences.

    In fp32 a line may differ where rounding decides a tie: one in a hundred of a trained model,
    more of one that has hardly learned. With fewer bits translations must stay near ours. A wrong
    export (another norm, other positions) is far off.

    Raises CheckpointError where they are further apart than that.
    """
    if not ours:
        return Verified(sentences=0, identical=0, chrf=100.0)
    identical = sum(a == b for a, b in zip(ours, theirs, strict=True))
    nearness = 100.0 if identical == len(ours) else chrf(theirs, ours).value
    wrong = identical < _LEAST_IDENTICAL[quantization] * len(ours)
    if wrong or nearness < _LEAST_CHRF[quantization]:
        raise CheckpointError(
            f"the export translates {len(ours) - identical} of {len(ours)} sentences otherwise "
            f"than our own search does (chrF against it: {nearness:.1f}); nothing was written",
            place=place,
            remedy="export it to another format, and report this",
        )
    return Verified(sentences=len(ours), identical=identical, chrf=round(nearness, 2))
