"""A small, fast model that learns from the translations of a larger one."""

from __future__ import annotations

import hashlib
import math
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pydantic import ValidationError

from dragoman.api.arguments import (
    CheckpointChoice,
    Count,
    Flag,
    RecipeLike,
    RunLike,
    checked,
    opened_run,
)
from dragoman.api.comparison import Comparison, compare, record
from dragoman.api.synthetic import Synthesized, synthesize, weights_digest
from dragoman.api.training import OnEvent, train
from dragoman.api.translation import export
from dragoman.base.errors import ConfigError, CorpusError, DragomanError, MachineError
from dragoman.base.files import file_sha256, whole_file, write_whole
from dragoman.base.settings import Section
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.directions import listed, without_first_word
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import UNK, TokenShards
from dragoman.corpus.vocabulary import load_vocabulary
from dragoman.evaluation.validate import read_lines
from dragoman.formats.kinds import Quantization
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.serve.translator import Opened, open_translator
from dragoman.telemetry.events import EventWriter, StudentMeasured

_ROUNDS: Final = 3
_ROWS_AT_A_TIME: Final = 10_000


@dataclass(frozen=True, slots=True)
class Served:
    """An export and its speed.

    sentences_per_s: sentences of the test set that it translates per second on this machine.
    """

    path: Path
    size_bytes: int
    beam_size: int
    sentences_per_s: float


@dataclass(frozen=True, slots=True)
class Distilled:
    """A student, and its comparison with the teacher.

    run: the student's run.
    synthesized: the translations that it learnt from.
    comparison: how well the two exports translate the test set; `first` is the teacher.
    """

    run: RunDirectory
    synthesized: Synthesized
    comparison: Comparison
    teacher: Served
    student: Served


class _ParallelFiles(NamedTuple):
    """Source and reference of a dev or test set."""

    source: Path
    target: Path

    def entry(self) -> TextFiles:
        """Both files as an entry of a recipe."""
        return TextFiles(source=str(self.source), target=str(self.target))


class _SynthesisRecord(Section):
    """A record of finished translations. size_bytes: the size of their file."""

    lines: int
    pairs: int
    dropped: dict[str, int]
    size_bytes: int


