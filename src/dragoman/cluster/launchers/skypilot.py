"""A SkyPilot task: the machines are rented, used and given back."""

from __future__ import annotations

import json
import shlex

from dragoman.cluster.launchers.job import PORT, ScheduledJob


def skypilot(job: ScheduledJob, *, accelerator: str) -> str:
    """The task; accelerator: SkyPilot's name of the GPU, such as V100."""
    command = shlex.join(job.command(at="AT")).replace(" --at AT ", f' --at "$first:{PORT}" ')
    machine = f"accelerators: {accelerator}:{job.gpus}" if job.gpus else "cpus: 8+"
    return f"""\
# Launch it from a checkout of dragoman, which is copied to the machines and installed there.
# The volume {job.name} must be one that all machines can mount: sky volumes apply ...
# Start: sky launch -c {job.name} --secret DRAGOMAN_TOKEN="$(openssl rand -hex 16)" {job.name}.yaml
# End:   sky down {job.name}
name: {job.name}
workdir: .
num_nodes: {job.nodes}
resources:
  {machine}
  # Nobody pays for machines that have nothing to do any more.
  autostop: {{idle_minutes: 10, down: true}}
volumes:
  {json.dumps(str(job.folder))}: {job.name}
secrets:
  DRAGOMAN_TOKEN: null
setup: |
  pip install -c constraints.txt '.[gpu]'
run: |
  first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  timeout --signal=TERM {job.hours}h {command}
"""
