"""The warning about an export whose translations differ a little."""

from __future__ import annotations

from dragoman.formats.check import compare, warning_of


def test_more_than_rounding_is_a_warning() -> None:
    ours = [f"translation {number}" for number in range(100)]
    for others, warned in ((0, False), (1, False), (2, True)):
        theirs = ["another"] * others + ours[others:]
        warning = warning_of(compare(ours, theirs), fewer_bits=False)
        assert bool(warning) == warned
        assert not warned or "2 of 100 translations differ" in warning
        assert not warning_of(compare(ours, theirs), fewer_bits=True)
