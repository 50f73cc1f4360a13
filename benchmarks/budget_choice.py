"""Is the choice of a budget as good as the best of six recipes that people would write?

    benchmarks/budget_choice.py --scratch DIR --multi30k DIR [--languages fr cs]
        [--budgets 5min 15min 45min] [--recipes mini-linear tiny-linear] [--cores 0 1]

For each text and budget, seven runs to the same clock: one whose recipe names the text alone, and
six of three sizes with two schedules. The six get the batch, the vocabulary, the dropout and the
peak rate that a budget gives to such a model, or with --published those of published recipes for
text of this size: a batch of 4,096 cells, 8,000 pieces, dropout 0.3, and a peak of 1e-3. Their
schedule follows the clock, too. Prints the best dev BLEU and
the test BLEU of each, and whether the test BLEU of the choice is within 1 of the best of the six: a
model is judged by all 1,000 sentences of a text that chose nothing, and not by the best of some
validations on 300. A recipe whose model is too large for the budget is refused, and does not count.
Runs that are done are read again, and one that was stopped begins anew, as the clock of its budget
ran on. It needs an idle machine: the runs follow each other in the order of the table. With --cores
as many runs go on at once, each on one of these cores. With --recipes only these of the six are
run, for example if earlier runs showed that the others are far behind.
"""

from __future__ import annotations

import argparse
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Final

from budget import finished, run, texts_of
from dragoman.reporting.reading import read_facts
from dragoman.run.sizes import SIZES

CHOSEN: Final = "chosen"
HAND: Final = """
[model]
d_model = {width}
num_heads = {heads}
d_ffn = {inner}
encoder_layers = {encoder}
decoder_layers = {decoder}
[schedule]
kind = "{schedule}"
"""
PUBLISHED: Final = """
subword.vocab_size = 8000
[data]
batch_tokens = 4096
[model]
d_model = {width}
num_heads = {heads}
d_ffn = {inner}
encoder_layers = {encoder}
decoder_layers = {decoder}
dropout = 0.3
[schedule]
kind = "{schedule}"
peak_learning_rate = 1e-3
{warmup}
[optimizer]
clip_norm = 1.0
"""
SCHEDULES: Final = {"linear": "", "inverse_sqrt": "warmup_steps = 400"}
"""A straight line to zero with the warm-up that fits, and the usual one of translation."""
HAND_SIZES: Final = ("mini", "tiny", "small")
WITHIN: Final = 1.0


def main() -> None:
    options = _options()
    recipes = {CHOSEN: ""} | {
        f"{size}-{schedule}": _by_hand(size, schedule, options.published)
        for size in HAND_SIZES
        for schedule in SCHEDULES
        if options.recipes is None or f"{size}-{schedule}" in options.recipes
    }
    texts = texts_of(options)
    cases = [(text, budget) for budget in options.budgets for text in texts]
    with _pool(options.cores) as pool:
        made = [
            pool.submit(
                _make,
                _folder(options, text, budget, name),
                text,
                texts[text] + more,
                budget,
                options.ranks,
            )
            for text, budget in cases
            for name, more in recipes.items()
        ]
        try:
            for future in made:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    print("| text | budget | recipe | used | steps | dev BLEU | test BLEU |")
    print("|---|---|---|---:|---:|---:|---:|", flush=True)
    verdicts = []
    for text, budget in cases:
        found = {}
        for name in recipes:
            folder = _folder(options, text, budget, name)
            if _refused(folder):
                line = "refused, the budget is too small | | |"
            else:
                found[name], line = _row(folder)
            print(f"| {text} | {budget} | {name} | {line} |", flush=True)
        hand = {name: bleu for name, bleu in found.items() if name != CHOSEN}
        best = max(hand, key=lambda name: hand[name])
        difference = found[CHOSEN] - hand[best]
        verdicts.append(difference >= -WITHIN)
        print(f"{text}, {budget}: {difference:+.2f} BLEU against {best}", flush=True)
    print(
        f"within {WITHIN:g} BLEU of the best of {len(recipes) - 1}:",
        f"{sum(verdicts)} of {len(verdicts)}",
    )


def _pool(cores: list[int] | None) -> ThreadPoolExecutor:
    """One run at a time on all cores, or one on each of these; a child runs on its thread's."""
    if cores is None:
        return ThreadPoolExecutor(1)
    free: Queue[int] = Queue()
    for core in cores:
        free.put(core)
    return ThreadPoolExecutor(len(cores), initializer=lambda: os.sched_setaffinity(0, {free.get()}))


def _folder(options: argparse.Namespace, text: str, budget: str, name: str) -> Path:
    folder: Path = options.scratch / f"choice-{text}-{budget}" / name
    published = options.published and name != CHOSEN
    return folder.with_name(f"published-{name}") if published else folder


def _make(folder: Path, text: str, recipe: str, budget: str, ranks: int) -> None:
    """Spend the budget on this recipe, unless it was spent or is too small."""
    if finished(folder) is not None or _refused(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)
    try:
        run(folder, text, recipe, budget, "alone", ranks=ranks)
    except SystemExit:
        if not _refused(folder):
            raise


def _by_hand(size: str, schedule: str, published: bool) -> str:
    names = ("width", "heads", "inner", "encoder", "decoder")
    numbers = dict(zip(names, SIZES[size], strict=True))
    text = PUBLISHED if published else HAND
    return text.format(**numbers, schedule=schedule, warmup=SCHEDULES[schedule])


def _refused(folder: Path) -> bool:
    """Whether the budget is too small for the recipe, which is said before any training."""
    log = folder / "log"
    return log.exists() and "the budget is too small" in log.read_text(encoding="utf-8")


def _row(folder: Path) -> tuple[float, str]:
    """The test BLEU of a run, and its cells of the table."""
    found = finished(folder)
    assert found is not None
    path, kept = found
    assert kept.used_s is not None
    facts = read_facts(path)
    dev = max(one.bleu for one in facts.validations if one.bleu is not None)
    test = facts.test_scores[-1].bleu
    assert test is not None
    used = f"{kept.used_s / kept.seconds_s:.1%}"
    return test, f"{used} | {facts.last_step:,} | {dev:.2f} | {test:.2f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.fr ...")
    parser.add_argument("--languages", nargs="+", default=["fr", "cs"], choices=["de", "fr", "cs"])
    parser.add_argument("--demo", action="store_false", dest="no_demo", help="the demo's text, too")
    parser.add_argument("--budgets", nargs="+", default=["5min", "15min", "45min"])
    parser.add_argument(
        "--recipes",
        nargs="+",
        choices=[f"{size}-{schedule}" for size in HAND_SIZES for schedule in SCHEDULES],
        help="those by hand; all six",
    )
    parser.add_argument("--published", action="store_true", help="the settings of papers")
    parser.add_argument("--cores", type=int, nargs="+", help="one run on each of these at once")
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
