"""A module with all its mutants in one file: mutmut's, and those of decorated functions.

mutmut 3 leaves functions with decorators as they are: properties, context managers, and methods
under `torch.no_grad()`. Here such a function is defined without its decorators first, so that
mutmut changes it, and decorated after that:

    @contextmanager                      def place(): ...
    def place(): ...            ->       place = contextmanager(place)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import libcst as cst
from mutmut.mutation.file_mutation import mutate_file_contents

_AS_THEY_ARE: Final = {"abstractmethod", "classmethod", "overload", "staticmethod"}
"""Decorators that mutmut can handle, or whose functions have no body."""
_ITS_IMPORT: Final = "from mutmut.mutation.trampoline import"
_OUR_IMPORT: Final = "from mutated import"
_STRICT: Final = r",? *strict=(True|False|None)|, (?=\))"


@dataclass(frozen=True)
class Mutants:
    """code: the module with its mutants; mutated.py chooses one of them when a function is called.

    functions: the function that each mutant changes. Both have names as in `dragoman.a.x_f`.
    lines: of each variant of a function, by the name within the module.
    """

    code: str
    functions: dict[str, str]
    lines: Mapping[str, list[str]]

    def difference(self, mutant: str) -> list[str]:
        """The lines that a mutant changes, before and after."""
        name = mutant.rpartition(".")[2]
        original = _function(name) + "__mutmut_orig"
        before = [line.replace(original, "f") for line in self.lines[original]]
        after = [line.replace(name, "f") for line in self.lines[name]]
        return [
            line.rstrip() for line in difflib.ndiff(before, after) if line.startswith(("- ", "+ "))
        ]


def make_mutants(path: str, module: str, code: str) -> Mutants:
    """All mutants of a module, whose file is `path`."""
    plain = cst.parse_module(code).visit(_Undecorate()).code
    made = mutate_file_contents(path, plain)
    lines = made.code.splitlines()
    mutants = Mutants(
        made.code.replace(_ITS_IMPORT, _OUR_IMPORT),
        {f"{module}.{name}": f"{module}.{_function(name)}" for name in made.mutant_names},
        {
            name: [line for line in lines[span.start - 1 : span.end] if line.strip()]
            for name, span in made.line_span_by_function_name.items()
        },
    )
    for name in [*mutants.functions]:
        if _only_relaxes_a_zip(mutants.difference(name)):
            del mutants.functions[name]
    return mutants


def _only_relaxes_a_zip(difference: list[str]) -> bool:
    """Whether `strict=True` has gone: it says that lengths are equal, and does nothing if so."""
    strict, relaxed = "".join(difference[:1])[2:], "".join(difference[1:])[2:]
    return strict != relaxed and re.sub(_STRICT, "", strict) == re.sub(_STRICT, "", relaxed)


def _function(mutant: str) -> str:
    return re.sub(r"__mutmut_\d+$", "", mutant)


class _Undecorate(cst.CSTTransformer):
    """Turns the decorators of functions and methods into assignments."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802  # libcst's name
        self._depth += 1

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.FlattenSentinel[cst.BaseStatement]:
        self._depth -= 1
        name = updated_node.name.value
        decorators = [one.decorator for one in updated_node.decorators]
        words = {word for one in decorators for word in re.findall(r"\w+", _code(one))}
        if self._depth or not decorators or words & (_AS_THEY_ARE | {name}):
            return updated_node
        decorated = name
        for decorator in reversed(decorators):
            decorated = f"{_code(decorator)}({decorated})"
        return cst.FlattenSentinel(
            [
                updated_node.with_changes(decorators=[]),
                cst.parse_statement(f"{name} = {decorated}\n"),
            ]
        )


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
