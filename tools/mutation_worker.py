"""Runs tests for mutation.py, each call in a fork of a process that has collected all of them.

Its arguments are pytest's. It reads a JSON line for each call, {"mutant", "tests", "limit_s",
"record"}, and answers with 0 if these tests pass and 1 if one fails. Its end is the end of its
standard input. Processes that tests start take the mutant from the environment, as do those that
tests/forker.py forks.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import ranks
from forker import forker

_PATIENCE_S: Final = 600.0
_WARM: Final = ("torch._dynamo", "toy_fit", "dragoman.run.run", "dragoman.run.worker")


class Server:
    """A pytest plugin that runs the tests which are asked for, as often as they are asked for."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders = os.fdopen(orders)
        self._answers = os.fdopen(answers, "w")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Answer calls until there are no more."""
        items = {item.nodeid: item for item in session.items}
        forker().run([], timeout_s=_PATIENCE_S)
        self._answer("ready")
        for line in self._orders:
            call = json.loads(line)
            pid = os.fork()
            if not pid:
                _run(call, [items[name] for name in call["tests"] or items])
            self._answer(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        return True

    def _answer(self, text: str) -> None:
        print(text, file=self._answers, flush=True)


def _run(call: dict[str, Any], items: list[pytest.Item]) -> None:
    """In a process of its own; until the first failure, or all of them to record them."""
    code = 1
    try:
        os.environ["MUTANT_UNDER_TEST"] = call["mutant"]
        ranks.TIMEOUT_S = call["limit_s"]  # ends ranks that wait for each other
        session = items[0].session
        if call["record"]:
            hits = Path(call["record"])
            session.config.pluginmanager.register(Recorder(hits))
        for item, following in zip(items, [*items[1:], None], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed and not call["record"]:
                break
        if call["record"]:
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)
        code = int(session.testsfailed > 0)
    finally:
        os._exit(code)


class Recorder:
    """Finds the functions that each test runs, and how long it takes.

    Tests that share a fixture of their module are a unit, since any of them may be the one that
    sets it up.
    """

    def __init__(self, hits: Path) -> None:
        self._hits = hits
        self._units: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record where this test's functions go."""
        number = str(len(self._units))
        unit = self._units.setdefault(
            _unit(item), {"hits": number, "tests": [], "seconds": 0.0, "passed": True}
        )
        unit["tests"].append(item.nodeid)
        folder = self._hits / unit["hits"]
        folder.mkdir(exist_ok=True)
        os.environ["MUTATION_HITS"] = str(folder)
        began = time.monotonic()
        result = yield
        unit["seconds"] += time.monotonic() - began
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails without a mutant says nothing about one."""
        if report.failed:
            next(u for u in self._units.values() if report.nodeid in u["tests"])["passed"] = False

    def pytest_sessionfinish(self) -> None:
        """Leave everything in a file."""
        (self._hits / "units.json").write_text(json.dumps([*self._units.values()]))


def _unit(item: pytest.Item) -> str:
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    wide = [
        name
        for name in item.fixturenames  # type: ignore[attr-defined]
        if any(one.scope == "module" for one in definitions.get(name, ()))
    ]
    if not wide:
        return item.nodeid
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return f"{item.path}: {[(name, str(parameters.get(name))) for name in wide]}"


def main() -> int:
    """Collect the tests, and answer calls."""
    orders, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    for module in _WARM:
        importlib.import_module(module)
    forker()  # starts it, which takes as long as the collection
    return int(pytest.main(sys.argv[1:], plugins=[Server(orders, answers)]))


if __name__ == "__main__":
    sys.exit(main())