@checked
def distill(
    teacher: RunLike,
    recipe: RecipeLike = "student-small",
    *,
    text: str | Path | None = None,
    any_language: Flag = False,
    n_best: Count = 1,
    synthetic_only: Flag = False,
    checkpoint: CheckpointChoice = "best",
    quantization: Quantization = "int8",
    overrides: Sequence[str] = (),
    folder: str | Path = "distilled",
    runs: str | Path = "runs",
    ranks: Count | None = None,
    threads: Count | None = None,
    on_event: OnEvent | None = None,
    progress: Flag = False,
) -> Distilled:
    """Train a student on a teacher's translations (Kim and Rush 2016) and pairs; then compare both.

    teacher: a run. Its dev and test sets and its languages become the student's.
    recipe: the student's recipe; its text, its languages and the weights of texts are not used.
    text: a file to translate, one sentence per line; None: the sources of the teacher's training
        text.
    any_language: take that file even if it seems to be in a language that the teacher does not
        translate.
    n_best: translations of each sentence to learn from; the teacher's beam is at least as wide.
    synthetic_only: whether the student learns from translations alone. By default it learns from
        the teacher's own pairs as well, except for those with a tag, such as back-translations.
    quantization: the type of the weights in both exports, which are compared: "float32", "float16"
        or "int8".
    overrides: settings to change in the recipe, such as "train.max_steps=8000".
    checkpoint: which weights of the teacher to use, such as "best", "last" or a step.
    folder: the text and the exports go into a folder there, named after student and teacher. A
        student with other settings uses the same text and gets an export named after its run.
    runs, ranks, on_event, progress: as for `train`.
    threads: cores that translate; None: all.
    An interrupted call resumes if it is made again; a finished translation is not made again.
    Raises ConfigError, CorpusError, CheckpointError, TrainingError and MachineError.
    """
    if isinstance(recipe, Recipe) and overrides:
        raise ConfigError(
            "cannot change a recipe that is loaded",
            place="overrides",
            remedy="give them to load_recipe",
        )
    student = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides)
    run = opened_run(teacher)
    directions = run.recipe().corpus.directions
    if len(directions) > 1:
        raise ConfigError(
            f"translates in several directions ({listed(directions)}), and a student learns one",
            place=run.path,
            remedy="make pairs with dragoman synthesize --direction forward --target LANGUAGE, and "
            "train on them",
        )
    # Another teacher or other translations make another student, in a folder of its own.
    checkpoint = str(checkpoint)
    learnt_from = weights_digest(run.path, checkpoint) + Manifest.load(run.path).digest
    if text is not None:
        learnt_from += digest_of_text(Path(text))
    if n_best > 1:
        learnt_from += f"{n_best} translations"
    digest = hashlib.sha256(learnt_from.encode()).hexdigest()[:8]
    place = (Path(folder) / f"{student.name}-of-{digest}").absolute()
    is_text_of_teacher = text is None
    with _removed_if_unused(place):
        valid, test = (_held_out(run, split, place) for split in ("valid", "test"))
        place.mkdir(parents=True, exist_ok=True)
        if text is None:
            text = place / "source.txt"
            if not text.exists():
                write_sources(run, text)
        output = place / "synthetic.tsv"
        synthesized = _finished(output)
        if synthesized is None:
            output.unlink(missing_ok=True)  # a call that ended before it kept the counts left it
            synthesized = synthesize(
                run,
                text,
                output,
                direction="forward",
                checkpoint=checkpoint,
                n_best=n_best,
                any_language=any_language or is_text_of_teacher,
                overrides=[f"search.beam_size={max(n_best, run.recipe().search.beam_size)}"],
                threads=threads,
                progress=progress,
            )
            _keep_counts(synthesized)
    if not synthesized.pairs:
        reasons = ", ".join(f"{reason} {count}" for reason, count in synthesized.dropped.items())
        raise CorpusError(
            f"none of its {synthesized.lines} lines has a translation to learn from ({reasons})",
            place=text,
            remedy="train the teacher for longer, or give other text",
        )
    learnt = [TextFiles(tsv=str(synthesized.output), translated="target")]
    if not synthetic_only:
        pairs = place / "pairs.tsv"
        if not pairs.exists():
            write_own_pairs(run, pairs)
        if pairs.stat().st_size:  # it is empty if each of them has a tag
            learnt.append(TextFiles(tsv=str(pairs)))
    corpus = _student_text(student.corpus, run.recipe().corpus, tuple(learnt), valid, test)
    stages = tuple(stage.model_copy(update={"weights": None}) for stage in student.stages)
    trained = train(
        student.model_copy(update={"corpus": corpus, "stages": stages}),
        runs=runs,
        ranks=ranks,
        on_event=on_event,
        progress=progress,
    )
    exports = [place / f"{name}-{quantization}" for name in ("teacher", trained.path.name)]
    sizes = []
    for one, named, to in zip((run, trained), (checkpoint, "best"), exports, strict=True):
        written = export(
            one, to="ctranslate2", checkpoint=named, output=to, quantization=quantization
        )
        sizes.append(written.size_bytes)
    (comparison,) = compare(*exports, tests=[test], threads=threads)
    comparison = replace(comparison, test="test")  # it is the student's own test set, too
    record(comparison, trained, "second")
    rates = _rates(exports, read_lines(test.source), threads)
    beams = [one.recipe().search.beam_size for one in (run, trained)]
    first, second = map(Served, exports, sizes, beams, rates)
    with suppress(MachineError), EventWriter(trained.events) as events:
        events.write(
            StudentMeasured(
                teacher=str(run.path.absolute()),
                pairs=synthesized.pairs,
                size_bytes=second.size_bytes,
                teacher_size_bytes=first.size_bytes,
                beam_size=second.beam_size,
                teacher_beam_size=first.beam_size,
                sentences_per_s=second.sentences_per_s,
                teacher_sentences_per_s=first.sentences_per_s,
            )
        )
    return Distilled(trained, synthesized, comparison, first, second)


