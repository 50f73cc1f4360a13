from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dragoman.base.errors import MachineError
from dragoman.base.memory import memory_errors_named

_PRODUCTS_OF_MANY_SHAPES = """
import ctypes
import sys

from dragoman.base.memory import keep_freed_memory

if "kept" in sys.argv:
    keep_freed_memory()
import torch
from dragoman.model.products import onednn_project

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]


def used_bytes():
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    return mallinfo2().uordblks


x_NI, grad_NO, weight_OI = torch.randn(600, 64), torch.randn(600, 128), torch.randn(128, 64)
for last in (100, 400):
    for rows in range(last - 100, last):
        onednn_project(x_NI[:rows + 1], weight_OI)
        onednn_project(grad_NO[:rows + 1], weight_OI.t())
        onednn_project(x_NI[:rows + 1].t(), grad_NO[:rows + 1].t())
    before, after = (used_bytes(), None) if last == 100 else (before, used_bytes())
print(after - before)
"""


@pytest.mark.system
def test_products_of_many_shapes_keep_no_more_memory_than_those_of_some() -> None:
    assert _growth_bytes("kept") < 4 << 20
    assert _growth_bytes("as it is") > 16 << 20, "nothing to limit any more: see memory.py"


def _growth_bytes(how: str) -> int:
    # A test that trains in this process has set the limits for its children, too.
    environment = {
        name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name
    }
    command = [sys.executable, "-c", _PRODUCTS_OF_MANY_SHAPES, how]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return int(done.stdout)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("std::bad_alloc"),
        RuntimeError("mkl_malloc: failed to allocate memory"),
    ],
    ids=repr,
)
def test_no_memory_is_named_whoever_says_it(error: Exception) -> None:
    with (
        pytest.raises(MachineError, match=r"memory ran out.*; do less"),
        memory_errors_named("do less"),
    ):
        raise error


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="another"), memory_errors_named("do less"):
        raise RuntimeError("another")
