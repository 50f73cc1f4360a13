"""Which lines of a text to translate first. Free of torch until a model tells how sure it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from dragoman.api.checks import checked, opened_run, optional_path
from dragoman.api.kinds import Count, Option, RunLike
from dragoman.base.errors import ConfigError, CorpusError

if TYPE_CHECKING:
    from dragoman.corpus.choose import Choice, Counts, Coverage, NgramCounts
    from dragoman.corpus.runs import PairKeys
    from dragoman.corpus.shards import TokenRows
    from dragoman.recipe.run_directory import RunDirectory

_FILTERS: Final = ("empty", "control_characters", "over_long")
_AT_ONCE: Final = 20_000
"""Lines of the training text that are in memory at the same time."""
_SHORTLIST: Final = 3
"""So many times the budget is translated, to see how uncertain the model is."""
_OTHER_LANGUAGE: Final = 1.5
"""Log odds of another language from which a line is left out; see `max_language_log_odds`."""
_SEARCH: Final = (
    *("search.beam_size=1", "search.candidates=1"),
    *('search.length_penalty="power"', "search.length_penalty_alpha=1"),
)
"""Settings with which the score of a translation is its log-probability per piece."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result of `choose`.

    output: the chosen lines, in the order of their choice. reasons: a table of their numbers in the
        text and of what they are worth.
    lines, words: chosen ones. read, trained: all lines of the text, and of the training text.
    left_out: how many lines were left out, by reason.
    new_words, new_phrases: words, and phrases of two or three, of the wanted text that the training
        text lacks, and how many of them the chosen lines have.
    """

    output: Path
    reasons: Path
    lines: int
    words: int
    read: int
    trained: int
    left_out: Mapping[str, int]
    new_words: Coverage
    new_phrases: Coverage


@checked
def choose(
    text: Annotated[str | Path, Option(metavar="MONOLINGUAL")],
    output: Annotated[str | Path, Option("--output", "FILE")],
    *,
    run: RunLike | None = None,
    like: Annotated[str | Path | None, Option(metavar="DEV")] = None,
    budget: Count = 10_000,
    uncertainty: bool = True,
    length_power: float = 0.5,
    progress: bool = False,
) -> Chosen:
    """Choose the lines of a text that are worth translating first.

    A line is worth the more, the more of its words and phrases the wanted text has, the less often
    the training text and the lines chosen before have them (feature decay: Biçici and Yuret 2011,
    Poncelas et al. 2018), and the less sure the model is of its translation. Repeats, lines of the
    training or the wanted text, empty and overlong lines, and lines in another language than the
    run's sources are left out.

    text: a file in the source language, one sentence per line. A million lines take about 1.2 GB of
        memory.
    output: a new file for the chosen lines; what each is worth is beside it, in FILE.tsv.
    run: a run, whose training text is known and whose model is asked; None: nothing is known.
    like: a text such as those that will be translated, one sentence per line; None: the text
        itself.
    budget: how many lines to choose.
    uncertainty: translate three times as many lines with the run's model, and multiply the worth of
        each by the negative log-probability per piece of its translation.
    length_power: the worth is divided by this power of the words of the line: 0 prefers long lines,
        1 short ones.
    progress: show the progress of the work.
    Raises ConfigError if the output has text already; CorpusError if a text cannot be read or has
    no line to choose; CheckpointError and MachineError.
    """
    import numpy as np

    from dragoman.api.progress import line_printer
    from dragoman.api.synthetic import place_of_pairs, text_of
    from dragoman.base.memory import memory_errors_named
    from dragoman.corpus.choose import choose as choose_rows
    from dragoman.corpus.choose import coverage

    source = text_of(Path(text))
    place = place_of_pairs(Path(output), source)
    reasons = place_of_pairs(place.with_name(f"{place.name}.tsv"), source)
    if not 0.0 <= length_power <= 2.0:
        raise ConfigError(
            f"{length_power:g} is not from 0 to 2", place="length_power", remedy="give such a power"
        )
    model = None if run is None else opened_run(run)
    say = line_printer(progress)
    with memory_errors_named("choose from fewer lines, or name a text that they shall be like"):
        lines = _read(source, optional_path(like), model, say)
        scale = 1 / np.maximum(lines.words.lengths, 1) ** length_power
        say("choosing")
        accepts = _of_languages(lines, model)
        unsure: dict[int, float] = {}
        if model is None or not uncertainty:
            found = choose_rows(lines.ngrams, budget, scale=scale, accepts=accepts)
        else:
            most = _SHORTLIST * budget
            found = choose_rows(lines.ngrams, most, scale=scale, accepts=accepts)
            rows = sorted(choice.row for choice in found)
            say(f"translating {len(rows):,} lines, to see how sure the model is")
            scores = _uncertainty(model, [lines.texts[row] for row in rows])
            unsure = dict(zip(rows, scores, strict=True))
            factors = np.array([unsure.get(row, 0.0) for row in range(len(scale))])
            found = choose_rows(lines.ngrams, budget, scale=scale * factors)
    if not found:
        told = "".join(f", {reason} {count:,}" for reason, count in lines.left_out.items())
        raise CorpusError(
            f"has no line that would teach anything (read {lines.num_read:,}{told})",
            place=source,
            remedy="give other text of the source language",
        )
    _write(place, reasons, lines, found, unsure)
    chosen = [choice.row for choice in found]
    return Chosen(
        place,
        reasons,
        len(found),
        int(lines.words.lengths[chosen].sum()),
        lines.num_read,
        lines.num_trained,
        dict(lines.left_out),
        *coverage(lines.ngrams, chosen),
    )


class _Lines(NamedTuple):
    """Lines to choose from, normalised, with their numbers; and what is known of all texts."""

    texts: list[str]
    numbers: list[int]
    words: TokenRows
    ngrams: NgramCounts
    left_out: Counter[str]
    num_read: int
    num_trained: int


def _read(
    source: Path, like: Path | None, run: RunDirectory | None, say: Callable[[str], None]
) -> _Lines:
    """Read all texts; raises CorpusError, also if the wanted text has no words."""
    import numpy as np

    from dragoman.corpus.choose import NgramCounts, Ngrams, expected_counts, words_of
    from dragoman.corpus.filters import FILTERS, Columns, FilterConfig, reject
    from dragoman.corpus.runs import near_key, pair_keys, repeated

    def keys_of(texts: Sequence[str]) -> PairKeys:
        return pair_keys([*map(near_key, texts)], [""] * len(texts), seed=0)

    def counted(texts: Sequence[str]) -> Counts:
        return np.bincount(ngrams.of(words_of(texts)).ids, minlength=len(ngrams))

    say("reading the text")
    texts = _normalized(source)
    keys = keys_of(texts)
    config = FilterConfig() if run is None else run.recipe().corpus.filters
    filters = [one for one in FILTERS if one.name in _FILTERS]
    out = dict.fromkeys(np.flatnonzero(repeated(keys)).tolist(), "repeat")
    out |= {one.row: one.filter for one in reject(Columns(texts, texts), config, filters=filters)}
    others = [text for row, text in enumerate(texts) if row not in out]
    wanted = [] if like is None else _normalized(like)
    # An n-gram of one line alone tells nothing of other lines. The wanted text counts twice, so
    # that all of its n-grams stay.
    ngrams = Ngrams(words_of([*others, *wanted, *wanted]), least=2)
    wanted_counts, known = counted(wanted), np.zeros(len(ngrams), np.int64)
    if like is not None and not wanted_counts.any():
        raise CorpusError("has no words", place=like, remedy="give sentences, one per line")
    known_keys, num_trained = [keys_of(wanted)], 0
    if run is not None:
        from dragoman.api.teacher import training_sources

        say("reading the training text")
        sources = training_sources(run)
        while group := [*islice(sources, _AT_ONCE)]:
            known += counted(group)
            known_keys.append(keys_of(group))
            num_trained += len(group)
    is_known = np.isin(keys, np.concatenate(known_keys))
    out = dict.fromkeys(np.flatnonzero(is_known).tolist(), "in the training or wanted text") | out
    rows = [row for row in range(len(texts)) if row not in out]
    others = [texts[row] for row in rows]
    words = words_of(others)
    of_lines = ngrams.of(words)
    if like is None:
        wanted_counts = np.bincount(of_lines.ids, minlength=len(ngrams))
        expected = wanted_counts.astype(np.float64)
    else:
        expected = expected_counts(of_lines, words, wanted_counts, len(wanted))
    counts = NgramCounts(of_lines, wanted_counts, known, ngrams.are_words, expected)
    left_out = Counter(reason.replace("_", " ") for reason in out.values())
    numbers = [row + 1 for row in rows]
    return _Lines(others, numbers, words, counts, left_out, len(texts), num_trained)


def _normalized(path: Path) -> list[str]:
    from dragoman.base.line_files import input_lines
    from dragoman.corpus.normalize import normalize

    with input_lines(path) as reader:
        return [normalize(line) for line in reader.text()]


def _of_languages(lines: _Lines, run: RunDirectory | None) -> Callable[[int], bool]:
    """Whether a line is in a source language of the run, if that can be told; counts it if not."""
    from dragoman.corpus.language import is_known, other_language_log_odds

    directions = () if run is None else run.recipe().corpus.directions
    languages = sorted({one.source for one in directions})
    if not all(map(is_known, languages)):
        languages = []

    def accepts(row: int) -> bool:
        odds = (other_language_log_odds([lines.texts[row]], code)[0] for code in languages)
        is_other = min(odds, default=0.0) > _OTHER_LANGUAGE
        lines.left_out.update(["in another language"] * is_other)
        return not is_other

    return accepts


def _uncertainty(run: RunDirectory, texts: list[str]) -> list[float]:
    """The negative log-probability per piece of the model's translation of each text."""
    from dragoman.inference.translator import open_translator

    target = run.recipe().corpus.directions[0].target
    with open_translator(run.path, overrides=_SEARCH, target=target) as opened:
        return [round(-best.score, 4) for best in opened.best(texts)]


def _write(
    output: Path, reasons: Path, lines: _Lines, found: Sequence[Choice], unsure: Mapping[int, float]
) -> None:
    """Write the chosen lines, and beside them what each is worth."""
    from dragoman.base.files import write_whole

    rows = [
        f"{lines.numbers[row]}\t{worth:.6g}\t{new:.3f}\t{unsure.get(row, '')}\n"
        for row, worth, new in found
    ]
    write_whole(output, "".join(f"{lines.texts[choice.row]}\n" for choice in found))
    write_whole(reasons, "".join(["line\tworth\tnew\tuncertainty\n", *rows]))
