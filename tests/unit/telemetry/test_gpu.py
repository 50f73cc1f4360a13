"""Values of NVML reach the events, through NVIDIA's own binding.

A machine without a GPU has no management library, so one is compiled here that says what the driver
of a V100 said while its kernels only waited for the network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml", reason="needs dragoman[gpu]")
STUB = Path(__file__).resolve().parents[2] / "nvml_stub.c"
PROGRAM = """
import json, sys
from dragoman.base.errors import MachineError
from dragoman.telemetry import sampler
sampler._uuids = lambda num_gpus: [sys.argv[1]]
try:
    probe = sampler.GpuProbe(1)
except MachineError as error:
    print(json.dumps({"error": str(error)}))
else:
    probe.look()
    probe.look()
    list(probe.sample(2.0))
    for _ in range(int(sys.argv[2])):
        probe.look()
    print(json.dumps([payload.model_dump() for payload in probe.sample(2.0)]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path_factory.mktemp("nvml")
    output = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", output, STUB], check=True)
    return directory


def _ask(library: Path | None, uuid: str = "GPU-0f", *, looks: int = 1, **variables: str) -> Any:
    environment = os.environ | variables
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library)
    command = [sys.executable, "-c", PROGRAM, uuid, str(looks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_gpu_that_only_waits(library: Path) -> None:
    (sample,) = _ask(library)
    assert sample == {
        "gpu": 0,
        "name": "Tesla V100-PCIE-16GB",
        "seconds_s": 2.0,
        "utilisation_share": 1.0,
        "sm_activity_share": None,
        "power_w": 43.0,
        "power_limit_w": 250.0,
        "memory_bytes": 10 * 2**30,
        "memory_limit_bytes": 16 * 2**30,
        "clock_hz": 1.38e9,
        "throttle_reasons": "power_cap,thermal",
        "ecc_errors": 2,
        "throttled_share": 1.0,
    }


def test_a_moment_of_heat_is_no_more_than_its_part_of_the_sample(library: Path) -> None:
    """The GPU is hot in two of eight samples, the fourth and the eighth: a share of 0.25."""
    (sample,) = _ask(library, looks=8, NVML_STUB_COOL="1")
    assert sample["throttle_reasons"] == "power_cap,thermal"
    assert sample["throttled_share"] == 0.25


def test_unsupported_values_of_a_gpu_are_not_measured(library: Path) -> None:
    (sample,) = _ask(library, NVML_STUB_OLD="1")
    unknown = ("utilisation_share", "power_w", "power_limit_w", "clock_hz", "ecc_errors")
    assert {sample[name] for name in unknown} == {None}
    assert sample["throttle_reasons"] == ""
    assert sample["memory_bytes"] == 10 * 2**30


def test_a_gpu_that_shares_its_host_s_memory_is_sampled(library: Path) -> None:
    (sample,) = _ask(library, NVML_STUB_SHARED="1")
    assert (sample["utilisation_share"], sample["power_w"]) == (1.0, 43.0)
    assert (sample["memory_bytes"], sample["memory_limit_bytes"]) == (None, None)


def test_newer_gpus_tell_how_many_multiprocessors_were_busy(library: Path) -> None:
    (sample,) = _ask(library, NVML_STUB_HOPPER="1")
    assert (sample["utilisation_share"], sample["sm_activity_share"]) == (1.0, 0.0312)


def test_a_gpu_that_is_not_there_is_an_error_with_a_remedy(library: Path) -> None:
    assert _ask(library, uuid="GPU-ff") == {
        "error": "NVML says Not Found; look at the output of nvidia-smi"
    }


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has the library")
def test_a_machine_without_the_library_says_so() -> None:
    assert "look at the output of nvidia-smi" in _ask(None)["error"]
