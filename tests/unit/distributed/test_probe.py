"""Everyone meets everyone once, nobody is in two places at a time."""

from __future__ import annotations

from itertools import combinations

import pytest

from dragoman.distributed.probe import tournament


@pytest.mark.parametrize("players", range(1, 10))
def test_everyone_meets_everyone_once(players: int) -> None:
    rounds = tournament(players)
    games = [game for played in rounds for game in played]
    assert sorted(games) == list(combinations(range(players), 2))
    for played in rounds:
        busy = [player for game in played for player in game]
        assert len(busy) == len(set(busy))
