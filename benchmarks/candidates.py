"""The gain and the cost of choosing among several translations of each sentence.

    benchmarks/candidates.py RUN|EXPORT [--candidates 1,4,8,16] [--source FILE --reference FILE]

Prints chrF and BLEU (sacreBLEU) of the translations with `search.candidates`, the time on one core,
and, against the first number of candidates, the gains with the p-values of sacreBLEU's paired
approximate randomisation. The text is the demo's test set if no other is named; a beam of 4 for one
candidate.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from dragoman.evaluation.validate import read_lines
from dragoman.inference.translator import open_translator
from tags import demo_text


def translate(model: Path, sources: list[str], candidates: int) -> tuple[list[str], float]:
    """The translations, and the seconds that they took."""
    overrides = [f"search.beam_size={max(4, candidates)}", f"search.candidates={candidates}"]
    with open_translator(
        model, checkpoints=["best"], overrides=overrides, engine="ctranslate2", threads=1
    ) as opened:
        opened.translator.translate(sources[:20], opened.recipe.search, text_format="line")
        started = time.perf_counter()
        found = opened.translator.translate(sources, opened.recipe.search, text_format="line")
        return [best.text for best, *_ in found], time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--candidates", default="1,4,8,16")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    arguments = parser.parse_args()
    if arguments.source:
        sources, references = read_lines(arguments.source), read_lines(arguments.reference)
    else:
        sources, references = map(list, zip(*demo_text("test"), strict=True))
    systems: list[tuple[str, Sequence[str]]] = []
    for number in map(int, arguments.candidates.split(",")):
        translations, spent_s = translate(arguments.model, sources, number)
        systems.append((f"{number} candidates", translations))
        print(f"{number} candidates: {spent_s:.1f} s for {len(sources)} sentences", flush=True)
    metrics: dict[str, Metric] = {"BLEU": BLEU(), "chrF2": CHRF()}
    _, scores = PairedTest(systems, metrics, [references], test_type="ar", n_samples=1000)()
    for metric in metrics:
        found = [result for result in scores[metric] if not isinstance(result, str)]
        for (name, _), result in zip(systems, found, strict=True):
            by_chance = "" if result.p_value is None else f", p {result.p_value:.3f}"
            gain = result.score - found[0].score
            print(f"{name}: {metric} {result.score:.2f} ({gain:+.2f}{by_chance})")


if __name__ == "__main__":
    main()
