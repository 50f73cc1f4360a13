"""The controller's end of hosts; other programs run there, and a program stands for ssh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.cluster.hosts import Host
from dragoman.cluster.joins import Joins, Message
from dragoman.cluster.ssh import BEGIN
from processes import wait_until

HOSTS = (Host(address="10.0.0.1", name="alpha", slots=1), Host(address="b", name="beta", slots=1))


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder; what lies there under a host's address is run in place of `join_host`."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n'
        f'echo "Welcome to $2!"; printf "You have mail. "; echo {BEGIN}\nexec sh {tmp_path}/"$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_a_host_that_ends_after_its_answer_is_missed_while_others_are_waited_for(
    answers: Path,
) -> None:
    ready = '{"closed": ["10.0.0.3:7"]}'
    (answers / "10.0.0.1").write_text(f"echo '{ready}'; echo bad luck >&2; exit 3\n")
    (answers / "b").write_text("cat > /dev/null\n")  # says nothing that is asked for
    with Joins(HOSTS, code="0" * 64) as joins:
        with pytest.raises(MachineError) as caught:
            joins.each(lambda answer: answer.closed, timeout_s=60)
        assert caught.value.place == "alpha"
        assert "bad luck" in str(caught.value)


def test_the_greeting_of_a_login_shell_is_skipped(answers: Path) -> None:
    ready = '{"closed": ["10.0.0.3:7"]}'
    (answers / "b").write_text(f"echo '{ready}'; cat > /dev/null\n")
    with Joins(HOSTS[1:], code="0" * 64) as joins:
        closed = joins.each(lambda answer: answer.closed, timeout_s=60)
        assert closed == {"beta": ("10.0.0.3:7",)}


def test_hosts_hear_that_we_are_there_while_nobody_listens_to_them(answers: Path) -> None:
    """They end what they do when they hear nothing for half a minute."""
    (answers / "b").write_text(f"cat > {answers}/heard\n")
    with Joins(HOSTS[1:], code="0" * 64):
        wait_until(lambda: (answers / "heard").exists(), limit_s=20)
        wait_until(lambda: (answers / "heard").read_text().count("\n") >= 2, limit_s=20)


@pytest.mark.parametrize(
    "said", ["Welcome to beta!", '{"finished": true}', '{"facts": {"host": "beta"}}']
)
def test_a_host_that_talks_nonsense_is_gone(answers: Path, said: str) -> None:
    (answers / "b").write_text(f"echo '{said}'; cat > /dev/null\n")
    with Joins(HOSTS[1:], code="0" * 64) as joins:
        message = joins.next(30)
        assert message == Message("beta", None)
        assert "its answer is not understood" in str(joins.of["beta"].failure())
