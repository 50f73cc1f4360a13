"""Packed bytes -> the bytes in them, a bounded piece at a time, however much a file unpacks to.

gzip, bzip2, zstd and xz are known by the first bytes of a file, not by its name.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, Protocol

import zstandard

PIECE_BYTES: Final = 1 << 18
"""What is read at once, and about what is unpacked at once."""
_XZ_MEMORY_BYTES: Final = 1 << 29
"""xz -9 takes 65 MiB; a file may ask for 4 GiB."""
_INPUT_BYTES: Final = 1 << 14
"""Given to an unpacker at once; what is left of it is copied where a packed file ends in it."""
_ZSTD_BYTES: Final = 1 << 10
"""zstd gives all that its input holds, and four bytes may hold 128 KiB."""


class DamagedError(Exception):
    """Bytes that cannot be unpacked, and why."""


def unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes that some pieces of a file hold; those of a file that is not packed as they are.

    Packed files that follow each other in one file are one text.
    Raises: DamagedError.
    """
    head = next(pieces, b"")
    for magic, make_decoder in _DECODERS.items():
        if head.startswith(magic):
            yield from _decoded(head, pieces, make_decoder)
            return
    if head:
        yield head
    yield from pieces


class _Decoder(Protocol):
    """What an unpacker must do: give at most about PIECE_BYTES for each call."""

    @property
    def eof(self) -> bool:
        """Whether the packed file has ended."""

    @property
    def rest(self) -> bytes:
        """Input that was not needed: after the end, what follows."""

    def decode(self, packed: bytes) -> bytes:
        """The next bytes; all input that was given and is not in `rest` is used up."""


def _decoded(
    head: bytes, pieces: Iterator[bytes], make_decoder: Callable[[], _Decoder]
) -> Iterator[bytes]:
    """As `unpacked`; what comes in crumbs is put together."""
    inputs = _slices(chain([head], pieces), _INPUT_BYTES)
    decoder = make_decoder()
    packed = next(inputs)
    texts: list[bytes] = []
    size = 0
    try:
        while True:
            text = decoder.decode(packed)
            texts.append(text)
            size += len(text)
            if size >= PIECE_BYTES:
                yield from _slices([b"".join(texts)], PIECE_BYTES)
                texts, size = [], 0
            packed = decoder.rest
            if text and not packed and not decoder.eof:  # there may be more without more input
                continue
            packed = packed or next(inputs, b"")
            if not packed:
                break
            if decoder.eof:
                decoder = make_decoder()
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError) as error:
        raise DamagedError(str(error)) from error
    if not decoder.eof:
        raise DamagedError("it ends too early")
    if size:
        yield b"".join(texts)


def _slices(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at most this size."""
    for piece in pieces:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


class _Gzip:
    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data or self._decoder.unconsumed_tail

    def decode(self, packed: bytes) -> bytes:
        return self._decoder.decompress(packed, PIECE_BYTES)


class _Buffering:
    """bzip2 and xz, which keep what they do not need yet."""

    def __init__(self, decoder: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data if self._decoder.eof else b""

    def decode(self, packed: bytes) -> bytes:
        return self._decoder.decompress(packed, PIECE_BYTES)


class _Zstd:
    def __init__(self) -> None:
        self._decoder = zstandard.ZstdDecompressor().decompressobj()
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data + bytes(self._waiting) if self._decoder.eof else b""

    def decode(self, packed: bytes) -> bytes:
        if packed:
            self._waiting = memoryview(packed)
        texts: list[bytes] = []
        size = 0
        while self._waiting and size < PIECE_BYTES and not self._decoder.eof:
            given, self._waiting = self._waiting[:_ZSTD_BYTES], self._waiting[_ZSTD_BYTES:]
            texts.append(self._decoder.decompress(given))
            size += len(texts[-1])
        return b"".join(texts)


_DECODERS: Final[dict[bytes, Callable[[], _Decoder]]] = {
    b"\x1f\x8b": _Gzip,
    b"BZh": lambda: _Buffering(bz2.BZ2Decompressor()),
    b"\xfd7zXZ\x00": lambda: _Buffering(
        lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    ),
    b"\x28\xb5\x2f\xfd": _Zstd,
}
