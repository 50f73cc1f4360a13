"""Two models translate the same test sets: is one better?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.api.arguments import Count, RunLike, checked, path_of
from dragoman.base.disk_errors import check_writable_names
from dragoman.base.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    DragomanError,
    MachineError,
)
from dragoman.base.printable import clipped
from dragoman.corpus.directions import Direction, listed, without_first_word
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.vocabulary import load_vocabulary
from dragoman.evaluation.comet import Comet, open_comet
from dragoman.evaluation.paired import (
    SIDES,
    CometScores,
    PairedComparison,
    Winner,
    compare_translations,
    word_counts,
)
from dragoman.evaluation.validate import read_lines, read_pair
from dragoman.formats.bundle import Bundle, is_bundle
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.serve.translator import open_translator
from dragoman.telemetry.events import Compared, ComparedGroup, ComparedSentence, EventWriter

_COUNTED_PAIRS: Final = 100_000
"""The most training pairs whose words are counted, spread over the whole text."""
_LONGEST: Final = 500
"""Characters of a text in the record of a run."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Two systems on one test set.

    test: the name of the test set: "test" for that of the runs, else its files.
    first: the name of one system. second: the name of the other.
    result: scores, p-values, groups and sentences.
    counted_pairs: training pairs whose words were counted, of the first run that still has them.
    """

    test: str
    first: str
    second: str
    result: PairedComparison
    counted_pairs: int

    @property
    def better(self) -> str | None:
        """The system that is better by every metric and test; None if neither is."""
        winner = self.result.winner
        return None if winner is None else {"first": self.first, "second": self.second}[winner]

    def __repr__(self) -> str:
        """The scores and the verdict, as a notebook shows them."""
        lines = [f"{self.test}, {self.result.pairs} sentences: {self.first} and {self.second}"]
        lines += [
            f"  {metric}: {score.first:.2f} and {score.second:.2f}, p of the difference "
            f"{score.p_bootstrap:.4f} (bootstrap), {score.p_randomisation:.4f} (randomisation)"
            for metric, score in self.result.scores.items()
        ]
        return "\n".join([*lines, f"  better: {self.better or 'neither is shown to be'}"])


@dataclass(frozen=True, slots=True)
class _Test:
    name: str
    sources: list[str]
    references: list[str]


@checked
def compare(
    first: RunLike,
    second: RunLike,
    *,
    tests: Sequence[tuple[str | Path, str | Path]] = (),
    target_language: str = "",
    threads: Count | None = None,
    comet: tuple[str | Path, str | Path] | None = None,
) -> list[Comparison]:
    """Translate test sets with two models and test whether the difference can be chance.

    first, second: each a run, a checkpoint's directory in a run, an export, or a file of
        finished translations, one per line (then there is only one test set).
    tests: source text and reference of each test set; if empty, the test set of the runs.
    target_language: the language of the references. It is needed if a model translates into
        several languages, or if both are files of translations into Chinese, Japanese, Korean or
        Thai, which BLEU cuts into words in other ways.
    threads: cores; None: all.
    comet: a Python that has unbabel-comet, and a COMET checkpoint (Rei et al. 2020), which that
        Python loads in a process of its own, without downloads; by default there is no COMET.
    The comparison is recorded in the runs that can be written to, whose reports show it.
    Raises ConfigError if a model does not exist, there is no test set, the runs' test sets differ,
    a file of translations is given with several test sets, one model translates in the opposite
    direction of the other or a name is not UTF-8; CorpusError if a text cannot be read or has
    another number of lines; CheckpointError if a model is damaged; MachineError if COMET fails.
    """
    paths = [path_of(one) for one in (first, second)]
    for path in paths:  # before hours of search, not after them
        if not path.exists():
            raise ConfigError(
                "no such run, export or file of translations", place=path, remedy="check its name"
            )
    files = [(Path(source), Path(reference)) for source, reference in tests]
    check_writable_names(map(_whole, chain(paths, *files)))
    runs = [_run_of(path) for path in paths]
    recipes = [one for one in map(_recipe_of, paths, runs) if one is not None]
    if len(recipes) == 2:
        _refuse_opposite(*recipes, place=paths[1])
    into = target_language if any(_targets(one) > 1 for one in recipes) else ""
    sets = [_Test(_name(*pair, into), *read_pair(*pair)) for pair in files]
    if not sets:
        sets = [_test_of_runs([run for run in runs if run is not None])]
    if len(sets) > 1 and not all(path.is_dir() for path in paths):
        raise ConfigError(
            "a file of translations belongs to one test set",
            place="tests",
            remedy="name one test set, or models in place of the file",
        )
    lowercase = any(one.scoring.lowercase for one in recipes)
    targets = [one.corpus.directions[0].target for one in recipes]
    language = target_language or next(iter(targets), "")
    counts: Counter[str] | None = None
    counted_pairs = 0
    for run in runs:
        if run is not None and counts is None:
            counts, counted_pairs = _training_words(run, language, lowercase=lowercase)
    given = [None if path.is_dir() else _read_translations(path, sets[0]) for path in paths]
    found = []
    raters = nullcontext() if comet is None else open_comet(*map(Path, comet), threads=threads)
    with raters as rater:  # it is loaded before hours of search, not after them
        one, other = (
            _translate(path, run, sets, target_language, threads) if lines is None else [lines]
            for path, run, lines in zip(paths, runs, given, strict=True)
        )
        for test, ones, others in zip(sets, one, other, strict=True):
            result = compare_translations(
                ones,
                others,
                test.references,
                sources=test.sources,
                language=language,
                lowercase=lowercase,
                training_words=counts,
                comet=None if rater is None else _rated(rater, test, ones, others),
            )
            first_name, second_name = map(str, paths)
            found.append(Comparison(test.name, first_name, second_name, result, counted_pairs))
    recorded = set()  # a run may be compared with itself, and a test set may be named twice
    for side, run, beside in zip(SIDES, runs, reversed(paths), strict=True):
        if run is None:
            continue
        for comparison in found:
            key = (run.path.resolve(), beside.resolve(), comparison.test)
            if key not in recorded:
                recorded.add(key)
                record(comparison, run, side)
    return found


def record(comparison: Comparison, run: RunDirectory, side: Winner) -> None:
    """Write the comparison into the events of a compared run, if they can be written.

    side: the system that this run is.
    """
    other: Winner = "second" if side == "first" else "first"
    result = comparison.result
    better = "neither" if result.winner is None else "run" if result.winner == side else "other"
    # As absolute as the name of the test set, for the same reason.
    of = {"name": comparison.test, "other": str(_whole(Path(getattr(comparison, other))))}
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
        for by, groups in (("length", result.by_length), ("frequency", result.by_frequency)):
            for group in groups:
                events.write(
                    ComparedGroup(
                        **of,
                        by=by,
                        group=group.name,
                        size=group.size,
                        value=getattr(group, side),
                        other_value=getattr(group, other),
                        counted_pairs=comparison.counted_pairs,
                    )
                )
        for sentence in (*result.first_best, *result.second_best):
            events.write(
                ComparedSentence(
                    **of,
                    line=sentence.line,
                    source=clipped(sentence.source, _LONGEST),
                    reference=clipped(sentence.reference, _LONGEST),
                    translation=clipped(getattr(sentence, side), _LONGEST),
                    other_translation=clipped(getattr(sentence, other), _LONGEST),
                    chrf=getattr(sentence, f"{side}_chrf"),
                    other_chrf=getattr(sentence, f"{other}_chrf"),
                )
            )


def _rated(rater: Comet, test: _Test, one: list[str], other: list[str]) -> CometScores:
    """COMET's ratings of both translations of a test set."""
    first, second = (rater.scores(test.sources, lines, test.references) for lines in (one, other))
    return CometScores(first, second, rater.signature)


