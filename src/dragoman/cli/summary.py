"""The end of a run on the console: some translations, and the commands that go on from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import Direction, without_first_word
from dragoman.corpus.split import read_directions
from dragoman.evaluation.directions import rows_by_direction
from dragoman.evaluation.validate import read_lines
from dragoman.formats.bundle import INFO_FILE, BundleInfo
from dragoman.recipe.run_directory import RunDirectory

_NUM_SENTENCES = 3


def print_summary(run: RunDirectory) -> None:
    """Print up to three translated sentences of the test set, and the commands that go on."""
    console = open_console()
    corpus = run.recipe().corpus
    direction, translated = _translated(run, corpus)
    sentences = _shortest_third(translated)
    for sentence in sentences:
        console.print("", _sentence(sentence), soft_wrap=True)
    name = shlex.quote(str(run.path))
    target = f" --target {direction.target}" if corpus.language_tokens else ""
    translate = f"dragoman translate {name}{target}"
    for source, *_ in sentences:
        if _is_echoed(source):
            translate = f"echo {shlex.quote(source)} | {translate}"
            break
    console.print()
    for what, place in [
        ("run", run.path),
        ("how it went", f"dragoman report {name}"),
        ("translate", translate),
        ("export", f"dragoman export {name} --to ctranslate2"),
        ("serve", f"dragoman serve {name}"),
        ("its files", f"dragoman inspect {name}"),
    ]:
        # No table: on a narrow terminal it would break a command inside its quotes.
        console.print(Text.assemble((f"{what:<14}", "dim"), str(place)), soft_wrap=True)
    for warning in _warnings(run):
        console.print(Text(f"\n{warning}", style="yellow"))


def _warnings(run: RunDirectory) -> Iterator[str]:
    """What to know of the run's exports that do not translate as our own search does."""
    for path in sorted(run.path.glob(f"export/*/{INFO_FILE}")):
        if warning := BundleInfo.model_validate_json(path.read_bytes()).verified.warning:
            yield f"{path.parent}: {warning}"


def _translated(run: RunDirectory, corpus: CorpusConfig) -> tuple[Direction, list[tuple[str, ...]]]:
    """The test set's first direction, and its sources, translations and references. Without a
    translated test set: the run's first direction and no sentence."""
    test = run.prepared() / "test"
    directions = rows_by_direction(read_directions(test))
    direction = next(iter(directions), corpus.directions[0])
    name = direction if directions else direction.target
    folder = run.own_samples if run.own_samples.is_dir() else run.samples
    translations = folder / f"test.{name}"
    if not translations.is_file():
        return direction, []
    sources, references = (read_lines(test / f"{side}.txt") for side in ("source", "target"))
    rows = directions.get(direction, range(len(sources)))
    tokens = corpus.language_tokens
    found = [(without_first_word(sources[row], tokens), references[row]) for row in rows]
    return direction, [
        (source, translation, reference)
        for (source, reference), translation in zip(found, read_lines(translations), strict=True)
    ]


def _shortest_third(sentences: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """At most three sentences, spread over the shortest third of the set: they fit on a line."""
    short = sorted(sentences, key=lambda sentence: len(sentence[0]))[: max(1, len(sentences) // 3)]
    return short[:: max(1, -(-len(short) // _NUM_SENTENCES))]


def _is_echoed(text: str) -> bool:
    """Whether `echo` writes this text unchanged in every shell, and terminals show it unchanged."""
    return (
        text == printable_line(text) and text.strip() != "" and text[0] != "-" and "\\" not in text
    )


def _sentence(sentence: tuple[str, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in zip(("source", "translation", "reference"), sentence, strict=True):
        table.add_row(Text(name, style="dim"), Text(text))
    return table
