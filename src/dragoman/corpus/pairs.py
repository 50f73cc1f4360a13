"""Files of parallel text -> blocks of pairs, or an error that names the line.

An entry is two aligned files or one TSV file of two columns. A block is raw bytes: the process
that reads only cuts at line ends, the processes that clean do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.corpus.alignment import first_suspicious_line
from dragoman.corpus.lines import RUN_BYTES, FileFacts, LineReader

BLOCK_LINES = 32_768
_TARGET_RUN_BYTES = 8 * RUN_BYTES
_MOST_COMPARED = 20_000_000
"""Lines of which the lengths are held at once, to find where two files stop being parallel."""


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A file, and what the recipe calls it."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class TextEntry:
    """One entry of a corpus with its files found; target is None where source is a TSV file."""

    source: NamedPath
    target: NamedPath | None = None

    @property
    def files(self) -> tuple[NamedPath, ...]:
        """The files of the entry."""
        return (self.source,) if self.target is None else (self.source, self.target)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines of one entry; every line ends with a newline.

    index counts the blocks of a split over all its entries. target is None where source holds
    both columns of a TSV file.
    """

    index: int
    entry: TextEntry
    first_line: int
    num_lines: int
    source: bytes
    target: bytes | None


class BlockReader:
    """Reads the entries of one split, in order, as blocks.

    facts holds what was learnt of each file that has been read to its end.
    """

    def __init__(self, entries: Sequence[TextEntry], *, block_lines: int = BLOCK_LINES) -> None:
        self._entries = entries
        self._block_lines = block_lines
        self.facts: list[FileFacts] = []

    def __iter__(self) -> Iterator[Block]:
        """Yield every block.

        Raises: CorpusError where a file cannot be read or is empty, or where two files do not have
        the same number of lines.
        """
        index = 0
        for entry in self._entries:
            readers = [LineReader(file.path) for file in entry.files]
            first_line = 1
            while texts := self._take(readers):
                num_lines = texts[0][1]
                source, target = texts[0][0], texts[1][0] if len(texts) > 1 else None
                yield Block(index, entry, first_line, num_lines, source, target)
                first_line += num_lines
                index += 1
            self.facts += [reader.facts() for reader in readers]
            if first_line == 1:
                raise CorpusError(
                    "holds no text",
                    place=entry.source.path,
                    remedy="give a file with one sentence a line",
                )

    def _take(self, readers: list[LineReader]) -> list[tuple[bytes, int]]:
        """The next lines of each reader, as many of each; empty at the end."""
        text, num_lines = readers[0].take(self._block_lines)
        texts = [(text, num_lines)]
        for reader in readers[1:]:
            texts.append(reader.take(num_lines or 1, max_bytes=_TARGET_RUN_BYTES))
        if any(count != num_lines for _, count in texts):
            if num_lines and readers[1].take(1)[1]:
                raise CorpusError(
                    f"its lines are far longer than those of {readers[0].path.name}: "
                    f"{num_lines} have more than {_TARGET_RUN_BYTES >> 20} MiB",
                    place=readers[1].path,
                    remedy="give files in which line N of one belongs to line N of the other",
                )
            raise _misaligned(readers[0].path, readers[1].path)
        return texts if num_lines else []


def _misaligned(source: Path, target: Path) -> CorpusError:
    (num_source, source_lengths), (num_target, target_lengths) = map(_lines, (source, target))
    suspicious = first_suspicious_line(source_lengths, target_lengths)
    if max(num_source, num_target) > _MOST_COMPARED:
        how = f"with more than {_MOST_COMPARED} lines nobody looks for the first wrong one"
    elif suspicious > min(num_source, num_target):
        how = "the shorter one seems to be cut off at its end"
    else:
        how = f"from about line {suspicious} on their lengths do not fit each other"
    return CorpusError(
        f"{num_source} lines against {num_target}; {how}",
        place=f"{source}, {target}",
        remedy="give files in which line N of one belongs to line N of the other",
    )


def _lines(path: Path) -> tuple[int, NDArray[np.int64]]:
    """How many lines a file has, and the bytes in each of the first _MOST_COMPARED."""
    reader = LineReader(path)
    lengths = [np.zeros(0, dtype=np.int64)]
    num_lines = 0
    while (run := reader.take(BLOCK_LINES))[1]:
        text, count = run
        if num_lines < _MOST_COMPARED:
            newlines = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
            lengths.append(np.diff(newlines, prepend=-1) - 1)
        num_lines += count
    return num_lines, np.concatenate(lengths)