def _recipe_of(path: Path, run: RunDirectory | None) -> Recipe | None:
    """The recipe of a model; None for a file of translations."""
    if run is None and not is_bundle(path):
        return None
    return Bundle.open(path).recipe if run is None else run.recipe()


def _refuse_opposite(first: Recipe, second: Recipe, *, place: Path) -> None:
    """Raises ConfigError if the second model only translates back what the first one translates.

    Other directions are not refused: imported models name languages in other ways.
    """
    ours, theirs = first.corpus.directions, second.corpus.directions
    swapped = {Direction(one.target, one.source) for one in ours}
    if swapped.intersection(theirs) and not {*ours}.intersection(theirs):
        raise ConfigError(
            f"translates {listed(theirs)}, and the other model {listed(ours)}",
            place=place,
            remedy="name two models of the same languages",
        )


def _run_of(path: Path) -> RunDirectory | None:
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


def _targets(recipe: Recipe) -> int:
    """The number of languages that a model translates into."""
    return len({direction.target for direction in recipe.corpus.directions})


def _name(source: Path, reference: Path, language: str) -> str:
    """The name of a test set: its files, and the language if a model translates into several.

    The paths are absolute: a report keeps the comparisons of calls in all folders. The suffixes
    stay: files of several languages often have the same stem.
    """
    first, second = _whole(source), _whole(reference)
    beside = second.name if first.parent == second.parent else second
    return f"{first}, {beside}" + (f" ({language})" if language else "")


