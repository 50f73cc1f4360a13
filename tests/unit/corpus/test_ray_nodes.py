"""Clusters that cannot be joined, and what a node refuses before it does a task."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

import dragoman
from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.corpus import ray_nodes
from dragoman.corpus.prepare import prepare
from dragoman.corpus.ray_nodes import TEXT_PACKAGES, Nodes, do_task, join_ray
from dragoman.corpus.workers import parallel_map
from parallel_text import sentences, small_corpus, write_pairs
from ray_stand_in import put_ray
from small_run import small_run
from worker_tasks import forbid, refuse, square

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: pip install 'dragoman[ray]'",
)


@pytest.mark.parametrize(
    "address", ["", "alpha", "alpha:", "http://alpha:6379", "a b:1", "ray://x:1"]
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT of its head"), join_ray(address):
        pass


@needs_ray
def test_an_address_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = tmp_path / "text"
    text.write_text("a line\n", encoding="utf-8")
    with pytest.raises(MachineError, match=f"^ray 127.0.0.1:{port}: does not answer: Connection"):
        dragoman.synthesize(small_run(), text, tmp_path / "out", ray=f"127.0.0.1:{port}")
    assert not (tmp_path / "out").exists()
    with pytest.raises(MachineError, match="does not answer"), join_ray("127.0.0.1:99999"):
        pass


@needs_ray
def test_what_ray_prints_while_it_ends_is_not_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr(ray_nodes, "_check_joins", lambda _: None)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: print("(raylet) a node is dead"))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        join_ray(f"127.0.0.1:{server.getsockname()[1]}"),
    ):
        pass
    assert capsys.readouterr() == ("", "(raylet) a node is dead\n")


def test_prepare_without_ray_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MachineError, match=r"Ray is not installed; .*'dragoman\[ray\]'"):
        dragoman.prepare("demo", prepared=tmp_path / "out", ray="auto")
    with pytest.raises(ConfigError, match="workers: has no effect"):
        dragoman.prepare("demo", prepared=tmp_path / "out", ray="auto", workers=2)
    assert not (tmp_path / "out").exists()


def test_a_node_with_another_version_refuses_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    put_ray(monkeypatch)
    with pytest.raises(MachineError, match=r"^node [\d.]+: has dragoman .*, not 9\.9; install"):
        do_task([object()], {"dragoman": "9.9"}, None, 1)
    with pytest.raises(MachineError, match="has no package-of-tomorrow; install there: pip"):
        do_task([object()], {"package-of-tomorrow": "1.0"}, None, 1)


def test_a_node_that_sees_another_folder_refuses_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ray(monkeypatch)
    plan = tmp_path / "plan"
    for content in (None, "other work"):
        if content is not None:
            plan.write_text(content, encoding="utf-8")
        with pytest.raises(MachineError, match="is not the folder that the command sees; let all"):
            do_task([object()], {}, (str(plan), b"this work"), 1)


def test_a_task_is_read_once_and_its_errors_about_text_do_not_name_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_ray(monkeypatch)
    get = Mock(return_value=refuse)
    monkeypatch.setattr("ray.get", get)
    sent = [object()]
    assert [do_task(sent, {}, None, number) for number in range(3)] == [0, 1, 2]
    with pytest.raises(CorpusError, match="here: is wrong"):
        do_task(sent, {}, None, 3)
    get.assert_called_once_with(sent[0])


def test_nodes_prepare_what_processes_prepare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ray(monkeypatch)
    monkeypatch.setattr("dragoman.corpus.prepare.LEAST_PAIRS", 100)
    monkeypatch.setattr("dragoman.corpus.prepare.MOST_RUNS", 2)
    config = small_corpus(
        tmp_path,
        train=tuple(write_pairs(tmp_path, f"{n}", sentences(300, seed=n)) for n in range(3)),
        filters={"min_lexical_gain": -2.0},
        context={"sentences": 3},
    )
    alone = prepare(config, tmp_path / "alone", workers=1)
    monkeypatch.chdir(tmp_path)
    nodes = Nodes(TEXT_PACKAGES)
    assert prepare(config, Path("together"), workers=nodes).digest == alone.digest


def test_results_of_nodes_come_in_order_and_errors_name_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_ray(monkeypatch)
    nodes = Nodes(())
    assert list(parallel_map(square, range(40), workers=nodes)) == [n * n for n in range(40)]
    with pytest.raises(CorpusError, match="here: is wrong; mend it"):
        list(parallel_map(refuse, range(10), workers=nodes))
    with pytest.raises(MachineError, match=r"^node 10\.0\.0\.9, .*: permission denied"):
        list(parallel_map(forbid, range(10), workers=nodes))
    put_ray(monkeypatch, cores=0.0)
    with pytest.raises(MachineError, match="no node of the cluster has 2 cores"):
        list(parallel_map(square, range(10), workers=Nodes((), cores=2)))
