"""A run on made-up paragraphs, in which a pronoun tells its gender only by the sentence before."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from dragoman.recipe.run_directory import RunDirectory
from parallel_text import write_lines, write_pairs
from small_run import RECIPE, copied_run, train_in

NOUNS = {
    "cell": ("die Zelle", "sie"), "table": ("die Tabelle", "sie"), "page": ("die Seite", "sie"),
    "field": ("das Feld", "es"), "menu": ("das Menü", "es"), "sheet": ("das Blatt", "es"),
    "frame": ("den Rahmen", "ihn"), "button": ("den Knopf", "ihn"), "border": ("den Rand", "ihn"),
}  # fmt: skip
"""Each noun with its translation, and the pronoun that stands for it."""
VERBS = {"open": "öffne", "see": "lies", "move": "bewege", "take": "nimm"}
SENTENCES = 3


def paragraph(chosen: random.Random) -> list[tuple[str, str]]:
    """Two or three sentences: one names a thing, and those behind it call it "it"."""
    noun = chosen.choice([*NOUNS])
    thing, pronoun = NOUNS[noun]
    pairs = []
    for number in range(chosen.choice((2, 3))):
        verb = chosen.choice([*VERBS])
        object_, translation = ("it", pronoun) if number else (f"the {noun}", thing)
        pairs.append((f"Now {verb} {object_}.", f"Jetzt {VERBS[verb]} {translation}."))
    return pairs


LEARNING = (
    RECIPE.replace("max_pieces = 60", f"max_pieces = 60\ncontext = {{sentences = {SENTENCES}}}")
    .replace("vocab_size = 500", "vocab_size = 120")
    .replace("_steps = 180", "_steps = 400")
    .replace("log_every_steps = 60", "log_every_steps = 200")
)


def split_at(separator: int | None, ids: list[int]) -> list[list[int]]:
    """The parts of a row between separators."""
    parts: list[list[int]] = [[]]
    for one in ids:
        if one == separator:
            parts.append([])
        else:
            parts[-1].append(one)
    return parts


@cache
def paragraphs_run() -> RunDirectory:
    """A copy of the run for this process."""
    return copied_run("paragraphs-run", _train, Path(__file__))


def _train(folder: Path) -> None:
    chosen = random.Random(1)
    texts = [paragraph(chosen) for _ in range(4000)]
    for side, language in enumerate(("en", "de")):
        lines = [pair[side] for text in texts for pair in (*text, ("", ""))]
        write_lines(folder / f"train.{language}", lines)
    write_pairs(folder, "valid", (["Close it."], ["Schließe es."]))
    train_in(folder, LEARNING)