def _whole(path: Path) -> Path:
    """The absolute path; links in its folder are resolved, a link as its last part is not."""
    return path.parent.resolve() / path.name


def _test_of_runs(runs: Sequence[RunDirectory]) -> _Test:
    """The test set of the runs; raises ConfigError if there is none or if they differ."""
    found: list[_Test] = []
    for run in runs:
        corpus = run.recipe().corpus
        if len(corpus.directions) > 1:
            raise ConfigError(
                "its test set is of several directions, and one is compared",
                place=run.path,
                remedy="name the files of one, source and reference, and the target language",
            )
        # Its prepared text may be gone; that of the other run may be there.
        with suppress(CorpusError, CheckpointError):
            folder = run.prepared() / "test"
            one = _Test("test", *read_pair(folder / "source.txt", folder / "target.txt"))
            # The translator puts the token before each source itself.
            plain = [without_first_word(line, corpus.language_tokens) for line in one.sources]
            found.append(replace(one, sources=plain))
    if not found:
        raise ConfigError(
            "neither model has a test set of its own",
            place="compare",
            remedy="name the files of one: its source and its reference",
        )
    if any(test != found[0] for test in found):
        raise ConfigError(
            "the two runs have different test sets",
            place="compare",
            remedy="name the files of one: its source and its reference",
        )
    return found[0]


def _training_words(
    run: RunDirectory, language: str, *, lowercase: bool
) -> tuple[Counter[str] | None, int]:
    """Counts of the words of the training text in the target language, and the number of pairs
    counted; None and 0 if the text is gone."""
    corpus = run.recipe().corpus
    entries = None
    try:
        prepared = run.prepared()
        shards = TokenShards(prepared / "train")
        vocabulary = load_vocabulary(prepared / "target.model")
        if len({direction.target for direction in corpus.train_directions}) > 1:
            entries = shards.entries()
    except DragomanError:
        return None, 0
    pairs: range | NDArray[np.int64] = range(shards.num_pairs)
    if entries is not None:
        of_language = [corpus.direction_of(entry).target == language for entry in corpus.train]
        pairs = np.flatnonzero(np.array(of_language)[entries])
    step = max(1, -(-len(pairs) // _COUNTED_PAIRS))
    rows = [shards.target(int(pair)).tolist() for pair in pairs[::step]]
    texts = vocabulary.decode(rows)
    lines = (text.lower() if lowercase else text for text in texts)
    return word_counts(lines, language), len(rows)


def _read_translations(path: Path, test: _Test) -> list[str]:
    lines = read_lines(path)
    if len(lines) != len(test.references):
        raise CorpusError(
            f"{len(lines)} translations for {len(test.references)} references",
            place=path,
            remedy="give the translations of this test set, a line each",
        )
    return lines


def _translate(
    path: Path, run: RunDirectory | None, tests: Sequence[_Test], target: str, threads: int | None
) -> list[list[str]]:
    """The translations of every test set."""
    model, checkpoint = path, "best"
    if run is not None and run.path.absolute() != path.absolute():
        model, checkpoint = run.path, str(path.absolute())  # it may be called "best"
    with open_translator(
        model,
        checkpoints=[checkpoint],
        overrides=(),
        engine="auto",
        threads=threads,
        target=target,
    ) as opened:
        return [
            [
                translations[0].text
                for group in opened.translator.stream(
                    test.sources, opened.recipe.search, text_format="line", scored=False
                )
                for translations in group
            ]
            for test in tests
        ]
