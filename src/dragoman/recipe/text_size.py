"""The size of a recipe's text before it is prepared: bytes on disk, and lines of its first part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from dragoman.base.errors import CorpusError
from dragoman.corpus.config import FILE_KEYS, TextFiles
from dragoman.corpus.pairs import PIECE_BYTES, DamagedError, unpacked
from dragoman.recipe.recipe import Recipe

_COMPRESSED: Final = 3.5
"""Text bytes per byte of packed parallel text, about; the markup of a TMX adds few bytes."""
_PACKED: Final = (".gz", ".bz2", ".xz", ".zst", ".zip")
_MARKED_UP: Final = 0.6
"""Text bytes per byte of a TMX, about."""
_COUNTED_BYTES: Final = 64 << 20
"""Lines are counted in so much of a file, which takes 0.1 s; the rest of it is taken as alike."""
_BYTES_PER_PIECE: Final = 4.0
_UNIT: Final = re.compile(rb"<tu[\s>]")


@dataclass(frozen=True, slots=True)
class TextSize:
    """Pairs of the training text, before filters, and its bytes, both sides together.

    is_exact: whether all lines were counted.
    """

    pairs: int
    num_bytes: float
    is_exact: bool

    @property
    def target_pieces(self) -> float:
        """Target pieces of all pairs, about, with their ends of sentence."""
        return self.num_bytes / 2 / _BYTES_PER_PIECE + self.pairs


def training_text(recipe: Recipe) -> TextSize | None:
    """The size of the text that a recipe trains on; None if some of it is not here yet.

    Raises CorpusError if a packed file is damaged.
    """
    sizes = []
    for entry in recipe.corpus.train:
        size = _entry_size(entry, Path(recipe.corpus.folder))
        if size is None:
            return None
        sizes.append(size)
    return TextSize(
        sum(size.pairs for size in sizes),
        sum(size.num_bytes for size in sizes),
        all(size.is_exact for size in sizes),
    )


def text_bytes(entry: TextFiles, folder: Path) -> float | None:
    """Bytes of text, unpacked; None for a named corpus, or if a file is not there (yet)."""
    paths = _paths(entry, folder)
    if not paths or not all(path.is_file() for path in paths):
        return None
    plain = _MARKED_UP if entry.tmx else 1
    return sum(
        path.stat().st_size * (_COMPRESSED if path.suffix in _PACKED else plain) for path in paths
    )


def _paths(entry: TextFiles, folder: Path) -> list[Path]:
    return [folder / name for key in FILE_KEYS if (name := getattr(entry, key))]


def _entry_size(entry: TextFiles, folder: Path) -> TextSize | None:
    num_bytes = text_bytes(entry, folder)
    if num_bytes is None or entry.moses:  # an archive may hold its texts in any order
        return None
    path = _paths(entry, folder)[0]
    lines, read_bytes, is_whole = _count(path, units=bool(entry.tmx))
    if not is_whole:
        packed = _COMPRESSED if path.suffix in _PACKED else 1.0
        lines = round(lines * path.stat().st_size * packed / read_bytes)
    return TextSize(lines, num_bytes, is_whole)


def _count(path: Path, *, units: bool) -> tuple[int, int, bool]:
    """Lines (or units of a TMX) in the first part of a file, its bytes, whether that is all."""
    count = read_bytes = 0
    try:
        with path.open("rb") as file:
            for piece in _pieces(partial(file.read, PIECE_BYTES)):
                count += len(_UNIT.findall(piece)) if units else piece.count(b"\n")
                read_bytes += len(piece)
                if read_bytes >= _COUNTED_BYTES:
                    return count, read_bytes, False
    except DamagedError as error:
        raise CorpusError(
            f"cannot be unpacked: {error}", place=path, remedy="fetch or pack it again"
        ) from error
    return count, read_bytes, True


def _pieces(read: partial[bytes]) -> Iterator[bytes]:
    return unpacked(iter(read, b""))
