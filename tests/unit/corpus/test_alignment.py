from __future__ import annotations

import numpy as np
import pytest

from dragoman.corpus.pairs import first_suspicious_line
from real_text import real_lines


def real_lengths() -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([len(line) for line in real_lines("train", "en")]),
        np.array([len(line) for line in real_lines("train", "de")]),
    )


@pytest.mark.parametrize("missing", [137, 9_000, 20_500])
@pytest.mark.parametrize("count", [1, 7])
def test_a_gap_in_real_text_is_found_nearby(missing: int, count: int) -> None:
    source, target = real_lengths()
    torn = np.delete(target, slice(missing, missing + count))
    assert abs(first_suspicious_line(source, torn) - (missing + 1)) <= 10
    torn = np.delete(source, slice(missing, missing + count))
    assert abs(first_suspicious_line(torn, target) - (missing + 1)) <= 10


def test_a_file_that_is_cut_off_is_suspicious_after_its_end() -> None:
    source, target = real_lengths()
    assert abs(first_suspicious_line(source, target[:20_000]) - 20_001) <= 3


def test_clear_lengths_give_the_line_itself() -> None:
    source = np.array([10, 80, 20, 55, 5, 90, 31])
    assert first_suspicious_line(source, np.delete(source, 3)) == 4


def test_an_empty_file_is_suspicious_from_line_1() -> None:
    assert first_suspicious_line(np.array([3, 4]), np.zeros(0, np.int64)) == 1
