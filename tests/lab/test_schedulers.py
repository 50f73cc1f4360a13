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
from lab.controller import set_up_controller
from lab.laboratory import Lab, LabHost

PROGRAM = Path(sys.executable).with_name("dragoman")
STEPS = 12
SLURM = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
THREADS = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
"""As many as a rank has that ssh has started: with another number, sums are rounded differently."""
HAS_SLURM = all(shutil.which(tool, path="/usr/bin:/usr/sbin") for tool in SLURM)


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


def joining(recipe: list[str | Path], folder: Path) -> list[str | Path]:
    """The command that a scheduler starts on every machine."""
    places: list[str | Path] = ["--runs", folder / "runs", "--prepared", folder / "text"]
    return [PROGRAM, "join", *recipe, "--at", "alpha:29400", *places]


def join_on(lab: Lab, command: list[str | Path]) -> None:
    """Train on all hosts of a lab. The first one comes last, and the others wait."""
    token = {"DRAGOMAN_JOB_TOKEN": secrets.token_hex(16)}
    machines = []
    for number, host in reversed(list(enumerate(lab.hosts))):
        place = {"PET_NODE_RANK": str(number), "PET_NNODES": str(len(lab.hosts))}
        machines.append(
            host.start(
                command,
                env=token | place | THREADS,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    said = [machine.communicate(timeout=200)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0] * len(machines), said


def weights(runs: Path) -> bytes:
    """The weights of the last checkpoint of the only run."""
    *_, last = sorted(runs.glob("*/checkpoints/step-*"))
    return (last / "model.safetensors").read_bytes()


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
    (tmp_path / "runs").mkdir()
    command = joining(brief(), tmp_path)
    join_on(lab, command)
    assert_trained_by_two(tmp_path / "runs")
    alone = lab.hosts[0].run([*command, "--node", "0"], check=False)
    assert alone.returncode == 2
    assert alone.stderr.startswith("dragoman: nodes: no scheduler sets it here")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_recipe_gives_equal_weights_by_ssh_by_hand_and_by_a_scheduler(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = make_lab(["alpha", "beta"])
    controller = set_up_controller(lab, slots=[1, 1])
    recipe: list[str | Path] = [controller.folder / "small.toml"]
    by_ssh = controller.run("train", "small.toml", "--hosts", "hosts.toml")
    assert by_ssh.returncode == 0, by_ssh.stderr
    by_hand = tmp_path / "by-hand"
    (by_hand / "runs").mkdir(parents=True)
    join_on(lab, joining(recipe, by_hand))
    expected = weights(controller.folder / "runs")
    assert weights(by_hand / "runs") == expected
    if not HAS_SLURM:
        pytest.skip("by ssh and by hand they are equal; no Slurm here (Debian: slurm-wlm)")
    by_slurm = tmp_path / "by-slurm"
    by_slurm.mkdir()
    submit(lab, recipe, by_slurm)
    assert weights(by_slurm / "runs") == expected


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SLURM, reason="no Slurm here (Debian: slurm-wlm)")
def test_a_generated_script_trains_on_a_real_slurm_cluster(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    submit(make_lab(["alpha", "beta"]), brief(), tmp_path)
    (log,) = tmp_path.glob("demo-*.log")
    assert "run directory" in log.read_text()
    assert_trained_by_two(tmp_path / "runs")


def submit(lab: Lab, recipe: list[str | Path], folder: Path) -> None:
    """Train on two machines by the script that `dragoman jobs slurm` writes."""
    places: list[str | Path] = ["--nodes", "2", "--folder", folder]
    script = folder / "train.sbatch"
    script.write_text(lab.controller.run([PROGRAM, "jobs", "slurm", *recipe, *places]).stdout)
    with slurm_cluster(lab, folder / "slurm") as environment:
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        command: list[str | Path] = ["sbatch", "--wait", f"--chdir={folder}", script]
        lab.hosts[0].run(command, env=environment | THREADS | {"PATH": path}, timeout_s=240)


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
