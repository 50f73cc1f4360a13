"""The facts about GPUs, compared with those of PyTorch."""

from __future__ import annotations

import json

import pytest
import torch

from dragoman.distributed import devices


def test_a_host_counts_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    devices.main()
    visible = torch.cuda.device_count()
    found = json.loads(capsys.readouterr().out)
    assert found == {"visible": visible, "usable": visible, "nccl": devices.nccl_version()}
    assert (found["nccl"] is not None) is torch.distributed.is_nccl_available()


def test_a_device_that_computes_right_is_usable_and_one_that_keeps_no_numbers_is_not() -> None:
    assert devices.is_usable(torch.device("cpu"))
    assert not devices.is_usable(torch.device("meta"))
