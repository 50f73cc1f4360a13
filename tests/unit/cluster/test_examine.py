"""Doctor's questions to hosts: the agent is the real one, a program stands for ssh."""

from __future__ import annotations

import os
import venv
from pathlib import Path

import pytest

from dragoman.cluster.checks import Wanted, examine
from dragoman.cluster.examine import examine_hosts
from dragoman.cluster.hosts import Host, Hosts

SSH = """\
#!/bin/sh
for word; do host=$command; command=$word; done
mkdir -p {homes}/$host && cd {homes}/$host && exec sh -c "$command"
"""


def test_hosts_whose_python_lacks_packages_are_named_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a setup that was broken off leaves them: each has its line, none keeps doctor from it."""
    programs, bare = tmp_path / "bin", tmp_path / "bare"
    programs.mkdir()
    (programs / "ssh").write_text(SSH.format(homes=tmp_path))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    named = {"alpha": "10.0.0.1", "beta": "10.0.0.2"}
    hosts = Hosts(
        host=tuple(
            Host(name=name, address=address, slots=1, python=python)
            for name, address in named.items()
        )
    )
    facts = examine_hosts(hosts).facts
    assert set(facts.unreachable) == set(named)
    found = [one for one in examine(facts, Wanted(hosts, 0)) if one.status == "failure"]
    assert sorted((one.check, one.host) for one in found) == [
        ("versions", "alpha"),
        ("versions", "beta"),
    ]
    assert all("dragoman setup" in one.remedy for one in found)
