from __future__ import annotations

import hashlib

import numpy as np

from dragoman.corpus.directions import Direction
from dragoman.corpus.runs import HeldOutSides, distinct_keys, pair_keys, repeated

SOURCES = [f"sentence {number}" for number in range(20_000)]


def test_keys_are_uniform_and_another_seed_gives_another_order() -> None:
    keys = pair_keys(SOURCES, SOURCES, seed=1)
    assert len(np.unique(keys)) == len(SOURCES)
    shares = np.bincount((keys >> np.uint64(60)).astype(np.int64), minlength=16) / len(keys)
    assert np.all(np.abs(shares - 1 / 16) < 0.01)
    other = pair_keys(SOURCES, SOURCES, seed=-1)
    assert abs(np.corrcoef(np.argsort(keys), np.argsort(other))[0, 1]) < 0.05


def test_a_pair_is_known_by_both_sides() -> None:
    keys = pair_keys(["a", "a", "ab", "a"], ["b", "c", "", "b"], seed=1)
    assert len(set(keys.tolist())) == 3
    assert repeated(keys).tolist() == [False, False, False, True]


def test_repeated_marks_all_but_the_first() -> None:
    keys = np.array([7, 3, 7, 7, 3, 1], dtype=np.uint64)
    assert repeated(keys).tolist() == [False, False, True, True, True, False]
    assert repeated(keys[:0]).tolist() == []


def test_distinct_keys_tell_equal_pairs_apart_by_their_place() -> None:
    keys = np.zeros(1000, dtype=np.uint64)
    mixed = distinct_keys(keys, first_ordinal=5)
    assert not repeated(mixed).any()
    parts = [
        distinct_keys(keys[:400], first_ordinal=5),
        distinct_keys(keys[400:], first_ordinal=405),
    ]
    assert np.concatenate(parts).tolist() == mixed.tolist()


def test_overlap_counts_the_shared_sides_of_the_same_language() -> None:
    held_out = HeldOutSides()
    held_out.add(Direction("en", "de"), "a", "b")
    held_out.add(Direction("en", "de"), "c", "d")
    pairs = [("x", "y"), ("a", "y"), ("x", "d"), ("a", "d"), ("b", "a")]
    for direction, shared in (
        (Direction("en", "de"), [0, 1, 1, 2, 0]),
        (Direction("de", "en"), [0, 0, 0, 0, 2]),
        (Direction("EN", "fr"), [0, 1, 0, 1, 0]),
    ):
        assert [held_out.overlap(direction, *pair) for pair in pairs] == shared


def test_places_are_mixed_as_splitmix64_does() -> None:
    """The first outputs of its authors' splitmix64.c for a seed of 0."""
    keys = distinct_keys(np.zeros(3, dtype=np.uint64), first_ordinal=0)
    assert list(map(int, keys)) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    later = distinct_keys(np.full(1, 5, dtype=np.uint64), first_ordinal=2)
    assert int(later[0]) == 0x06C45D188009454F ^ 5


def test_a_key_is_the_blake2b_of_both_sides_on_every_machine() -> None:
    salt = (7).to_bytes(16, "little")
    digest = hashlib.blake2b("größer\tbigger".encode(), digest_size=8, salt=salt).digest()
    assert pair_keys(["größer"], ["bigger"], seed=7)[0] == int.from_bytes(digest, "little")
