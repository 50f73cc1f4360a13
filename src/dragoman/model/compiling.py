"""torch.compile of a model's stacks, and what it lacks on a machine, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dragoman.base.errors import MachineError
from dragoman.model.transformer import Transformer

_COMPILERS: Final = ("torch._dynamo", "torch._inductor", "triton")
"""Where the classes of their errors come from; Triton says a plain one of a missing compiler."""
_NO_COMPILER: Final = "Failed to find C compiler"


def compile_stacks(model: Transformer) -> None:
    """Let encoder, decoder and loss be compiled when they are first called.

    They are compiled for shapes of any size at once: batches have so many that to compile for the
    first of them would be time lost.
    """
    model.encoder.compile(dynamic=True)
    model.decoder.compile(dynamic=True)
    model.compiled = True


@contextmanager
def compiler_errors_named() -> Iterator[None]:
    """Turn what torch.compile says where it cannot compile into a MachineError."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(_COMPILERS) and _NO_COMPILER not in str(error):
            raise
        raise MachineError(
            f"torch.compile failed: {str(error).splitlines()[0]}",
            place="train.compile",
            remedy="install a C++ compiler and Python's headers (g++ and python3-dev of Debian), "
            "or set train.compile = false",
        ) from error
