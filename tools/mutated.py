"""Modules with mutants import this. It chooses the mutant and records the functions that run.

MUTANT_UNDER_TEST names the mutant, "stats" none. MUTATION_HITS is a folder that gets an empty file
for each function that runs, whichever process it runs in.
"""

from __future__ import annotations

import os
from pathlib import Path

from mutmut.mutation import trampoline
from mutmut.mutation.trampoline import MutantDict, wrap_in_trampoline

__all__ = ["MutantDict", "wrap_in_trampoline"]

_recorded: set[Path] = set()


def _record(name: str, caller: str | None = None) -> None:  # noqa: ARG001  # mutmut's own
    hit = Path(os.environ.get("MUTATION_HITS", os.devnull), name)
    if hit not in _recorded:
        _recorded.add(hit)
        if hit.parent.is_dir():
            hit.touch()


trampoline.record_trampoline_hit = _record
