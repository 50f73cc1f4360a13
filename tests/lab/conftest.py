"""Labs for tests; tests are skipped with a clear reason if the machine cannot make one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.controller import Controller, set_up_controller
from lab.laboratory import Lab, open_lab
from lab.namespaces import why_no_lab

OpenLab = Callable[..., Lab]


@pytest.fixture(scope="session")
def lab_machine() -> None:
    """Skip if this machine cannot make hosts."""
    if why := why_no_lab():
        pytest.skip(f"no lab here: {why}")


@pytest.fixture
def make_lab(lab_machine: None, tmp_path: Path) -> Iterator[OpenLab]:
    """make_lab(names, rate=...) opens a lab that is removed after the test, however it ends."""
    with ExitStack() as stack:

        def make(names: list[str], *, rate: str | None = None) -> Lab:
            opened: Lab = stack.enter_context(open_lab(tmp_path / "lab", names, rate=rate))
            return opened

        yield make


@pytest.fixture
def controller(make_lab: OpenLab) -> Controller:
    """Two hosts of two ranks and of one, and a user who trains on them."""
    return set_up_controller(make_lab(["alpha", "beta"], rate="40mbit"))
