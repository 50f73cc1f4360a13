"""Everyone meets everyone once, nobody is in two places at a time."""

from __future__ import annotations

from itertools import combinations

import pytest

from dragoman.distributed.link_rate import agree
from dragoman.distributed.probe import tournament


@pytest.mark.parametrize("players", range(1, 10))
def test_everyone_meets_everyone_once(players: int) -> None:
    rounds = tournament(players)
    games = [game for played in rounds for game in played]
    assert sorted(games) == list(combinations(range(players), 2))
    for played in rounds:
        busy = [player for game in played for player in game]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(
    ("rates", "enough"),
    [([], False), ([1e8], False), ([1e8, 1.04e8], True), ([1e8, 1.2e8], False)],
)
def test_two_rates_that_agree_need_no_third(rates: list[float], enough: bool) -> None:
    assert agree(rates) is enough
