"""Translated files wait to be fetched, under names that nobody guesses, and not for ever."""

from __future__ import annotations

import time

from dragoman.serve.libretranslate import Downloads


def test_a_file_is_there_until_its_time_is_over() -> None:
    downloads = Downloads(kept_s=0.05)
    key = downloads.keep("a_de.txt", b"Ein Mann.", "text/plain")
    found = downloads.find(key)
    assert found is not None
    assert (found.name, found.content) == ("a_de.txt", b"Ein Mann.")
    time.sleep(0.1)
    assert downloads.find(key) is None


def test_the_oldest_go_if_all_are_too_large_together_and_empty_ones_count() -> None:
    downloads = Downloads(most_bytes=10_000)
    keys = [downloads.keep("a.txt", b"x" * 2000, "text/plain") for _ in range(5)]
    assert [downloads.find(key) is not None for key in keys] == [False] * 2 + [True] * 3
    keys += [downloads.keep("a.txt", b"", "text/plain") for _ in range(100)]
    assert sum(downloads.find(key) is not None for key in keys) == 10


def test_names_are_long_and_no_two_are_alike() -> None:
    downloads = Downloads()
    keys = {downloads.keep("a.txt", b"", "text/plain") for _ in range(1000)}
    assert len(keys) == 1000
    assert min(map(len, keys)) >= 43, "32 random bytes"
    assert not any({*key} & {*"./\\"} for key in keys)
