from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.corpus.alignment import first_suspicious_line


def multi30k_lengths(shared_data: Path) -> tuple[np.ndarray, np.ndarray]:
    sides = [
        np.array([len(line) for line in (shared_data / f"multi30k/train.{language}").open()])
        for language in ("en", "de")
    ]
    return sides[0], sides[1]


@pytest.mark.parametrize("missing", [137, 9_000, 28_500])
@pytest.mark.parametrize("count", [1, 7])
def test_a_gap_in_real_text_is_found_nearby(shared_data: Path, missing: int, count: int) -> None:
    source, target = multi30k_lengths(shared_data)
    torn = np.delete(target, slice(missing, missing + count))
    assert abs(first_suspicious_line(source, torn) - (missing + 1)) <= 10
    torn = np.delete(source, slice(missing, missing + count))
    assert abs(first_suspicious_line(torn, target) - (missing + 1)) <= 10


def test_a_file_that_is_cut_off_is_suspicious_after_its_end(shared_data: Path) -> None:
    source, target = multi30k_lengths(shared_data)
    assert abs(first_suspicious_line(source, target[:20_000]) - 20_001) <= 3


def test_clear_lengths_give_the_line_itself() -> None:
    source = np.array([10, 80, 20, 55, 5, 90, 31])
    assert first_suspicious_line(source, np.delete(source, 3)) == 4


def test_an_empty_file_is_suspicious_from_line_1() -> None:
    assert first_suspicious_line(np.array([3, 4]), np.zeros(0, np.int64)) == 1
