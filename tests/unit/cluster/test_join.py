"""Where machines that a scheduler started meet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

from dragoman.base.errors import ConfigError, MachineError
from dragoman.cli import main
from dragoman.cluster.join import TOKEN_VARIABLE, Node, rendezvous
from dragoman.corpus.workplace import locked_directory
from dragoman.recipe.recipe import load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run.run import default_place
from parallel_text import sentences, write_pairs
from tiny_recipe import TINY


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_machines_do_not_wait_for_each_other_on_loopback(node: int, address: str) -> None:
    """The address of a machine's own name in /etc/hosts is often no address of the network."""
    place = Node(node, 2, address, 29_400, "0123456789abcdef")
    with (
        pytest.raises(MachineError, match="no other machine can reach"),
        rendezvous(place, wait_s=0.1),
    ):
        pass


def test_a_machine_that_is_alone_may_meet_itself_there() -> None:
    with rendezvous(Node(0, 1, "127.0.0.1", 0, "0123456789abcdef"), wait_s=0.1) as share:
        assert share.num_hosts == 1


def test_jobs_of_one_corpus_wait_for_whoever_prepares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path, "train", sentences(60))
    (tmp_path / "my.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TOKEN_VARIABLE, "0123456789abcdef")
    shards = tmp_path / default_place(load_recipe("my.toml"))
    place = ["--at", "127.0.0.1:29400", "--node", "0", "--nodes", "2", "--workers", "1"]
    with ExitStack() as another_job:
        another_job.enter_context(locked_directory(shards))
        Timer(1.5, another_job.close).start()
        assert main(["join", "my.toml", *place]) == 1  # loopback: they never meet
    (run,) = (tmp_path / "runs").iterdir()
    assert RunDirectory.open(run).prepared() == shards


def test_the_text_is_prepared_where_all_machines_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`join` as the how-to has it names a shared folder for the runs, and may begin in a home."""
    home, shared = tmp_path / "home", tmp_path / "shared"
    home.mkdir()
    write_pairs(home, "train", sentences(60))
    (home / "my.toml").write_text(TINY)
    monkeypatch.chdir(home)
    monkeypatch.setenv(TOKEN_VARIABLE, "0123456789abcdef")
    place = ["--at", "127.0.0.1:29400", "--node", "0", "--nodes", "2"]
    # The machines of this address never meet; what they need has been made by then.
    assert main(["join", "my.toml", *place, "--runs", str(shared / "runs"), "--workers", "1"]) == 1
    (run,) = (shared / "runs").iterdir()
    assert RunDirectory.open(run).prepared().parent == shared / "prepared"


def test_a_variable_that_is_no_number_counts_as_not_set() -> None:
    known = {"DRAGOMAN_JOB_TOKEN": "0123456789abcdef", "SLURM_NODEID": "²", "PET_NODE_RANK": "1"}
    assert Node.read("10.0.0.1:29400", node=None, nodes=2, environment=known).number == 1


def test_the_token_of_a_run_is_not_that_of_the_server() -> None:
    token = "0123456789abcdef"
    with pytest.raises(ConfigError, match=r"^DRAGOMAN_JOB_TOKEN: it must hold 16 or more"):
        Node.read("10.0.0.1:29400", node=0, nodes=2, environment={"DRAGOMAN_TOKEN": token})
    known = {"DRAGOMAN_JOB_TOKEN": token}
    assert Node.read("10.0.0.1:29400", node=0, nodes=2, environment=known).token == token
