"""The page of benchmarks is made from recorded figures, and the README says no more than these."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
RECORDED = ("processor", "instructions", "commit", "date", "command")


def results() -> list[dict[str, object]]:
    lines = (BENCHMARKS / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.smoke
def test_the_page_is_that_of_the_recorded_figures() -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "page.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.smoke
def test_every_figure_says_where_it_comes_from() -> None:
    for result in results():
        assert [key for key in RECORDED if key not in result] == [], result


@pytest.mark.smoke
def test_the_readme_states_the_range_over_all_machines() -> None:
    ratios = [
        float(str(result["value"]))
        for result in results()
        if result["claim"] == "train_cpu" and str(result["case"]).endswith("/ fastest other tool")
    ]
    assert len(ratios) >= 4
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} times"
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert spread in readme


@pytest.mark.smoke
def test_every_program_of_the_page_is_there() -> None:
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    programs = set(re.findall(r"`([a-z_/]+\.py)", page))
    assert len(programs) > 15
    assert [
        name for name in programs if not (BENCHMARKS / name.removeprefix("benchmarks/")).is_file()
    ] == []
