"""Keeps freed memory for the next step, gives it back, says in one line that there is none left."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from dragoman.base.errors import MachineError

# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_MAX: Final = -4
_TOP_PAD_BYTES: Final = 64 << 20
_ONEDNN_CACHES: Final = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
# PyTorch has an error class of its own for a GPU's memory; on a CPU only the message tells. The
# same holds for CTranslate2.
_SAID: Final = (
    *("out of memory", "can't allocate memory", "not enough memory"),
    "failed to allocate memory",
)


def keep_freed_memory() -> None:
    """Let freed memory stay with the process (glibc; elsewhere nothing happens).

    By default the kernel maps new, zeroed pages for every large tensor; on a CPU that costs up to
    a fifth of a training step.

    oneDNN keeps data for products by shape; here it keeps those of one step only. Each batch has a
    different number of tokens: by default 1,024 shapes of 300 kB each would stay between the large
    tensors and fragment the memory.
    """
    for name, capacity in _ONEDNN_CACHES.items():
        os.environ.setdefault(name, capacity)
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


@contextmanager
def memory_errors_named(remedy: str) -> Iterator[None]:
    """Turn the errors of Python, NumPy, PyTorch and CTranslate2 when memory runs out into a
    MachineError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).splitlines()[0] if str(error) else "the system gave no more"
        if isinstance(error, MemoryError) or any(words in said for words in _SAID):
            raise MachineError(
                f"memory ran out: {said}", place="this machine", remedy=remedy
            ) from error
        raise


def give_back() -> None:
    """Give memory that is free to the system, which the C library of Linux keeps.

    A search to its limit for text without words leaves hundreds of megabytes of keys and values in
    pieces, each below the size that the library returns by itself. It takes 15 ms for 200 MB.
    """
    with suppress(AttributeError):  # other C libraries do not have it
        ctypes.CDLL(None).malloc_trim(0)
