"""Files for schedulers, which start `dragoman join` on every machine.

Slurm gets a script for sbatch; Kubernetes a TrainJob of Kubeflow Trainer (v1alpha1) with its
runtime torch-distributed; SkyPilot a task, for which it rents machines and gives them back.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from dragoman.base.errors import ConfigError

_PORT: Final = 29_400
"""The port at which the machines of SkyPilot meet, on the first one's private address."""
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_HOURS: Final = 24 * 365
_GPUS: Final = 64
_SAVE_S: Final = 180
"""Seconds before the end of its time at which a job is asked to save."""
_CORES_PER_GPU: Final = 4
"""Cores for a rank's Python, the threads of Gloo and the batch loader. Many clusters give a task
that requests nothing one core, with the memory of one."""
_LONGEST_POD_NAME: Final = 63
_PYTHON: Final = "3.12"
"""The machine's own Python may be older than dragoman requires; SkyPilot installs uv, and a Python
of uv has the headers that torch.compile needs."""
_GPU: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A training for a scheduler. Raises ConfigError if a value cannot be used.

    name: the scheduler's name for it: a DNS label, as Kubernetes requires.
    recipe: a shipped recipe, or a TOML file by its path on the machines.
    folder: shared by all machines, for runs and prepared text.
    gpus: the number of GPUs in each machine; with 0 the ranks compute on its processor.
    gpu: their kind, in SkyPilot's words, such as V100.
    ranks: the number of ranks on each machine.
    hours: the time limit, at which the scheduler may end the job; it can be resumed.
    image: the container image, for Kubernetes.
    """

    name: str
    recipe: str
    folder: PurePosixPath
    nodes: int
    gpus: int
    ranks: int
    hours: int
    gpu: str = "V100"
    image: str = ""
    overrides: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} cannot be a job's name",
                place="name",
                remedy="use up to 63 lower-case letters, digits and hyphens, a letter first",
            )
        if not self.folder.is_absolute():
            raise ConfigError(
                f"{self.folder} is not absolute",
                place="folder",
                remedy="name the shared folder as all machines see it",
            )
        # A line break would end a comment of a script, or a block of YAML.
        for word in (str(self.folder), self.recipe, *self.overrides):
            if not word.isprintable():
                raise ConfigError(
                    f"{word!r} does not fit on one line",
                    place="jobs",
                    remedy="write it without line breaks",
                )
        if not 0 <= self.gpus <= _GPUS:
            raise ConfigError(
                f"{self.gpus} GPUs a machine are not supported",
                place="gpus",
                remedy=f"give 0 to {_GPUS}",
            )
        if self.hours > _HOURS:
            raise ConfigError(
                f"{self.hours} hours cannot be used", place="hours", remedy="give at most a year"
            )

    def command(self, *, at: str) -> list[str]:
        """`dragoman join` as an argument list; at: ADDRESS:PORT in the scheduler's own words."""
        overrides = [word for override in self.overrides for word in ("--set", override)]
        return [
            *("dragoman", "join", "--at", at, self.recipe, "--ranks", str(self.ranks)),
            *("--runs", str(self.folder / "runs")),  # shards lie beside them, by their digest
            *overrides,
        ]

    def shell_command(self, *, at: str) -> str:
        """`command` as a line for bash, which takes it literally but fills in the variables of
        `at`."""
        before, after = self.command(at=at)[:3], self.command(at=at)[4:]
        return f'{shlex.join(before)} "{at}" {shlex.join(after)}'


def slurm(job: ScheduledJob) -> str:
    """The script; submitted again, it resumes the run."""
    cores = job.gpus * _CORES_PER_GPU
    machine, told_again = "#SBATCH --exclusive", ""
    if job.gpus:
        machine = f"#SBATCH --gpus-per-node={job.gpus}\n#SBATCH --cpus-per-task={cores}"
        # srun of Slurm 22.05 and later does not inherit this from sbatch.
        told_again = f"export SRUN_CPUS_PER_TASK={cores}\n"
    command = job.shell_command(at="$first:$port")
    return f"""\
#!/bin/bash
# Submit with: sbatch {job.name}.sbatch
# {job.folder} must be a folder that all machines share.
#SBATCH --job-name={job.name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
{machine}
#SBATCH --time={job.hours}:00:00
#SBATCH --signal=TERM@{_SAVE_S}
#SBATCH --output={job.name}-%j.log
set -euo pipefail

# Keeps the processes of this job apart from all others.
DRAGOMAN_JOB_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export DRAGOMAN_JOB_TOKEN

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
{told_again}srun --kill-on-bad-exit=1 {command}
"""


