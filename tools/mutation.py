"""Mutation tests of the most important modules, with mutmut 3.

    .venv/bin/python tools/mutation.py [--sample N] [MODULE ...]      all modules of TESTS, or some

With --sample, N mutants of each module, drawn at random but the same ones every time: some modules
have so many mutants that all of them would take hours.
Each module runs alone in `build/mutation/<module>` with only its own tests, so that a mutant costs
seconds. It prints the mutants that no test notices; docs/mutation.md explains the known ones.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import tomli_w

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PLACE: Final = REPOSITORY / "build" / "mutation"

_CORPUS: Final = ("unit/corpus/test_prepare.py", "unit/corpus/test_clean.py")
_PROCESSES_S: Final = 900.0
_LEFT_OUT: Final = (
    "unit/corpus/test_prepare.py::test_the_result_does_not_depend_on_the_number_of_workers"
)
"""It starts processes, 15 s for each mutant."""
_DISTRIBUTED: Final = ("distributed/test_strategies.py",)
_DILOCO: Final = (
    "distributed/test_diloco.py",
    "distributed/test_diloco_gradients.py",
    "distributed/test_diloco_work.py",
)
_REPORT: Final = (
    "golden/test_verdicts.py",
    "golden/test_recorded_runs.py",
    "golden/test_damaged_records.py",
    "golden/test_lives.py",
    "golden/test_logs_that_fool.py",
    "golden/test_noisy_dev_loss.py",
    "golden/test_stages.py",
    "unit/reporting/test_culprits.py",
)

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "corpus/runs": ("unit/corpus/test_dedup.py", "unit/corpus/test_runs.py", *_CORPUS),
    "corpus/encode": _CORPUS,
    "data/sampler": ("unit/data/test_sampler.py", "unit/data/test_loader.py"),
    "training/step": ("unit/training/test_step.py",),
    "training/checkpoint": ("unit/training/test_checkpoint.py", "unit/training/test_trainer.py"),
    "distributed/all_reduce": ("distributed/test_gradient_sync.py", *_DISTRIBUTED),
    "distributed/diloco": _DILOCO,
    "distributed/diloco_work": _DILOCO,
    "distributed/strategies": ("distributed/test_gradient_sync.py", *_DISTRIBUTED),
    "distributed/devices": ("distributed/test_world.py",),
    "distributed/host_sum": ("distributed/test_packed_sum.py", *_DILOCO),
    "distributed/link_rate": (
        "unit/distributed/test_probe.py",
        "distributed/test_auto_on_one_host.py",
    ),
    "distributed/outer": _DILOCO,
    "distributed/packing": ("distributed/test_packed_sum.py",),
    "distributed/powersgd": ("distributed/test_powersgd.py",),
    "distributed/probe": ("unit/distributed/test_probe.py",),
    "distributed/pulse": ("distributed/test_launch.py", "distributed/test_pauses.py"),
    "distributed/rendezvous": ("distributed/test_world.py", "distributed/test_store.py"),
    "distributed/standing": ("distributed/test_pauses.py",),
    "distributed/store": ("distributed/test_store.py",),
    "distributed/gradient_sync": _DISTRIBUTED,
    "distributed/topology": ("distributed/test_world.py", *_DISTRIBUTED),
    "distributed/world": ("distributed/test_world.py",),
    "reporting/convergence": _REPORT,
    "reporting/cost": ("golden/test_cost.py", *_REPORT),
    "reporting/health": _REPORT,
    "reporting/network": ("unit/reporting/test_network_fit.py", *_REPORT),
    "reporting/speed": ("unit/reporting/test_rates.py", *_REPORT),
    "reporting/trend": ("unit/reporting/test_trend.py", *_REPORT),
    "reporting/verdict": ("unit/reporting/test_render.py", *_REPORT),
    "reporting/verdicts": _REPORT,
    "serve/batcher": ("unit/serve/test_batcher.py",),
    "serve/limits": ("unit/serve/test_limits.py",),
}
"""Module of src/dragoman -> files of tests/ that run for each of its mutants."""


def main() -> int:
    """Run the wanted modules; 0 if each could be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--sample", type=int, help="mutants of each module (default: all)")
    options = parser.parse_args()
    wanted: list[str] = options.modules
    unknown = [module for module in wanted if module not in TESTS]
    if unknown:
        print(f"not in the table: {', '.join(unknown)}; known: {', '.join(TESTS)}", file=sys.stderr)
        return 2
    failed = False
    for module in wanted or TESTS:
        began = time.monotonic()
        results = _run(module, options.sample)
        counts = Counter(results.values())
        caught = counts["killed"] + counts["timeout"]
        failed |= not results or "not checked" in counts
        print(
            f"{module}: {caught} of {len(results)} mutants noticed, {dict(counts)}, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        for name, status in results.items():
            if status not in ("killed", "timeout", "not checked"):
                print(_difference(module, name, status), flush=True)
    return int(failed)


def _run(module: str, sample: int | None) -> dict[str, str]:
    """Status of each mutant of a module, or of a sample; empty if mutmut could not run."""
    place = PLACE / module
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tests"):
        shutil.copytree(REPOSITORY / folder, place / folder, symlinks=True, ignore=ignored)
    (place / "pyproject.toml").write_text(tomli_w.dumps(_settings(module)), encoding="utf-8")
    drawn: list[str] = []
    if sample:
        _mutmut_run(place, "none of them")  # it makes all mutants first, then finds none to run
        made = sorted(_statuses(place))
        drawn = random.Random(1).sample(made, min(sample, len(made)))  # noqa: S311  # not a secret
    code = _mutmut_run(place, *drawn)
    results = _statuses(place)
    if drawn:
        results = {name: results[name] for name in drawn}
    for name, status in results.items():
        if status == "no tests":
            results[name] = _noticed_by_processes(place, module, name)
    if code or not results:
        print(f"{module}: mutmut ended with {code}; see {place}/mutmut.log", file=sys.stderr)
    return results


def _mutmut_run(place: Path, *mutants: str) -> int:
    with (place / "mutmut.log").open("wb") as log:
        return subprocess.run(
            [_mutmut(), "run", "--max-children", str(os.cpu_count() or 1), *mutants],
            cwd=place,
            env=_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


def _noticed_by_processes(place: Path, module: str, mutant: str) -> str:
    """Status of a mutant of code that no test runs in its own process, but in others it starts.

    They all take the mutant from the environment.
    """
    mutants = place / "mutants"
    environment = _environment() | {
        "MUTANT_UNDER_TEST": mutant,
        "PYTHONPATH": f"{mutants / 'src'}{os.pathsep}{mutants / 'tests'}",
    }
    tests = [f"tests/{name}" for name in TESTS[module]]
    try:
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-m", "not slow", *tests],
            cwd=mutants,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROCESSES_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return "timeout"
    return "killed" if code else "survived"


def _statuses(place: Path) -> dict[str, str]:
    found = _mutmut_says(place, "results", "--all", "true")
    return dict(re.findall(r"^\s+(\S+__mutmut_\d+): (.+)$", found, re.MULTILINE))


def _settings(module: str) -> dict[str, object]:
    return {
        "tool": {
            "pytest": {
                "ini_options": {
                    "addopts": "-q --import-mode=importlib -p no:cacheprovider",
                    "pythonpath": ["tests"],
                    "timeout": 300,
                    "markers": ["slow: left out here"],
                }
            },
            "mutmut": {
                "source_paths": ["src"],
                "only_mutate": [f"src/dragoman/{module}.py"],
                "pytest_add_cli_args": ["-m", "not slow", f"--deselect=tests/{_LEFT_OUT}"],
                "pytest_add_cli_args_test_selection": [f"tests/{name}" for name in TESTS[module]],
                "process_isolation": "forkserver",  # torch does not like to be forked
                "timeout_multiplier": 5.0,
                "timeout_constant": 5.0,
            },
        }
    }


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def _mutmut() -> str:
    return str(Path(sys.executable).with_name("mutmut"))


def _mutmut_says(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        [_mutmut(), *arguments],
        cwd=place,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def _difference(module: str, name: str, status: str) -> str:
    """What a mutant changed, its lines without what stands around them."""
    shown = _mutmut_says(PLACE / module, "show", name).splitlines()
    changed = [line for line in shown if re.match(r"[+-](?![+-])", line)]
    return "\n".join([f"  {status}: {name}", *(f"    {line}" for line in changed)])


if __name__ == "__main__":
    sys.exit(main())
