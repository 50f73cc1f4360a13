"""The garbage collector of the server: what stays is left alone, cycles still go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dragoman.serve.server import collect_rarely


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


def test_permanent_objects_are_frozen_and_cycles_are_collected() -> None:
    collect_rarely()
    assert gc.get_freeze_count() > 10_000
    gone = weakref.ref(Node())
    kept: list[list[int]] = []
    while gone() is not None:
        kept.append([])
        assert len(kept) < 1_000_000
    assert len(kept) > 10_000
