"""A run on made-up text whose nouns have three translations each, trained for a minute."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from dragoman.recipe.run_directory import RunDirectory
from parallel_text import write_pairs
from small_run import RECIPE, copied_run, train_in

NOUNS = (
    "cell", "table", "chart", "page", "field", "menu", "sheet", "frame", "button", "font",
    "line", "border",
)  # fmt: skip
_SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "wo", "zi")
VERBS = {"open": "öffne", "close": "schließe", "see": "sieh", "move": "bewege", "take": "nimm"}
ENDINGS = {"one": ("ein", ""), "all": ("alle", "en")}
"""For each determiner of the source: its translation, and the ending of the noun behind it."""


def _stems() -> dict[str, tuple[str, ...]]:
    chosen = random.Random(1)
    return {
        noun: tuple("".join(chosen.sample(_SYLLABLES, 3)).capitalize() + "t" for _ in range(3))
        for noun in NOUNS
    }


STEMS = _stems()
"""Each noun has three translations, among which nothing decides but a term."""


def sentences(count: int, *, seed: int) -> list[tuple[str, str]]:
    """Pairs such as "open one cell and all tables": each word is translated at its place."""
    chosen = random.Random(seed)
    pairs = []
    for _ in range(count):
        verb = chosen.choice([*VERBS])
        source, target = [verb], [VERBS[verb]]
        for number in range(chosen.choice((1, 2, 2, 2, 2))):
            noun, determiner = chosen.choice(NOUNS), chosen.choice([*ENDINGS])
            article, ending = ENDINGS[determiner]
            source += [*["and"][:number], determiner, noun]
            target += [*["und"][:number], article, chosen.choice(STEMS[noun]) + ending]
        pairs.append((f"{' '.join(source)}.", f"{' '.join(target)}."))
    return pairs


LEARNING = (
    RECIPE.replace("max_pieces = 60", "max_pieces = 60\naugment = {placeholders = 0.3}")
    .replace("vocab_size = 500", "vocab_size = 220")
    .replace("d_model = 48", "d_model = 64")
    .replace("batch_tokens = 1500", "batch_tokens = 2500")
    .replace("peak_learning_rate = 0.006", "peak_learning_rate = 0.008")
    .replace("_steps = 180", "_steps = 600")
    .replace("log_every_steps = 60", "log_every_steps = 200")
)


@cache
def terms_run() -> RunDirectory:
    """A copy of the run for this process."""
    return copied_run("terms-run", _train, Path(__file__))


def _train(folder: Path) -> None:
    for name, count, seed in (("train", 8000, 2), ("valid", 50, 3)):
        sources, targets = zip(*sentences(count, seed=seed), strict=True)
        write_pairs(folder, name, ([*sources], [*targets]))
    train_in(folder, LEARNING)
