"""dragoman synthesize and score: killed again and again, no line is lost or written twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes import wait_until
from real_text import real_lines
from small_run import small_run


def killed_and_repeated(words: list[str], output: Path, *, kills: int) -> tuple[int, str]:
    """Run a command to its end, killed so many times before; times it went on, what it printed."""
    draft = output.with_name(f".{output.name}.partial")
    rng = random.Random(1)
    resumed = 0
    for _ in range(kills):
        process = start(words, output)
        before = draft.stat().st_size if draft.exists() else 0
        wait_until(
            lambda before=before, process=process: (
                process.poll() is not None  # type: ignore[misc]
                or (draft.exists() and draft.stat().st_size > before)
            )
        )
        time.sleep(rng.random() * 0.2)
        process.kill()
        printed, _ = process.communicate()
        if process.returncode == 0:  # it ended before the kill
            return resumed, printed
        resumed += output.with_name(f"{draft.name}.json").exists()
    process = start(words, output)
    printed, _ = process.communicate()
    assert process.returncode == 0
    return resumed, printed


def start(words: list[str], output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words, "--output", str(output)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(300)
def test_synthesis_goes_on_after_kills(tmp_path: Path) -> None:
    text = tmp_path / "text"
    lines = real_lines("train", "en")
    text.write_text("".join(f"{lines[n % len(lines)]}\n" for n in range(16_000)), "utf-8")
    words = ["synthesize", str(small_run().path), "--input", str(text), "--threads", "1"]
    words += ["--set", "search.beam_size=1", "--set", "search.max_length_extra=2"]
    whole, broken = tmp_path / "whole.tsv", tmp_path / "broken.tsv"
    process = start(words, whole)
    first, _ = process.communicate()
    resumed, printed = killed_and_repeated(words, broken, kills=5)
    assert resumed >= 3
    assert broken.read_bytes() == whole.read_bytes()
    # The counts are those of all attempts together.
    assert first.splitlines()[1:] == printed.splitlines()[1:]
    pairs = first.splitlines()[0].split(": ")[1]
    assert printed.splitlines()[0].split(": ")[1].startswith(pairs)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "whole.tsv", "broken.tsv"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scoring_goes_on_after_kills(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    both = [*zip(real_lines("train", "en"), real_lines("train", "de"), strict=True)]
    rows = [*both, *both[:14_000]]
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in rows), "utf-8")
    words = ["score", str(small_run().path), str(pairs)]
    whole, broken = tmp_path / "whole.tsv", tmp_path / "broken.tsv"
    assert start(words, whole).wait() == 0
    killed_and_repeated(words, broken, kills=3)
    assert broken.read_bytes() == whole.read_bytes()
    assert len(whole.read_text("utf-8").splitlines()) == len(rows)
