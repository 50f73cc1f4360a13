"""The parts of a comparison: its models, test sets, words of training text, and its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.api.comparison import Comparison
from dragoman.base.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    DragomanError,
    MachineError,
)
from dragoman.base.languages import same_language
from dragoman.corpus.directions import listed, same_direction, without_first_word
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.vocabulary import load_vocabulary
from dragoman.evaluation.comet import Comet
from dragoman.evaluation.paired import CometScores, Winner, word_counts
from dragoman.evaluation.validate import read_lines, read_pair
from dragoman.formats.bundle import Bundle, is_bundle
from dragoman.inference.translator import open_translator
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import Compared, EventWriter

_COUNTED_PAIRS: Final = 100_000
"""The most training pairs whose words are counted, spread over the whole text."""


@dataclass(frozen=True, slots=True)
class TestSet:
    """Sentences and their references."""

    name: str
    sources: list[str]
    references: list[str]


def record(comparison: Comparison, run: RunDirectory, side: Winner) -> None:
    """Write the comparison into the events of a compared run, if they can be written.

    side: the system that this run is.
    """
    other: Winner = "second" if side == "first" else "first"
    result = comparison.result
    better = "neither" if result.winner is None else "run" if result.winner == side else "other"
    # As absolute as the name of the test set, for the same reason.
    of = {"name": comparison.test, "other": str(whole_path(Path(getattr(comparison, other))))}
    with suppress(MachineError), EventWriter(run.events) as events:
        for metric, score in result.scores.items():
            events.write(
                Compared(
                    **of,
                    pairs=result.pairs,
                    model=getattr(comparison, side),
                    metric=metric,
                    value=getattr(score, side),
                    other_value=getattr(score, other),
                    p_bootstrap=score.p_bootstrap,
                    p_randomisation=score.p_randomisation,
                    signature=score.signature,
                    better=better,
                    ahead=getattr(result, f"{side}_wins"),
                    behind=getattr(result, f"{other}_wins"),
                )
            )


def rated(rater: Comet, test: TestSet, one: list[str], other: list[str]) -> CometScores:
    """COMET's ratings of both translations of a test set."""
    first, second = (rater.scores(test.sources, lines, test.references) for lines in (one, other))
    return CometScores(first, second, rater.signature)


def recipe_of(path: Path, run: RunDirectory | None) -> Recipe | None:
    """The recipe of a model; None for a file of translations."""
    if run is None and not is_bundle(path):
        return None
    return Bundle.open(path).recipe if run is None else run.recipe()


def refuse_opposite(first: Recipe, second: Recipe, *, place: Path) -> None:
    """Raises ConfigError if the second model only translates back what the first one translates.

    Other directions are not refused: imported models may have languages of no known code.
    """
    ours, theirs = first.corpus.directions, second.corpus.directions
    is_same = any(same_direction(one, other) for one in ours for other in theirs)
    is_swapped = any(same_direction(one[::-1], other) for one in ours for other in theirs)
    if is_swapped and not is_same:
        raise ConfigError(
            f"translates {listed(theirs)}, and the other model {listed(ours)}",
            place=place,
            remedy="name two models of the same languages",
        )


def run_of(path: Path) -> RunDirectory | None:
    """The run at a path, or the run that contains a checkpoint."""
    if not path.is_dir():
        return None
    folder = path.absolute().parent
    if folder.name == "checkpoints" and (run := RunDirectory(folder.parent)).recipe_file.is_file():
        return run
    if is_bundle(path):
        return None
    from dragoman.formats.load import run_at

    return run_at(path)


def num_targets(recipe: Recipe) -> int:
    """The number of languages that a model translates into."""
    return len({direction.target for direction in recipe.corpus.directions})


