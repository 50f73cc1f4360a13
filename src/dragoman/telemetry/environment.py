"""Versions, git state and hardware: the facts that are needed to repeat a run."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from dragoman.base.version import VERSION
from dragoman.telemetry import host
from dragoman.telemetry.events import Environment


def read_environment() -> Environment:
    """The environment of this process; takes some tens of milliseconds."""
    import torch

    commit, dirty = _git_state(Path(__file__).parent)
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return Environment(
        dragoman_version=VERSION,
        python_version=platform.python_version(),
        torch_version=torch.__version__,
        git_commit=commit,
        git_dirty=dirty,
        os=host.os_name(),
        cpu_model=host.cpu_model(),
        cpu_cores=host.cpu_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=host.memory_bytes(),
        gpu_name=gpu.name if gpu else None,
        gpu_count=torch.cuda.device_count(),
        gpu_memory_bytes=gpu.total_memory if gpu else None,
        cuda_version=torch.version.cuda,
        driver_version=host.gpu_driver_version(),
    )


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the package's own checkout, and whether its files differ from that commit.

    (None, None) for an installed package, even if it is inside another repository.
    """
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else changes != ""


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
