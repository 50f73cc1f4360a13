"""The text that a student learns from, the record of its translations, and the speed of both."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pydantic import ValidationError

from dragoman.api.synthetic import Synthesized
from dragoman.base.errors import ConfigError, CorpusError, DragomanError
from dragoman.base.files import file_sha256, whole_file, write_whole
from dragoman.base.settings import Section
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.directions import without_first_word
from dragoman.corpus.shards import UNK, TokenShards
from dragoman.corpus.vocabulary import load_vocabulary
from dragoman.evaluation.validate import read_lines
from dragoman.inference.translator import open_translator
from dragoman.recipe.run_directory import RunDirectory

_ROUNDS: Final = 3
_ROWS_AT_A_TIME: Final = 10_000


class ParallelFiles(NamedTuple):
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


@contextmanager
def removed_if_unused(place: Path) -> Iterator[None]:
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


def keep_counts(synthesized: Synthesized) -> None:
    """Write the counts of finished translations beside their file."""
    output = synthesized.output
    counts = _SynthesisRecord(
        lines=synthesized.lines,
        pairs=synthesized.pairs,
        dropped=dict(synthesized.dropped),
        size_bytes=output.stat().st_size,
    )
    write_whole(output.with_suffix(".json"), counts.model_dump_json())


def finished(output: Path) -> Synthesized | None:
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


def held_out(run: RunDirectory, split: str, place: Path) -> ParallelFiles:
    """The dev or test set of the teacher as plain text; raises ConfigError if there is none."""
    directory = run.prepared() / split
    if not (directory / "source.txt").is_file():
        raise ConfigError(
            f"the teacher has no {split} set, by which its student would be judged",
            place=run.path,
            remedy=f"set corpus.{split} or corpus.{split}_pairs in its recipe and train it again",
        )
    source = plain_sources(directory, run.recipe().corpus, place / f"{split}.txt")
    return ParallelFiles(source.absolute(), (directory / "target.txt").absolute())


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


def training_sources(run: RunDirectory) -> Iterator[str]:
    """The source sides of the text that a run was trained on, without tags.

    Sides with unknown pieces, and those that may have been cut off, are left out.
    """
    tags = run.recipe().corpus.tags
    are_drawn = [direction is not None for direction in run.recipe().drawn_directions()]
    for line in _training_lines(run, "source", are_drawn):
        if line is not None:
            yield without_first_word(line, tags)


def write_sources(run: RunDirectory, path: Path) -> None:
    """Write the `training_sources` of the teacher."""
    with whole_file(path) as file:
        for line in training_sources(run):
            file.write(f"{line}\n".encode())


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
    A line is None if the pair is not wanted, if it is a paragraph or a copy with placeholders, as
    its sentences are there, too, if a piece of its side is unknown, or if the teacher's recipe may
    have cut the side off: a student would learn to stop in the middle of a sentence.
    """
    corpus = run.recipe().corpus
    too_long = corpus.max_pieces if corpus.too_long == "truncate" else math.inf
    prepared = run.prepared()
    shards = TokenShards(prepared / "train")
    vocabulary = load_vocabulary(prepared / f"{side}.model")
    row_of = shards.source if side == "source" else shards.target
    pieces = vocabulary.all_pieces()
    unwanted = {UNK, *(n for n, piece in enumerate(pieces) if piece in vocabulary.stand_ins)}
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
            is_wanted = is_taken[pair] and unwanted.isdisjoint(row)
            yield line if is_wanted and len(whole) < too_long else None


def student_text(
    own: CorpusConfig,
    teachers: CorpusConfig,
    learnt: tuple[TextFiles, ...],
    valid: ParallelFiles,
    test: ParallelFiles,
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


def speeds(exports: Sequence[Path], texts: list[str], threads: int | None) -> Iterator[float]:
    """Sentences per second of each model: the median of rounds in which they take turns."""
    rates: list[list[float]] = [[] for _ in exports]
    for _ in range(_ROUNDS):
        for path, found in zip(exports, rates, strict=True):
            with open_translator(path, threads=threads) as opened:
                [*opened.best(texts[:16], scored=False)]  # the first call makes buffers
                began = time.perf_counter()
                [*opened.best(texts, scored=False)]
                found.append(len(texts) / (time.perf_counter() - began))
    return map(statistics.median, rates)