def named_test(source: Path, reference: Path, language: str) -> TestSet:
    """A test set, named by its files, and the language if a model translates into several.

    The paths are absolute: a report keeps the comparisons of calls in all folders. The suffixes
    stay: files of several languages often have the same stem.
    """
    first, second = whole_path(source), whole_path(reference)
    beside = second.name if first.parent == second.parent else second
    name = f"{first}, {beside}" + (f" ({language})" if language else "")
    return TestSet(name, *read_pair(source, reference))


def whole_path(path: Path) -> Path:
    """The absolute path; links in its folder are resolved, a link as its last part is not."""
    return path.parent.resolve() / path.name


def test_of_runs(runs: Sequence[RunDirectory]) -> TestSet:
    """The test set of the runs; raises ConfigError if there is none or if they differ."""
    found: list[TestSet] = []
    for run in runs:
        # Its prepared text may be gone; that of the other run may be there.
        with suppress(CorpusError, CheckpointError):
            found.append(own_text(run, "test"))
    if not found:
        raise ConfigError(
            "no model has a test set of its own",
            place="test",
            remedy="name the files of one: its source and its reference",
        )
    if any(test != found[0] for test in found):
        raise ConfigError(
            "the runs have different test sets",
            place="test",
            remedy="name the files of one: its source and its reference",
        )
    return found[0]


def own_text(run: RunDirectory, name: str) -> TestSet:
    """The dev or test set of a run. name: "valid" or "test".

    Raises ConfigError if it is of several directions, CorpusError or CheckpointError if it is gone.
    """
    corpus = run.recipe().corpus
    if len(corpus.directions) > 1:
        raise ConfigError(
            "its own text is of several directions, and one is wanted",
            place=run.path,
            remedy="name the files of one, source and reference, and the target language",
        )
    folder = run.prepared() / name
    one = TestSet(name, *read_pair(folder / "source.txt", folder / "target.txt"))
    # The translator puts the token before each source itself.
    plain = [without_first_word(line, corpus.language_tokens) for line in one.sources]
    return replace(one, sources=plain)


def training_words(
    run: RunDirectory, language: str, *, lowercase: bool
) -> tuple[Counter[str] | None, int]:
    """Counts of the words of the training text in the target language, and the number of pairs
    counted; None and 0 if the text is gone."""
    corpus = run.recipe().corpus
    entries = None
    try:
        prepared = run.prepared()
        shards = TokenShards(prepared / "train", share=run.recipe().data.share)
        vocabulary = load_vocabulary(prepared / "target.model")
        if len({direction.target for direction in corpus.train_directions}) > 1:
            entries = shards.entries()
    except DragomanError:
        return None, 0
    pairs: range | NDArray[np.int64] = range(shards.num_pairs)
    if entries is not None:
        of_language = [
            same_language(corpus.direction_of(entry).target, language) for entry in corpus.train
        ]
        pairs = np.flatnonzero(np.array(of_language)[entries])
    step = max(1, -(-len(pairs) // _COUNTED_PAIRS))
    rows = [shards.target(int(pair)).tolist() for pair in pairs[::step]]
    texts = vocabulary.decode(rows)
    lines = (text.lower() if lowercase else text for text in texts)
    return word_counts(lines, language), len(rows)


def read_translations(path: Path, test: TestSet) -> list[str]:
    """Finished translations of a test set, one per line; raises CorpusError for another number."""
    lines = read_lines(path)
    if len(lines) != len(test.references):
        raise CorpusError(
            f"{len(lines)} translations for {len(test.references)} references",
            place=path,
            remedy="give the translations of this test set, a line each",
        )
    return lines


def translate(
    path: Path, run: RunDirectory | None, tests: Sequence[TestSet], target: str, threads: int | None
) -> list[list[str]]:
    """The translations of every test set."""
    model, checkpoint = path, "best"
    if run is not None and run.path.absolute() != path.absolute():
        model, checkpoint = run.path, str(path.absolute())  # it may be called "best"
    with open_translator(model, checkpoints=[checkpoint], threads=threads, target=target) as opened:
        return [[best.text for best in opened.best(test.sources, scored=False)] for test in tests]
