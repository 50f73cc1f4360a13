"""Links and layouts as people type them."""

from __future__ import annotations

import pytest

from dragoman.base.errors import ConfigError
from dragoman.cluster.rates import Link, parse_ranks
from dragoman.cluster.strategies import Cluster


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("100Mbit", 11.8125e6),
        ("1 Gbit/s", 118.125e6),
        ("215 MB/s", 215e6),
        ("12MB/s", 12e6),
    ],
)
def test_bits_are_a_port_and_bytes_a_measurement(text: str, bytes_per_s: float) -> None:
    assert Link.parse(text).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "text", ["100 MB", "100", "100 Mb/s", "0 Mbit", "-1 MB/s", "fast", "", "1e-300bit/s"]
)
def test_ambiguous_links_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Link.parse(text)


@pytest.mark.parametrize(
    ("text", "ranks_per_host", "said"),
    [
        ("4", (1, 1, 1, 1), "4 hosts of one rank"),
        ("1", (1,), "1 rank on one host"),
        ("2+1", (2, 1), "2 hosts of 2+1 ranks"),
        ("2+2", (2, 2), "2 hosts of 2 ranks"),
        ("2x8", (8, 8), "2 hosts of 8 ranks"),
        ("1x8", (8,), "8 ranks on one host"),
    ],
)
def test_ranks_of_hosts(text: str, ranks_per_host: tuple[int, ...], said: str) -> None:
    assert parse_ranks(text) == ranks_per_host
    assert str(Cluster.of(ranks_per_host, Link(1.0))) == said


@pytest.mark.parametrize(
    "text", ["0", "", "2+", "two", "2+0", "-1", "2,1", "99999", "2x", "x8", "2x0"]
)
def test_ranks_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--ranks"):
        parse_ranks(text)


def test_more_hosts_are_like_the_first() -> None:
    cluster = Cluster.of((2, 1), Link(1.0))
    assert cluster.only(range(4)).ranks_per_host == (2, 1, 2, 2)
    assert cluster.only([1]).ranks_per_host == (1,)