@contextmanager
def _removed_if_unused(place: Path) -> Iterator[None]:
    """If an error ends the block before anything is translated, remove the folders that it made."""
    new = [folder for folder in (place, *place.parents) if not folder.exists()]
    try:
        yield
    except DragomanError:
        if new and not any(place.glob("*synthetic*")):
            shutil.rmtree(place, ignore_errors=True)
            for folder in new[1:]:
                with suppress(OSError):  # another call may have filled it
                    folder.rmdir()
        raise


def _keep_counts(synthesized: Synthesized) -> None:
    """Write the counts of finished translations beside their file."""
    output = synthesized.output
    counts = _SynthesisRecord(
        lines=synthesized.lines,
        pairs=synthesized.pairs,
        dropped=dict(synthesized.dropped),
        size_bytes=output.stat().st_size,
    )
    write_whole(output.with_suffix(".json"), counts.model_dump_json())


def _finished(output: Path) -> Synthesized | None:
    """The translations of an earlier call, if they are whole and as it left them."""
    try:
        counts = _SynthesisRecord.model_validate_json(output.with_suffix(".json").read_bytes())
        if counts.size_bytes != output.stat().st_size:
            return None
    except (OSError, ValidationError):
        return None
    return Synthesized(output, counts.lines, counts.pairs, counts.dropped, counts.lines)


def digest_of_text(text: Path) -> str:
    """SHA-256 of a text; raises CorpusError if it cannot be read."""
    try:
        return file_sha256(text)
    except OSError as error:
        raise CorpusError(
            f"cannot be read: {error.strerror}", place=text, remedy="check its name"
        ) from error


def _held_out(run: RunDirectory, split: str, place: Path) -> _ParallelFiles:
    """The dev or test set of the teacher as plain text; raises ConfigError if there is none."""
    directory = run.prepared() / split
    if not (directory / "source.txt").is_file():
        raise ConfigError(
            f"the teacher has no {split} set, by which its student would be judged",
            place=run.path,
            remedy=f"set corpus.{split} or corpus.{split}_pairs in its recipe and train it again",
        )
    source = plain_sources(directory, run.recipe().corpus, place / f"{split}.txt")
    return _ParallelFiles(source.absolute(), (directory / "target.txt").absolute())


def plain_sources(split: Path, corpus: CorpusConfig, copy: Path) -> Path:
    """A file of the sources of a prepared dev or test set, without language tokens and tags.

    copy: the file to write if a source begins with such a word. If none does, nothing is written,
    and the result is the set's own file.
    """
    source = split / "source.txt"
    words = [words for words in (corpus.language_tokens, corpus.tags) if words]
    if not words:
        return source
    lines = read_lines(source)
    plain = [reduce(without_first_word, words, line) for line in lines]
    if plain == lines:
        return source
    copy.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in plain).encode()
    if not copy.is_file() or copy.read_bytes() != text:
        write_whole(copy, text)
    return copy


def write_sources(run: RunDirectory, path: Path) -> None:
    """Write the source sides of the text that the teacher was trained on, without tags.

    Sides with unknown pieces, and those that may have been cut off, are left out.
    """
    tags = run.recipe().corpus.tags
    are_drawn = [direction is not None for direction in run.recipe().drawn_directions()]
    with whole_file(path) as file:
        for line in _training_lines(run, "source", are_drawn):
            if line is not None:
                file.write(f"{without_first_word(line, tags)}\n".encode())


