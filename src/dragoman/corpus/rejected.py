"""What was rejected, readable afterwards: zstd-packed TSV, one file a split.

Columns: filter, score, file, line, source, target. zstd frames may follow each other in one file,
so the parts that workers write are joined as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import zstandard

from dragoman.base.errors import CorpusError
from dragoman.base.files import whole_file
from dragoman.corpus.lines import LineReader

REJECTED = "rejected"


class RejectedPair(NamedTuple):
    """A pair that is not in the split, the filter that dropped it and the score it had there."""

    filter: str
    score: float
    file: str
    line: int
    source: str
    target: str


def pack_rejected(pairs: Iterable[RejectedPair]) -> bytes:
    """The pairs as one zstd frame of TSV lines; empty for no pairs."""
    lines = [
        f"{pair.filter}\t{pair.score:.6g}\t{_cell(pair.file)}\t{pair.line}\t"
        f"{_cell(pair.source)}\t{_cell(pair.target)}\n"
        for pair in pairs
    ]
    return zstandard.compress("".join(lines).encode(errors="replace"), level=1) if lines else b""


def join_rejected(path: Path, parts: Iterable[Path]) -> None:
    """Write one file with the column names and then all parts in order."""
    header = zstandard.compress(("\t".join(RejectedPair._fields) + "\n").encode())
    with whole_file(path) as file:
        file.write(header)
        for part in parts:
            file.write(part.read_bytes())


def read_rejected(directory: Path, split: str) -> Iterator[RejectedPair]:
    """What `prepare` rejected from a split, in the order of the stages.

    directory: a prepared corpus.
    Raises: CorpusError where it holds no such split.
    """
    path = directory / REJECTED / f"{split}.tsv.zst"
    if not path.exists():
        raise CorpusError("does not exist", place=path, remedy="run dragoman prepare first")
    reader = LineReader(path)
    reader.take(1)
    while run := reader.take(4096)[0]:
        for line in run.decode().split("\n")[:-1]:
            name, score, file, number, source, target = line.split("\t")
            yield RejectedPair(name, float(score), file, int(number), source, target)


def _cell(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")
