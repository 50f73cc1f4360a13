"""Two models translate the same test sets: is one better?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.api.checks import checked, path_of
from dragoman.api.kinds import Count, Option, RunLike, Target
from dragoman.base.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.evaluation.paired import PairedComparison


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


System = Annotated[RunLike, Option(metavar="RUN|EXPORT|FILE")]


@checked
def compare(
    first: System,
    second: System,
    *,
    tests: Annotated[
        Sequence[tuple[str | Path, str | Path]], Option("--test", "SOURCE,REFERENCE")
    ] = (),
    target_language: Target = "",
    threads: Count | None = None,
    comet: Annotated[
        tuple[str | Path, str | Path] | None, Option(metavar="PYTHON,CHECKPOINT")
    ] = None,
) -> list[Comparison]:
    """Test whether one of two models is better.

    Both translate the test sets. BLEU, chrF and, if available, COMET are compared with paired
    tests, by length and by rare words; the sentences that differ most are named.

    first: a run, the folder of a checkpoint in a run, an export, or a file of finished
        translations, one per line (then there is only one test set).
    second: the other model, or its translations.
    tests: the source text of a test set and its reference; may be given again; none: the test set
        of the runs.
    target_language: the language of the references. It is needed if a model translates into
        several languages, or if both are files of translations into Chinese, Japanese, Korean or
        Thai, which BLEU cuts into words in other ways.
    threads: cores; None: all.
    comet: a Python that has unbabel-comet, and a COMET checkpoint (Rei et al. 2020), which that
        Python loads in a process of its own, without downloads; None: no COMET.
    The comparison is recorded in the runs that can be written to, whose reports show it.
    Raises ConfigError if a model does not exist, there is no test set, the runs' test sets differ,
    a file of translations is given with several test sets, one model translates in the opposite
    direction of the other or a name is not UTF-8; CorpusError if a text cannot be read or has
    another number of lines; CheckpointError if a model is damaged; MachineError if COMET fails.
    """
    from dragoman.api import systems
    from dragoman.base.disk_errors import check_writable_names
    from dragoman.evaluation.comet import open_comet
    from dragoman.evaluation.paired import SIDES, compare_translations

    paths = [path_of(one) for one in (first, second)]
    for path in paths:  # before hours of search, not after them
        if not path.exists():
            raise ConfigError(
                "no such run, export or file of translations", place=path, remedy="check its name"
            )
    files = [(Path(source), Path(reference)) for source, reference in tests]
    check_writable_names(map(systems.whole_path, chain(paths, *files)))
    runs = [systems.run_of(path) for path in paths]
    recipes = [one for one in map(systems.recipe_of, paths, runs) if one is not None]
    if len(recipes) == 2:
        systems.refuse_opposite(*recipes, place=paths[1])
    into = target_language if any(systems.num_targets(one) > 1 for one in recipes) else ""
    sets = [systems.named_test(*pair, into) for pair in files]
    if not sets:
        sets = [systems.test_of_runs([run for run in runs if run is not None])]
    if len(sets) > 1 and not all(path.is_dir() for path in paths):
        raise ConfigError(
            "a file of translations belongs to one test set",
            place="tests",
            remedy="name one test set, or models in place of the file",
        )
    lowercase = any(one.scoring.lowercase for one in recipes)
    targets = [one.corpus.directions[0].target for one in recipes]
    language = target_language or next(iter(targets), "")
    counts, counted_pairs = None, 0
    for run in runs:
        if run is not None and counts is None:
            counts, counted_pairs = systems.training_words(run, language, lowercase=lowercase)
    given = [None if path.is_dir() else systems.read_translations(path, sets[0]) for path in paths]
    found = []
    raters = nullcontext() if comet is None else open_comet(*map(Path, comet), threads=threads)
    with raters as rater:  # it is loaded before hours of search, not after them
        one, other = (
            systems.translate(path, run, sets, target_language, threads)
            if lines is None
            else [lines]
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
                comet=None if rater is None else systems.rated(rater, test, ones, others),
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
                systems.record(comparison, run, side)
    return found
