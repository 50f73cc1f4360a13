"""Fixtures for every test. Text that every clone has is in real_text.py."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

if not Path("/dev/nvidia0").exists():
    # If Triton is installed all the same, its kernels run in its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")
# On cores that others use, too, several threads wait for one another: the first training of a test
# took 20 minutes so, and 40 seconds with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts a background job like this, and the processes of tests would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
TESTS = Path(__file__).resolve().parent
SYSTEM = ("docs", "e2e", "image", "lab", "learning")
"""Folders whose tests start whole commands, hosts and browsers: `make test-system`."""
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-system`, by its folder."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in SYSTEM and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.system)
    # The longest first, so that no process works on it alone at the end.
    items.sort(key=lambda item: item.path.parent.name != "lab")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and collected tests stay: Python need not look for garbage among them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real parallel text beside the repository; the test is skipped without it."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    directory = Path(os.environ.get("DRAGOMAN_SHARED", default))
    if not directory.is_dir():
        pytest.skip(
            f"the shared corpora are not at {directory}; set DRAGOMAN_SHARED to their folder"
        )
    return directory
