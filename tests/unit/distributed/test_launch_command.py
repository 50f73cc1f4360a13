"""The command and the environment of torchrun, read by torchrun's own parser."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from dragoman.base import errors
from dragoman.distributed.launch import (
    InterruptedRunError,
    Share,
    WorkerError,
    as_raised,
    torchrun_command,
    workers_environment,
)
from dragoman.distributed.rendezvous import StoreAddress

STORE = StoreAddress("10.0.0.1", 29_500, "0123456789abcdef")
SHARE = Share(number=2, num_hosts=3, interface="eth1", store=STORE, price_per_hour="6.12 USD")
MEETING = Path("/tmp/meeting")  # it is only named
WORKER = ("dragoman.run.worker", "runs/demo")


def test_torchrun_gets_the_values_of_one_machine() -> None:
    command = torchrun_command(WORKER, ranks=2, meeting=MEETING)
    assert command[:3] == [sys.executable, "-m", "dragoman.distributed.launch"]
    read = get_args_parser().parse_args(command[3:])
    assert (read.nnodes, read.nproc_per_node, read.max_restarts) == ("1", "2", 0)
    assert (read.rdzv_backend, read.rdzv_conf) == ("c10d", "store_type=file")
    assert read.rdzv_endpoint == str(MEETING / "agents")
    assert read.local_addr == "127.0.0.1"
    assert (read.module, read.training_script) == (True, WORKER[0])
    assert read.training_script_args == [*WORKER[1:]]


def test_torchrun_gets_its_share_of_several_machines() -> None:
    command = torchrun_command(WORKER, ranks=4, meeting=MEETING, share=SHARE)
    read = get_args_parser().parse_args(command[3:])
    assert (read.nnodes, read.nproc_per_node) == ("3", "4")
    assert read.rdzv_endpoint == "10.0.0.1:29500"
    assert read.rdzv_conf.startswith("is_host=false,join_timeout=300,last_call_timeout=3,")
    assert (read.rdzv_backend, read.max_restarts) == ("dragoman", 0)
    assert read.local_addr == "host-0002", "ranks follow the order of these names"
    assert not any(STORE.token in word for word in command)


def test_torchrun_starts_workers_again_among_the_hosts_that_are_left() -> None:
    share = replace(SHARE, fewest=2)
    command = torchrun_command(WORKER, ranks=4, meeting=MEETING, share=share)
    read = get_args_parser().parse_args(command[3:])
    assert (read.nnodes, read.max_restarts > 1000) == ("2:3", True)


def test_workers_get_the_meeting_place_and_the_network_interface() -> None:
    alone = workers_environment(2, MEETING)
    assert alone["DRAGOMAN_RENDEZVOUS"] == str(MEETING / "workers")
    assert alone["DRAGOMAN_PARENT"] == str(os.getpid())
    assert alone["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    shared = workers_environment(2, MEETING, SHARE)
    added = {name: shared[name] for name in shared.keys() - alone.keys()}
    assert added == {
        "DRAGOMAN_STORE": str(STORE),
        "DRAGOMAN_PRICE_PER_HOUR": "6.12 USD",
        "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_IFNAME": "=eth1",  # NCCL's form for this name alone, not for a prefix
        "PET_RDZV_ID": STORE.token,
    }


@pytest.mark.parametrize(
    "kind",
    [
        *(errors.CheckpointError, errors.ConfigError, errors.CorpusError, errors.DivergenceError),
        *(errors.MachineError, errors.TrainingError, InterruptedRunError),
    ],
)
def test_a_worker_s_error_has_its_own_class_again(kind: type[errors.DragomanError]) -> None:
    error = as_raised(WorkerError("x.toml: is wrong; mend it", 2, kind.__name__))
    assert type(error) is kind
    assert str(error) == "x.toml: is wrong; mend it"
    unknown = WorkerError("it broke", 70, "KeyError")
    assert as_raised(unknown) is unknown


def test_a_process_whose_parent_is_gone_ends_at_once() -> None:
    program = "from dragoman.distributed.launch import end_with_parent as end; end(); print('on')"
    found = {}
    for name, parent in (("gone", "1"), ("there", str(os.getpid()))):
        found[name] = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"DRAGOMAN_PARENT": parent},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (found["gone"].returncode, found["gone"].stdout) == (1, "")
    assert found["gone"].stderr == "dragoman: the process that started this one is gone\n"
    assert (found["there"].returncode, found["there"].stdout) == (0, "on\n")
