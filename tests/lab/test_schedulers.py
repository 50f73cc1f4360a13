"""Machines that a scheduler starts: the same command on each, one folder that they share."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.conftest import OpenLab
from lab.laboratory import Lab, LabHost

PROGRAM = Path(sys.executable).with_name("dragoman")
STEPS = 12
SLURM = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")


def brief() -> list[str | Path]:
    """Settings with which the demo takes seconds."""
    settings = {
        "corpus.subword.vocab_size": 1000,
        "model.d_model": 48,
        "model.d_ffn": 96,
        "model.encoder_layers": 1,
        "model.decoder_layers": 1,
        "train.max_steps": STEPS,
        "train.log_every_steps": 4,
        "train.validate_every_steps": STEPS,
        "train.validate_at_start": "false",
        "checkpoint.every_steps": STEPS,
        "evaluate.bleu_pairs": 10,
    }
    return ["demo", *(w for key, value in settings.items() for w in ("--set", f"{key}={value}"))]


def assert_trained_by_two(runs: Path) -> None:
    """One run, both machines in its record, its last checkpoint there, nothing left behind."""
    (run,) = (path for path in runs.iterdir() if path.is_dir())
    assert [path.name for path in runs.iterdir()] == [run.name]
    assert (run / "checkpoints" / f"step-{STEPS:07}" / "model.safetensors").is_file()
    lines = (run / "events" / "log.jsonl").read_text().splitlines()
    (started,) = (one for one in map(json.loads, lines) if one["kind"] == "run_started")
    assert (started["hosts"], started["world_size"]) == (["alpha", "beta"], 2)


def test_the_same_command_on_every_machine_trains_one_run(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = make_lab(["alpha", "beta"])
    words: list[str | Path] = [
        "--at",
        "alpha:29400",
        "--runs",
        tmp_path / "runs",
        "--prepared",
        tmp_path / "text",
    ]
    token = {"DRAGOMAN_JOB_TOKEN": secrets.token_hex(16)}
    (tmp_path / "runs").mkdir()
    machines = []
    # The second one comes first, and waits.
    for number, host in reversed(list(enumerate(lab.hosts))):
        place = {"PET_NODE_RANK": str(number), "PET_NNODES": "2"}
        command = [PROGRAM, "join", *brief(), *words]
        machines.append(
            host.start(command, env=token | place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    said = [machine.communicate(timeout=200)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert_trained_by_two(tmp_path / "runs")
    alone = lab.hosts[0].run([PROGRAM, "join", *brief(), *words, "--node", "0"], check=False)
    assert alone.returncode == 2
    assert alone.stderr.startswith("dragoman: nodes: no scheduler sets it here")


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(tool, path="/usr/bin:/usr/sbin") is None for tool in SLURM),
    reason="no Slurm here (Debian: slurm-wlm)",
)
def test_a_generated_script_trains_on_a_real_slurm_cluster(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = make_lab(["alpha", "beta"])
    generate: list[str | Path] = [
        "jobs",
        "slurm",
        *brief(),
        "--nodes",
        "2",
        "--folder",
        tmp_path,
    ]
    script = tmp_path / "demo.sbatch"
    script.write_text(lab.controller.run([PROGRAM, *generate]).stdout)
    with slurm_cluster(lab, tmp_path / "slurm") as environment:
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        submit: list[str | Path] = ["sbatch", "--wait", f"--chdir={tmp_path}", script]
        alpha = lab.host("alpha")
        alpha.run(submit, env=environment | {"PATH": path}, timeout_s=240)
    (log,) = tmp_path.glob("demo-*.log")
    assert "run directory" in log.read_text()
    assert_trained_by_two(tmp_path / "runs")


@contextmanager
def slurm_cluster(lab: Lab, folder: Path) -> Iterator[dict[str, str]]:
    """Slurm's own daemons on the lab's hosts; yields what its programs need to know."""
    folder.mkdir()
    first = lab.hosts[0]
    nodes = "".join(
        f"NodeName={host.name} NodeAddr={host.address} CPUs=1 State=UNKNOWN\n" for host in lab.hosts
    )
    (folder / "slurm.conf").write_text(
        f"ClusterName=lab\nSlurmctldHost={first.name}({first.address})\nSlurmUser=root\n"
        "AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/linuxproc\n"
        "TaskPlugin=task/none\nMpiDefault=none\nSelectType=select/linear\nReturnToService=2\n"
        f"StateSaveLocation={folder}\nSlurmdSpoolDir={folder}/spool-%n\n"
        f"SlurmctldPidFile={folder}/controller.pid\nSlurmdPidFile={folder}/%n.pid\n"
        f"{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # looks for no mount
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    with ExitStack() as stack:
        _daemon(stack, first, ["slurmctld", "-D"], environment, folder / "controller.log")
        for host in lab.hosts:
            command = ["slurmd", "-D", "-N", host.name]
            _daemon(stack, host, command, environment, folder / f"{host.name}.log")
        deadline = time.monotonic() + 60
        while "idle 2" not in _states(first, environment):
            assert time.monotonic() < deadline, _states(first, environment)
            time.sleep(0.5)
        yield environment


def _states(host: LabHost, environment: dict[str, str]) -> str:
    """How many machines are in which state."""
    command = ["sinfo", "--noheader", "--format=%t %D"]
    return host.run(command, env=environment, check=False).stdout


def _daemon(
    stack: ExitStack, host: LabHost, command: list[str], environment: dict[str, str], log: Path
) -> None:
    daemon = host.start(command, env=environment, stdout=stack.enter_context(log.open("w")))
    stack.callback(daemon.wait, 20)
    stack.callback(daemon.terminate)
