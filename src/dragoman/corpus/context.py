"""Paragraphs for training: neighbouring pairs of a document as one pair.

A piece stands between the sentences (`corpus.stand_ins`), on both sides, so that a translation can
be cut into its sentences again. The pairs themselves stay, so a model learns to take one sentence
or a paragraph (as Sun et al. 2022, "Rethinking Document-level Neural Machine Translation").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dragoman.base.settings import Section
from dragoman.corpus.runs import pair_keys, run_name, write_run
from dragoman.corpus.stand_ins import SEPARATOR

if TYPE_CHECKING:
    from dragoman.corpus.pairs import Block

CONTEXT: Final = "context"
"""The name of paragraphs among the copies that a manifest counts."""
PARAGRAPHS: Final = "paragraphs"
"""The folder of their runs, among the runs."""


class ContextConfig(Section):
    """Neighbouring training pairs as further pairs, so that a model translates paragraphs, too.

    Lines of a text follow each other as they stand in its file. A document ends with its file, with
    an empty line on both sides, and at any line that a filter drops.
    """

    sentences: int = Field(default=1, ge=1, le=64)
    """Each document is cut into stretches of 1 to this many sentences, drawn by the seed; each of
    two or more is added as one pair, with a piece of the vocabulary between the sentences. 1 adds
    none. A stretch keeps to `filters.max_words` and `max_pieces`."""


def write_paragraphs(
    runs: Path,
    block: Block,
    sides: tuple[Sequence[str], Sequence[str]],
    lines: NDArray[np.int64],
    config: ContextConfig,
    *,
    most_words: int,
    seed: int,
) -> None:
    """Write the paragraphs of a cleaned block as a run of their own.

    sides: the sources, behind the tag of the entry, and the targets. lines: their line numbers.
    """
    tag = f"{block.entry.tag} " if block.entry.tag else ""
    plain = [source.removeprefix(tag) for source in sides[0]]
    words = np.array([[text.count(" ") + 1 for text in side] for side in (plain, sides[1])])
    words[:, [SEPARATOR in pair[0] + pair[1] for pair in zip(*sides, strict=True)]] = most_words + 1
    stretches = []
    if not block.entry.shuffled:
        random = Random(f"{seed} {block.index}")  # noqa: S311
        stretches = [*_stretches(lines, words, config.sentences, most_words, random)]
    between = f"{SEPARATOR} "
    sources = [tag + between.join(plain[stretch]) for stretch in stretches]
    targets = [between.join(sides[1][stretch]) for stretch in stretches]
    path = runs / PARAGRAPHS / run_name(block.index)
    path.parent.mkdir(exist_ok=True)
    write_run(
        path,
        pair_keys(sources, targets, seed=seed),
        lines[[stretch.start for stretch in stretches]],
        [f"{source}\t{target}" for source, target in zip(sources, targets, strict=True)],
        block=block.index,
    )


def _stretches(
    lines: NDArray[np.int64],
    words: NDArray[np.int64],
    longest: int,
    most_words: int,
    random: Random,
) -> Iterator[slice]:
    """Stretches of two pairs or more, in order. words: of each pair on both sides."""
    start = 0
    while start < len(lines):
        wanted = random.randint(1, longest)
        end = start + 1
        while (
            end < min(start + wanted, len(lines))
            and lines[end] == lines[end - 1] + 1
            and words[:, start : end + 1].sum(axis=1).max() <= most_words
        ):
            end += 1
        if end - start > 1:
            yield slice(start, end)
        start = end


def sentences_of(pair: str) -> list[tuple[str, str]]:
    """The pairs of sentences in the `source<TAB>target` of a paragraph."""
    sides = (side.split(f"{SEPARATOR} ") for side in pair.split("\t"))
    return list(zip(*sides, strict=True))
