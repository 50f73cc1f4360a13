"""A script for sbatch: one task a machine, ended softly before its time is over."""

from __future__ import annotations

from typing import Final

from dragoman.cluster.launchers.job import ScheduledJob

_SAVE_S: Final = 180
"""Seconds before the end of its time at which a job is asked to save."""
_CORES_PER_GPU: Final = 4
"""Cores for a rank's Python, the threads of Gloo and the batch loader. Many clusters give a task
that requests nothing one core, with the memory of one."""


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
