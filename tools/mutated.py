"""Modules with mutants import this. It chooses the mutant and records the functions that run.

MUTANT_UNDER_TEST names the mutant, "stats" none. MUTATION_HITS is a folder that gets an empty file
for each function that runs, whichever process it runs in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutmut.mutation import trampoline
from mutmut.mutation.trampoline import MutantDict

__all__ = ["MutantDict", "wrap_in_trampoline"]

_recorded: set[Path] = set()


def wrap_in_trampoline(
    mutants: dict[str, Any], is_classmethod: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """mutmut's decorator; it also knows a module that runs by `python -m` by its own name."""
    wrap = trampoline.wrap_in_trampoline(mutants, is_classmethod)

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        if function.__module__ == "__main__":
            function.__module__ = _main()
        return wrap(function)

    return wrapped


def _main() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else "__main__"


def _record(name: str, caller: str | None = None) -> None:  # noqa: ARG001  # mutmut's own
    if name.startswith("__main__."):
        name = f"{_main()}.{name.removeprefix('__main__.')}"
    hit = Path(os.environ.get("MUTATION_HITS", os.devnull), name)
    if hit not in _recorded:
        _recorded.add(hit)
        if hit.parent.is_dir():
            hit.touch()


trampoline.record_trampoline_hit = _record
