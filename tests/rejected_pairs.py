"""The pairs that a preparation dropped, as any user can read them: zstd, then TSV."""

from __future__ import annotations

import io
from pathlib import Path

import zstandard

from dragoman.corpus.clean import REJECTED, RejectedPair


def read_rejected(prepared: Path, split: str) -> list[RejectedPair]:
    """The dropped pairs of a split, in the order of the stages."""
    packed = (prepared / REJECTED / f"{split}.tsv.zst").read_bytes()
    with zstandard.ZstdDecompressor().stream_reader(
        io.BytesIO(packed), read_across_frames=True
    ) as reader:
        header, *lines = reader.read().decode().removesuffix("\n").split("\n")
    assert header.split("\t") == list(RejectedPair._fields)
    cells = [line.split("\t") for line in lines]
    return [RejectedPair(row[0], float(row[1]), row[2], int(row[3]), *row[4:]) for row in cells]
