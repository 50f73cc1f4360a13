"""What every test may use. Text that every clone has is in real_text.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

if not Path("/dev/nvidia0").exists():
    # Where Triton is installed all the same, its kernels run in its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


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
