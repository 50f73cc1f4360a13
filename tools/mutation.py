"""Mutation tests of the most important modules, with the mutants of mutmut 3.

    .venv/bin/python tools/mutation.py [--sample N [--seed S]] [MODULE ...]   all of TESTS, or some

With --sample, N mutants of each module, drawn at random but the same ones for the same seed: some
modules have so many mutants that all of them would take hours.

`build/mutation` gets a copy of the code with all mutants of the wanted modules in it. One run of
the tests without a mutant finds the tests that run each function, in whichever process. Then each
mutant is tried with those tests alone, the fastest first, until one fails. It prints the mutants
that survive; docs/mutation.md explains the known ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w
from mutants import Mutants, make_mutants

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PLACE: Final = REPOSITORY / "build" / "mutation"
_HITS: Final = PLACE / "hits"
_WHILE_IMPORTING: Final = "importing"
_ALL_S: Final = 3600.0
"""For all tests without a mutant."""
_START_S: Final = 600.0
_LEAST_S: Final = 15.0
_TIMES: Final = 5.0
"""A test may take this many times as long as without a mutant, and `_LEAST_S` more."""
_PATIENCE: Final = 2.0
"""The second time its limit is so many times as high."""

_CORPUS: Final = ("unit/corpus/test_prepare.py", "unit/corpus/test_clean.py")
_LEFT_OUT: Final = (
    "unit/corpus/test_prepare.py::test_the_result_does_not_depend_on_the_number_of_workers"
)
"""It starts processes: 15 s each time."""
_SYNC: Final = ("distributed/test_gradient_sync.py", "distributed/test_strategies.py")
_DILOCO: Final = (
    "distributed/test_diloco.py",
    "distributed/test_diloco_gradients.py",
    "distributed/test_strategies.py",
)
_WORLD: Final = ("distributed/test_world.py", "distributed/test_gradient_sync.py")
_REPORT: Final = (
    "golden/test_verdicts.py",
    "golden/test_account.py",
    "golden/test_figures.py",
    "golden/test_thresholds.py",
    "golden/test_recorded_runs.py",
    "golden/test_damaged_records.py",
    "golden/test_lives.py",
    "golden/test_logs_that_fool.py",
    "golden/test_noisy_dev_loss.py",
    "golden/test_stages.py",
    "golden/test_all_culprits.py",
    "unit/reporting/test_culprits.py",
    "unit/reporting/test_openseq2seq.py",
    "unit/reporting/test_pauses.py",
    "unit/reporting/test_reading.py",
)

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "corpus/runs": ("unit/corpus/test_dedup.py", "unit/corpus/test_runs.py", *_CORPUS),
    "corpus/encode": (
        *_CORPUS,
        "unit/corpus/test_directions.py",
        "unit/corpus/test_lexical.py",
    ),
    "data/sampler": ("unit/data/test_sampler.py", "unit/data/test_loader.py"),
    "training/step": ("unit/training/test_step.py",),
    "training/guard": ("unit/training/test_guard.py", "distributed/test_slowness.py"),
    "training/pauses": ("distributed/test_pauses.py",),
    "training/checkpoint": ("unit/training/test_checkpoint.py", "unit/training/test_trainer.py"),
    "distributed/all_reduce": _SYNC,
    "distributed/diloco": _DILOCO,
    "distributed/diloco_work": (
        "distributed/test_diloco_work.py",
        "distributed/test_link_rates.py",
    ),
    "distributed/strategies": (*_SYNC, *_DILOCO),
    "distributed/devices": ("unit/distributed/test_devices.py",),
    "distributed/host_sum": (*_SYNC, *_DILOCO),
    "distributed/link_rate": (
        "distributed/test_link_rates.py",
        "distributed/test_auto_on_one_host.py",
    ),
    "distributed/launch": (
        "distributed/test_launch.py",
        "unit/distributed/test_launch_command.py",
        "unit/test_session.py",
    ),
    "distributed/outer": _DILOCO,
    "distributed/packing": ("distributed/test_packed_sum.py", "distributed/test_diloco.py"),
    "distributed/powersgd": ("distributed/test_powersgd.py", "distributed/test_strategies.py"),
    "distributed/probe": ("unit/distributed/test_probe.py", "distributed/test_link_rates.py"),
    "distributed/pulse": ("unit/distributed/test_pulse.py",),
    "distributed/rendezvous": (
        "unit/distributed/test_rendezvous.py",
        "unit/distributed/test_standing.py",
    ),
    "distributed/standing": ("unit/distributed/test_standing.py",),
    "distributed/store": ("unit/distributed/test_standing.py", "distributed/test_store.py"),
    "distributed/gradient_sync": _SYNC,
    "distributed/topology": _WORLD,
    "distributed/wire": _WORLD,
    "distributed/world": _WORLD,
    "reporting/totals": ("golden/test_cost.py", *_REPORT),
    "reporting/convergence": _REPORT,
    "reporting/cost": ("golden/test_cost.py", *_REPORT),
    "reporting/health": _REPORT,
    "reporting/network": ("unit/reporting/test_network_fit.py", *_REPORT),
    "reporting/pauses": _REPORT,
    "reporting/rates": ("unit/reporting/test_rates.py", *_REPORT),
    "reporting/speed": ("unit/reporting/test_rates.py", *_REPORT),
    "reporting/trend": ("unit/reporting/test_trend.py", *_REPORT),
    "reporting/verdict": ("unit/reporting/test_render.py", *_REPORT),
    "reporting/verdicts": _REPORT,
    "serve/batcher": ("unit/serve/test_batcher.py",),
    "serve/limits": ("unit/serve/test_limits.py",),
}
"""Module of src/dragoman -> files of tests/ that run for each of its mutants."""


@dataclass(frozen=True)
class Unit:
    """Tests that run together, with the functions that they run.

    seconds: without a mutant.
    """

    tests: list[str]
    functions: frozenset[str]
    seconds: float


class Worker:
    """mutation_worker.py, which runs tests; started again after a test that never ended."""

    def __init__(self, files: list[str], **environment: str) -> None:
        self._files = files
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def run(self, tests: list[str], *, mutant: str, limit_s: float, record: str = "") -> int | None:
        """0 if these tests pass, or all if there are none; None if they do not end in time.

        record: a folder for what each of them runs.
        """
        if self._process is None:
            self._process = self._started()
            if self._answer(_START_S) != "ready":  # the modules cannot even be imported
                self.end()
                return 1
        assert self._process.stdin is not None
        call = {"mutant": mutant, "tests": tests, "limit_s": limit_s, "record": record}
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        code = self._answer(limit_s + _LEAST_S)
        if code not in ("0", "1"):  # a process of it may still be in the middle of something
            self.end()
        return None if code is None else int(code or 1)

    def end(self) -> None:
        """Kill it, and all that it has started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _answer(self, limit_s: float) -> str | None:
        """None if there is none in time; empty if the worker has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], limit_s)[0]
        return self._process.stdout.readline().strip() if ready else None

    def _started(self) -> subprocess.Popen[str]:
        tools = Path(__file__).parent
        return subprocess.Popen(
            [
                sys.executable,
                str(tools / "mutation_worker.py"),
                "-m",
                "not slow and not system",
                f"--basetemp={PLACE / 'scratch'}",
                f"--deselect=tests/{_LEFT_OUT}",
                *(f"tests/{name}" for name in self._files),
            ],
            cwd=PLACE,
            env=os.environ
            | {
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "200",
                "PYTHONPATH": os.pathsep.join(map(str, (PLACE / "src", PLACE / "tests", tools))),
                "MUTATION_HITS": os.devnull,
            }
            | self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(PLACE / "worker.log").open("ab"),
            text=True,
            start_new_session=True,
        )


def main() -> int:
    """Try the mutants of the wanted modules; 0 if each could be tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--sample", type=int, help="mutants of each module (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    options = parser.parse_args()
    wanted: list[str] = options.modules or [*TESTS]
    unknown = [module for module in wanted if module not in TESTS]
    if unknown:
        print(f"not in the table: {', '.join(unknown)}; known: {', '.join(TESTS)}", file=sys.stderr)
        return 2
    made = {module: _prepare(module) for module in _laid_out(wanted)}
    files = sorted({name for module in wanted for name in TESTS[module]})
    units = _found_units(files)
    if not units:
        print(f"no test passes without a mutant; see {PLACE}/worker.log", file=sys.stderr)
        return 1
    importing = {file.name for file in (_HITS / _WHILE_IMPORTING).iterdir()}
    worker = Worker(files)
    for module, mutants in made.items():
        began = time.monotonic()
        names = sorted(mutants.functions)
        if options.sample:
            number = min(options.sample, len(names))
            chance = random.Random(options.seed)  # noqa: S311  # not a secret
            names = chance.sample(names, number)
        results = {}
        for name in names:
            function = mutants.functions[name]
            chosen = _chosen(units, module, function, importing=function in importing)
            mine = (
                Worker([*TESTS[module]], MUTANT_UNDER_TEST=name)
                if function in importing
                else worker
            )
            results[name] = _tried(mine, name, chosen)
            if mine is not worker:
                mine.end()
            if results[name] != "killed":
                print(_difference(mutants, name, results[name]), flush=True)
        counts = Counter(results.values())
        print(
            f"{module}: {counts['killed'] + counts['hung']} of {len(results)} mutants killed, "
            f"{dict(counts)}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    worker.end()
    return 0


def _laid_out(wanted: list[str]) -> list[str]:
    """The wanted modules, once there is a copy of the code."""
    shutil.rmtree(PLACE, ignore_errors=True)
    (_HITS / _WHILE_IMPORTING).mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(REPOSITORY / folder, PLACE / folder, symlinks=True, ignore=ignored)
    (PLACE / "pyproject.toml").write_text(tomli_w.dumps(_SETTINGS), encoding="utf-8")
    return wanted


def _prepare(module: str) -> Mutants:
    file = PLACE / "src" / "dragoman" / f"{module}.py"
    mutants = make_mutants(
        str(file), f"dragoman.{module.replace('/', '.')}", file.read_text(encoding="utf-8")
    )
    file.write_text(mutants.code, encoding="utf-8")
    return mutants


def _found_units(files: list[str]) -> list[Unit]:
    """All tests that pass without a mutant, the fastest first."""
    importing = str(_HITS / _WHILE_IMPORTING)
    worker = Worker(files, MUTANT_UNDER_TEST="stats", MUTATION_HITS=importing)
    code = worker.run([], mutant="stats", limit_s=_ALL_S, record=str(_HITS))
    worker.end()
    if code is None or not (_HITS / "units.json").exists():
        return []
    found = json.loads((_HITS / "units.json").read_text(encoding="utf-8"))
    for unit in found:
        if not unit["passed"]:
            print(f"left out, as it fails without a mutant: {unit['tests']}", flush=True)
    units = [
        Unit(
            unit["tests"],
            frozenset(file.name for file in (_HITS / unit["hits"]).iterdir()),
            unit["seconds"],
        )
        for unit in found
        if unit["passed"]
    ]
    total_s = sum(unit.seconds for unit in units)
    print(f"{len(units)} units of tests, {total_s:.0f} s without a mutant", flush=True)
    return sorted(units, key=lambda unit: unit.seconds)


def _chosen(units: list[Unit], module: str, function: str, *, importing: bool) -> list[Unit]:
    """The units of a module's own tests that run a function.

    importing: it runs when its module is imported, so all that use the module depend on it.
    """
    files = tuple(f"tests/{name}::" for name in TESTS[module])
    sought = function.rpartition(".")[0] + "." if importing else function
    return [
        unit
        for unit in units
        if unit.tests[0].startswith(files)
        and any(one.startswith(sought) if importing else one == sought for one in unit.functions)
    ]


def _tried(worker: Worker, mutant: str, units: list[Unit]) -> str:
    """ "killed", "hung", "survived" or "no tests".

    What fails or never ends must do so twice, the second time with a higher limit: the machine may
    be busy.
    """
    for unit in units:
        limit_s = _LEAST_S + _TIMES * unit.seconds
        codes = []
        for limit in (limit_s, limit_s * _PATIENCE):
            codes.append(worker.run(unit.tests, mutant=mutant, limit_s=limit))
            if codes[-1] == 0:
                break
        else:
            return "hung" if None in codes else "killed"
    return "survived" if units else "no tests"


_SETTINGS: Final[dict[str, Any]] = {
    "tool": {
        "pytest": {
            "ini_options": {
                "addopts": "-q --import-mode=importlib -p no:cacheprovider",
                "pythonpath": ["tests"],
                "timeout": 300,
                "markers": ["slow: left out here", "system: left out here", "smoke: runs here"],
            }
        }
    }
}


def _difference(mutants: Mutants, name: str, status: str) -> str:
    lines = (f"    {line}" for line in mutants.difference(name))
    return "\n".join([f"  {status}: {name}", *lines])


if __name__ == "__main__":
    sys.exit(main())