def write_own_pairs(run: RunDirectory, path: Path) -> None:
    """Write the pairs that the teacher was trained on, but none with a tag or a translated side.

    Pairs with unknown pieces, and those that may have been cut off, are left out.
    """
    corpus = run.recipe().corpus
    tags = corpus.tags
    taken = [
        direction is not None and not entry.translated
        for direction, entry in zip(run.recipe().drawn_directions(), corpus.train, strict=True)
    ]
    sources, targets = (_training_lines(run, side, taken) for side in ("source", "target"))
    with whole_file(path) as file:
        for source, target in zip(sources, targets, strict=True):
            if source is None or target is None or without_first_word(source, tags) != source:
                continue
            file.write(f"{source}\t{target}\n".encode())


def _training_lines(run: RunDirectory, side: str, taken: Sequence[bool]) -> Iterator[str | None]:
    """A side of the teacher's training text, one line per pair.

    taken: whether the pairs of each entry are wanted. If no entry has a name or a weight, the
        shards do not say from which entry a pair is: then all pairs are taken.
    A line is None if the pair is not wanted, if a piece of its side is unknown, or if the teacher's
    recipe may have cut the side off: a student would learn to stop in the middle of a sentence.
    """
    corpus = run.recipe().corpus
    too_long = corpus.max_pieces if corpus.too_long == "truncate" else math.inf
    prepared = run.prepared()
    shards = TokenShards(prepared / "train")
    vocabulary = load_vocabulary(prepared / f"{side}.model")
    row_of = shards.source if side == "source" else shards.target
    is_taken = np.ones(shards.num_pairs, np.bool_)
    if not all(taken) and corpus.is_mixed:
        is_taken = np.array(taken)[shards.entries()]
    prefix, _ = vocabulary.prefix("")  # such as >>fra<<, which would be decoded as text
    for first in range(0, shards.num_pairs, _ROWS_AT_A_TIME):
        last = min(first + _ROWS_AT_A_TIME, shards.num_pairs)
        rows = [row_of(pair).tolist() for pair in range(first, last)]
        plain = [row[len(prefix) * (row[: len(prefix)] == prefix) :] for row in rows]
        lines = vocabulary.decode(plain)
        for pair, whole, row, line in zip(range(first, last), rows, plain, lines, strict=True):
            yield line if is_taken[pair] and UNK not in row and len(whole) < too_long else None


def _student_text(
    own: CorpusConfig,
    teachers: CorpusConfig,
    learnt: tuple[TextFiles, ...],
    valid: _ParallelFiles,
    test: _ParallelFiles,
) -> CorpusConfig:
    """The student's corpus section: its own subwords and filters, the teacher's languages."""
    (direction,) = teachers.directions
    text = {
        "folder": "",
        "source_language": direction.source,
        "target_language": direction.target,
        "temperature": None,
        "lowercase": teachers.lowercase,
        "train": learnt,
        "valid": (valid.entry(),),
        "test": (test.entry(),),
        "valid_pairs": 0,
        "test_pairs": 0,
    }
    return own.model_copy(update=text)


def _rates(exports: Sequence[Path], texts: list[str], threads: int | None) -> Iterator[float]:
    """Sentences per second of each model: the median of rounds in which they take turns."""
    rates: list[list[float]] = [[] for _ in exports]
    for _ in range(_ROUNDS):
        for path, found in zip(exports, rates, strict=True):
            with open_translator(
                path, checkpoints=["best"], overrides=(), engine="auto", threads=threads
            ) as opened:
                _translate(opened, texts[:16])  # the first call makes buffers
                began = time.perf_counter()
                _translate(opened, texts)
                found.append(len(texts) / (time.perf_counter() - began))
    return map(statistics.median, rates)


def _translate(opened: Opened, texts: list[str]) -> None:
    for _ in opened.translator.stream(
        texts, opened.recipe.search, text_format="line", scored=False
    ):
        pass
