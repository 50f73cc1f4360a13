"""`dragoman watch --hosts`: a run whose ranks are on two hosts, read over real ssh."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.conftest import OpenLab
from lab.controller import PROGRAM
from recorded_runs import Recorded


def test_the_log_of_the_host_of_rank_0_is_shown(make_lab: OpenLab, tmp_path: Path) -> None:
    lab = make_lab(["alpha", "beta"])
    recorded = Recorded(steps=2000, reason=None).write(tmp_path / "recorded")
    events = lab.hosts[0].home / ".dragoman" / "runs" / "demo-1" / "events"
    events.mkdir(parents=True)
    shutil.copy(recorded / "events" / "log.jsonl", events)
    lab.write_hosts_file(lab.controller.home / "hosts.toml", slots=[1, 1])
    command: list[str | Path] = [PROGRAM, "watch", "demo-1", "--hosts", "hosts.toml", "--once"]
    done = lab.controller.run(command, check=False, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "2,000 of 8,000 steps" in done.stdout
    lab.hosts[1].plug(plugged=False)
    done = lab.controller.run(command, check=False, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "2,000 of 8,000 steps" in done.stdout
    assert "beta: ssh cannot log in" in done.stdout
    done = lab.controller.run([*command[:2], "--hosts", "hosts.toml"], check=False, timeout_s=300)
    assert done.returncode != 0
    assert "needs a run" in done.stderr
