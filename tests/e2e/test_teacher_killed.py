"""dragoman synthesize --teacher: killed, with errors, on a budget; nothing lost or paid twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_teacher import PRICE_IN, PRICE_OUT, FakeTeacher, teaching
from processes import wait_until
from real_text import real_lines

AT_ONCE = 8


def start(teacher: FakeTeacher, folder: Path, *more: str) -> subprocess.Popen[str]:
    words = ["synthesize", "--teacher", teacher.url, "--input", str(folder / "text")]
    words += ["--output", str(folder / "pairs.tsv"), "--languages", "en-de", "--model", "m"]
    words += ["--price-in", f"{PRICE_IN} USD", "--price-out", f"{PRICE_OUT} USD", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words, "--at-once", str(AT_ONCE)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_lines", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_kills_errors_and_a_limit_lose_and_double_nothing(num_lines: int, tmp_path: Path) -> None:
    sources, targets = real_lines("train", "en"), real_lines("train", "de")
    text, known = [], {}
    for number in range(num_lines):
        line = f"{sources[number % len(sources)]} {number}"
        known[line] = f"{targets[number % len(sources)]} {number}"
        text.append(line)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in text), "utf-8")
    with teaching(known.__getitem__, fault_share=0.05) as teacher:
        for kill in range(1, 4):
            process = start(teacher, tmp_path)
            wait_until(
                lambda kill=kill, process=process: (
                    process.poll() is not None  # type: ignore[misc]
                    or sum(teacher.billed.values()) > kill * num_lines / 6
                ),
                limit_s=200,
            )
            process.kill()
            process.communicate()
            assert process.returncode == -9
        paid_twice = sum(count - 1 for count in teacher.billed.values())
        assert paid_twice <= 3 * AT_ONCE, "no more than was on its way at a kill"
        limit = 1.2 * teacher.bill
        process = start(teacher, tmp_path, "--spend", f"{limit:.5f} USD")
        _, said = process.communicate()
        assert process.returncode == 2, said
        assert "the limit of" in said
        assert teacher.bill <= 1.01 * limit
        printed, said = start(teacher, tmp_path, "--spend", "100 USD").communicate()
    pairs = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text("utf-8").splitlines()]
    assert pairs == [[line, known[line]] for line in text], said
    assert set(teacher.billed) == set(text)
    assert sum(teacher.billed.values()) <= num_lines + 3 * AT_ONCE
    assert len(teacher.faults) == 8, "each kind of error came"
    manifest = json.loads((tmp_path / "pairs.tsv.json").read_text("utf-8"))
    assert f"lines {num_lines:,}, pairs {num_lines:,}" in printed
    assert teacher.bill <= manifest["cost"] * 1.001 + 3 * AT_ONCE * teacher.bill / num_lines
    assert manifest["cost"] <= 1.1 * teacher.bill
    print(
        f"\n{num_lines} lines: billed {teacher.bill:.4f}, counted {manifest['cost']:.4f} USD; "
        f"{sum(teacher.asked.values())} requests, {dict(teacher.faults)}"
    )
