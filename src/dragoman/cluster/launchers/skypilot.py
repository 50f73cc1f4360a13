"""A SkyPilot task: the machines are rented, used and given back."""

from __future__ import annotations

import re
from typing import Final

from dragoman.base.errors import ConfigError
from dragoman.cluster.launchers.job import PORT, ScheduledJob, quoted

_PYTHON: Final = "3.12"
"""The machine's own Python may be older than dragoman requires; SkyPilot installs uv, and a Python
of uv has the headers that torch.compile needs."""
_ACCELERATOR: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def skypilot(job: ScheduledJob, *, accelerator: str) -> str:
    """The task; accelerator: SkyPilot's name of the GPU, such as V100.

    Raises ConfigError if the text cannot be the name of a GPU.
    """
    if not _ACCELERATOR.fullmatch(accelerator):
        raise ConfigError(
            f"{accelerator!r} is no kind of GPU", place="--gpu", remedy="such as V100 or A100-80GB"
        )
    command = job.shell_command(at=f"$first:{PORT}")
    gpus = quoted(f"{accelerator}:{job.gpus}")
    machine = f"accelerators: {gpus}" if job.gpus else "cpus: 8+"
    name = quoted(job.name)  # YAML would read the name `no` or `on` as a boolean
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
  {quoted(str(job.folder))}: {name}
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
