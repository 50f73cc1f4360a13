"""What a report says of each direction of a model of several languages."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.reporting.facts import DirectionScore, Facts
from dragoman.reporting.verdict import Evidence


def direction_evidence(facts: Facts) -> Iterator[Evidence]:
    """The last BLEU of every direction on the dev set, then on each test set."""
    last: dict[tuple[str, str, str], DirectionScore] = {}
    for one in facts.direction_scores:
        last[one.text, one.source, one.target] = one
    for one in sorted(last.values(), key=lambda one: one.text != "valid"):
        if one.bleu is not None:
            text = "dev" if one.text == "valid" else one.text
            name = printable_line(f"BLEU on {text}, {one.source} to {one.target}")
            yield Evidence(name, one.bleu, _in_words(one, one.bleu))


def _in_words(one: DirectionScore, bleu: float) -> str:
    text = units.SCORE.text(bleu)
    if one.bleu_low is not None and one.bleu_high is not None:
        text += f" ({units.SCORE.text(one.bleu_low)} to {units.SCORE.text(one.bleu_high)})"
    if one.step is not None and one.text == "valid":
        text += f" at step {units.COUNT.text(one.step)}"
    return f"{text}; zero-shot: no training text, not in the mean" if one.zero_shot else text
