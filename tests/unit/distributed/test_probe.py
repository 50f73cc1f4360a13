"""Everyone meets everyone once, nobody is in two places at a time."""

from __future__ import annotations

from itertools import combinations

import pytest

from dragoman.distributed.link_rate import LEAST_BYTES, agree, sustained_rate
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


class Bucket:
    """A link with a token bucket, on a clock of its own."""

    def __init__(self, bytes_per_s: float, bucket_bytes: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.tokens = bucket_bytes
        self.longest_s = self.now_s = 0.0

    def seconds(self, num_bytes: int) -> float:
        """How long a transfer takes: its tokens pass at 10 Gbit/s, the rest at the link's rate."""
        at_once = min(self.tokens, num_bytes)
        self.tokens -= at_once
        taken_s = 1e-4 + at_once / 1.25e9 + (num_bytes - at_once) / self.bytes_per_s
        self.longest_s = max(self.longest_s, taken_s)
        self.now_s += taken_s
        return taken_s


@pytest.mark.parametrize("bucket_bytes", [0, 64 << 10, 256 << 10, 4 << 20])
@pytest.mark.parametrize("mbit", [0.1, 1, 5, 15, 100, 1000, 10_000])
def test_time_bounds_a_transfer_at_any_rate(mbit: float, bucket_bytes: int) -> None:
    """No transfer takes longer than the bucket alone would, or a second, or that of the least
    size."""
    link = Bucket(mbit * 1e6 / 8, bucket_bytes)
    found, _ = sustained_rate(link.seconds)
    assert found == pytest.approx(link.bytes_per_s, rel=0.05)
    limit_s = max(1.0, bucket_bytes / link.bytes_per_s, 1.1 * LEAST_BYTES / link.bytes_per_s)
    assert link.longest_s < 1.1 * limit_s
    assert link.now_s < 2 * limit_s + 4


def test_packets_that_are_lost_now_and_then_do_not_make_a_link_slow() -> None:
    """A loss costs TCP a timeout of fixed length, in three of five transfers here."""
    link = Bucket(5e6 / 8, 0)
    lost_s = iter([0.5, 0.0, 0.25, 0.0, 0.4])

    def seconds(num_bytes: int) -> float:
        taken_s = link.seconds(num_bytes)
        return taken_s if taken_s < 0.5 else taken_s + next(lost_s)

    found, _ = sustained_rate(seconds)
    assert next(lost_s, None) is None
    assert found == pytest.approx(link.bytes_per_s, rel=0.01)
