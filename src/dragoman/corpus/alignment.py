"""Where two files that should be parallel stop being so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def first_suspicious_line(
    source_lengths: NDArray[np.int64], target_lengths: NDArray[np.int64]
) -> int:
    """The line, counted from 1, at which the longer file most likely has lines of its own.

    source_lengths, target_lengths: characters or bytes of each line, of different number. The
    lengths of translations are nearly proportional (Gale and Church 1993), so the best place for
    the surplus lines is the one that leaves the smallest sum of |log length ratio|, with the lines
    before it paired as they are and those after it paired with the shift undone. The result is
    one more than the shorter file has lines where the surplus lies at the end.
    """
    longer, shorter = sorted((source_lengths, target_lengths), key=len, reverse=True)
    if not len(shorter):
        return 1
    long_log, short_log = np.log1p(longer), np.log1p(shorter)
    usual = np.median(long_log) - np.median(short_log)
    surplus = len(longer) - len(shorter)
    before = np.abs(long_log[: len(shorter)] - short_log - usual)
    after = np.abs(long_log[surplus:] - short_log - usual)
    cost = np.zeros(len(shorter) + 1)
    cost[1:] = np.cumsum(before - after)
    # Ties go to the end: equal lines on both sides of the surplus do not tell where it starts.
    return len(cost) - int(np.argmin(cost[::-1]))
