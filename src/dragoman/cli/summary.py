"""The end of a run on the console: some translations, and the places of its files."""

from __future__ import annotations

import shlex

from rich.table import Table
from rich.text import Text

from dragoman.base.terminal import open_console
from dragoman.evaluation.validate import read_lines
from dragoman.recipe.run_directory import RunDirectory

_NUM_SENTENCES = 3


def print_summary(run: RunDirectory) -> None:
    """Three sentences of the test set with their translations, and the places of a run."""
    console = open_console()
    recipe = run.recipe()
    first = recipe.corpus.directions[0].target
    translations = run.samples / f"test.{first}"
    if translations.is_file():
        test = run.prepared() / "test"
        columns = (test / "source.txt", translations, test / "target.txt")
        for sentence in _shortest_third(list(zip(*map(read_lines, columns), strict=True))):
            console.print("", _sentence(sentence), soft_wrap=True)
    name = shlex.quote(str(run.path))
    target = f" --target {first}" if recipe.corpus.language_tokens else ""
    places = Table.grid(padding=(0, 2))
    for what, place in [
        ("run", run.path),
        ("checkpoints", run.checkpoints),
        *([("translations", run.samples)] if run.samples.is_dir() else []),
        ("curves", f"tensorboard --logdir {shlex.quote(str(run.path.parent))}"),
        ("every file", f"dragoman inspect {name}"),
        ("translate", f'echo "Click the button." | dragoman translate {name}{target}'),
    ]:
        places.add_row(Text(what, style="dim"), Text(str(place)))
    console.print("", places, soft_wrap=True)


def _shortest_third(sentences: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Three sentences, evenly from the shorter third of the set: they fit on a line."""
    short = sorted(sentences, key=lambda sentence: len(sentence[0]))[: max(1, len(sentences) // 3)]
    return short[:: -(-len(short) // _NUM_SENTENCES)]


def _sentence(sentence: tuple[str, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in zip(("source", "translation", "reference"), sentence, strict=True):
        table.add_row(Text(name, style="dim"), Text(text))
    return table