def kubernetes(job: ScheduledJob) -> str:
    """The manifest of a TrainJob.

    Raises ConfigError without an image, if the recipe is a file that no pod has, or if the names of
    its pods would be too long: JobSet rejects such pods, and the TrainJob would never begin.
    """
    if not job.image:
        raise ConfigError(
            "pods need an image",
            place="image",
            remedy="build docker/Dockerfile, push it and name it",
        )
    file = PurePosixPath(job.recipe)
    if file.suffix == ".toml" and not (".." not in file.parts and file.is_relative_to(job.folder)):
        raise ConfigError(
            f"is no file that a pod has: of this machine's folders it has {job.folder} alone",
            place=job.recipe,
            remedy=f"copy the recipe and its text there, and name {job.folder}/{file.name}",
        )
    added = len(f"-node-0-{job.nodes - 1}-abcde")
    if len(job.name) + added > _LONGEST_POD_NAME:
        raise ConfigError(
            f"{job.name!r} is too long: the names of its pods add {added} characters to it",
            place="name",
            remedy=f"use up to {_LONGEST_POD_NAME - added} characters",
        )
    # Kubernetes replaces $(...) and reads $$ as a dollar.
    words = [word.replace("$", "$$") for word in job.command(at="")]
    words[3] = "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
    command = _quoted(words)
    name = _quoted(job.name)  # YAML would read the name `no` or `on` as a boolean
    gpus = f"\n      limits: {{nvidia.com/gpu: {job.gpus}}}" if job.gpus else " {}"
    return f"""\
# For Kubeflow Trainer 2.3 or newer.
# Once:     kubectl create secret generic {job.name} --from-literal=token="$(openssl rand -hex 16)"
#           and a claim named {job.name} to a volume that all pods share (ReadWriteMany).
# Start:    kubectl apply -f {job.name}.yaml
# Again:    kubectl delete -f {job.name}.yaml, then start it: it goes on where it was.
# Watch:    kubectl logs -f -l batch.kubernetes.io/job-completion-index=0,\
jobset.sigs.k8s.io/jobset-name={job.name}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {name}
spec:
  runtimeRef: {{name: torch-distributed}}
  activeDeadlineSeconds: {job.hours * 3600}
  trainer:
    image: {_quoted(job.image)}
    numNodes: {job.nodes}
    numProcPerNode: {job.ranks}
    command: {command}
    env:
      - name: DRAGOMAN_JOB_TOKEN
        valueFrom: {{secretKeyRef: {{name: {name}, key: token}}}}
    resourcesPerNode:{gpus}
  runtimePatches:
    - manager: dragoman.io/jobs
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        # As in the image: no process runs as root, and the user owns the files in
                        # the volume.
                        securityContext: {{runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000}}
                        # Workers save when the pod is asked to end.
                        terminationGracePeriodSeconds: 180
                        volumes:
                          - name: shared
                            persistentVolumeClaim: {{claimName: {name}}}
                          - name: shm
                            emptyDir: {{medium: Memory, sizeLimit: 2Gi}}
                        containers:
                          - name: node
                            volumeMounts:
                              - {{name: shared, mountPath: {_quoted(str(job.folder))}}}
                              - {{name: shm, mountPath: /dev/shm}}
"""


def skypilot(job: ScheduledJob) -> str:
    """The task. Raises ConfigError if the kind of GPU cannot be the name of one."""
    if not _GPU.fullmatch(job.gpu):
        raise ConfigError(
            f"{job.gpu!r} is not a kind of GPU",
            place="gpu",
            remedy="write for example V100 or A100-80GB",
        )
    command = job.shell_command(at=f"$first:{_PORT}")
    gpus = _quoted(f"{job.gpu}:{job.gpus}")
    machine = f"accelerators: {gpus}" if job.gpus else "cpus: 8+"
    name = _quoted(job.name)  # YAML would read the name `no` or `on` as a boolean
    return f"""\
# Launch it from a checkout of dragoman, which is copied to the machines and installed there.
# The volume {job.name} must be one that all machines can mount: sky volumes apply ...
# Start: export DRAGOMAN_JOB_TOKEN="$(openssl rand -hex 16)"
#        sky launch -c {job.name} --secret DRAGOMAN_JOB_TOKEN {job.name}.yaml
# End:   sky down {job.name}
name: {name}
workdir: .
num_nodes: {job.nodes}
resources:
  {machine}
  # Do not pay for idle machines.
  autostop: {{idle_minutes: 10, down: true}}
volumes:
  {_quoted(str(job.folder))}: {name}
secrets:
  DRAGOMAN_JOB_TOKEN: null
setup: |
  uv="$HOME/.local/bin/uv"
  "$uv" venv --allow-existing --python {_PYTHON} --python-preference only-managed "$HOME/dragoman"
  "$uv" pip install --python "$HOME/dragoman" -c constraints.txt '.[gpu]'
run: |
  export PATH="$HOME/dragoman/bin:$PATH"
  first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  timeout --signal=TERM {job.hours}h {command}
"""


SCHEDULERS: Final[dict[str, Callable[[ScheduledJob], str]]] = {
    "slurm": slurm,
    "kubernetes": kubernetes,
    "skypilot": skypilot,
}
"""The file of each scheduler."""


def _quoted(value: str | Sequence[str]) -> str:
    """A string or list for YAML, which reads JSON except for escaped surrogate pairs (emoji)."""
    return json.dumps(value, ensure_ascii=False)
