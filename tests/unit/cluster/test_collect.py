"""Doctor's questions to hosts: what runs there is real, a program stands for ssh."""

from __future__ import annotations

import sys
import venv
from pathlib import Path
from typing import Any

import pytest

import dragoman.cluster.collect
from dragoman.cluster.checks import Finding, RunNeeds, examine
from dragoman.cluster.collect import (
    ask,
    bring_code,
    collect_facts,
    marked,
    recall,
    remember,
)
from dragoman.cluster.facts import ClusterFacts, HostFacts
from dragoman.cluster.hosts import Host, Hosts, recorded_hosts
from dragoman.cluster.joins import Joins
from dragoman.cluster.training import NotFitError, train_on_hosts
from dragoman.recipe.run_directory import RunDirectory
from hosts_here import put_ssh
from tiny_recipe import TINY


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ssh(tmp_path, monkeypatch)


def compare_files(hosts: Hosts, *, code: str, run: str, mark: str = "") -> ClusterFacts:
    with Joins(hosts.host, code=code) as joins:
        return ClusterFacts(hosts=tuple(ask(joins, hosts, run=run, mark=mark)))


def test_one_host_needs_no_interface_to_others() -> None:
    """It may be all that is left of several, for which hosts.toml names no interface."""
    host = Host(name="alpha", address="10.0.0.1", slots=1, python=sys.executable)
    hosts = Hosts(host=(host,))
    code, troubles = bring_code(hosts.host)
    assert troubles == {}
    facts = compare_files(hosts, code=code, run="runs/demo")
    (card,) = (one.interface for one in facts.hosts)
    assert card is not None
    assert card.address == "127.0.0.1"
    assert [one for one in examine(facts, RunNeeds(hosts, 0)) if one.check == "interface"] == [
        Finding("interface", "ok", "", "routes to the peers, and names lead to it")
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_a_folder_in_which_the_controller_keeps_the_run_is_refused(
    shared: bool, tmp_path: Path
) -> None:
    """Events that come from there would be written there, and come again, without end."""
    folder = tmp_path / ("controller" if shared else "other")
    for place in ("controller", "other"):
        (tmp_path / place / "runs/demo").mkdir(parents=True)
    host = Host(
        name="alpha", address="10.0.0.1", slots=1, python=sys.executable, folder=str(folder)
    )
    hosts = Hosts(host=(host,))
    code, _ = bring_code(hosts.host)
    with marked(tmp_path / "controller/runs/demo") as mark:
        facts = compare_files(hosts, code=code, run="runs/demo", mark=mark)
    assert list((tmp_path / "controller/runs/demo").iterdir()) == []
    said = [one.found for one in examine(facts, RunNeeds(hosts, 0)) if one.check == "same files"]
    assert (f"its folder, {folder}, is where the run is kept here" in said) == shared


def test_hosts_that_are_refused_do_not_take_the_place_of_those_a_run_was_on(tmp_path: Path) -> None:
    """Resume goes to the hosts that are written down."""
    first, other = (
        Hosts(host=(Host(name=name, address=name, slots=1, python="/nowhere/python"),))
        for name in ("alpha", "beta")
    )
    (tmp_path / "recipe.toml").write_text(f'name = "demo"{TINY}')
    for hosts in (first, other):
        with pytest.raises(NotFitError, match="there is no /nowhere/python"):
            train_on_hosts(RunDirectory(tmp_path), hosts, listeners=[], print_line=lambda _: None)
    assert recorded_hosts(tmp_path) == first


@pytest.mark.system
def test_a_host_that_does_not_answer_leaves_its_last_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    host = Host(name="alpha", address="10.0.0.1", slots=1, python=sys.executable)
    found = collect_facts(Hosts(host=(host,))).facts
    assert found.hosts
    remember(Hosts(host=(host,)), found)
    gone = Hosts(host=(host.model_copy(update={"python": "/nowhere/python"}),))
    lost = collect_facts(gone).facts
    assert lost.unreachable
    remember(gone, lost)
    kept = recall(gone)
    assert kept is not None
    assert kept.facts == found


@pytest.mark.parametrize("wrong", ["alpha", "beta"])
def test_the_wrong_one_of_two_clocks_is_named(wrong: str, tmp_path: Path) -> None:
    """By this machine's own; a host that comes back with a wrong clock may be the first of all."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 5\n"
    )
    ahead = tmp_path / "python"
    ahead.write_text(f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{tmp_path} exec "{sys.executable}" "$@"\n')
    ahead.chmod(0o755)
    hosts = Hosts(
        host=tuple(
            Host(
                name=name,
                address=name,
                slots=1,
                python=str(ahead if name == wrong else sys.executable),
            )
            for name in ("alpha", "beta")
        )
    )
    code, _ = bring_code(hosts.host)
    facts = compare_files(hosts, code=code, run="runs/demo")
    found = [one for one in examine(facts, RunNeeds(hosts, 0)) if one.check == "clock"]
    assert [(one.host, one.status) for one in found] == [(wrong, "failure")]
    assert "ahead of the others" in found[0].found


def test_hosts_whose_python_lacks_packages_are_named_in_the_table(tmp_path: Path) -> None:
    """As a setup that was broken off leaves them: each has its line, none keeps doctor from it."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    named = {"alpha": "10.0.0.1", "beta": "10.0.0.2"}
    hosts = Hosts(
        host=tuple(
            Host(name=name, address=address, slots=1, python=python)
            for name, address in named.items()
        )
    )
    facts = collect_facts(hosts).facts
    assert set(facts.unreachable) == set(named)
    found = [one for one in examine(facts, RunNeeds(hosts, 0)) if one.status == "failure"]
    assert sorted((one.check, one.host) for one in found) == [
        ("versions", "alpha"),
        ("versions", "beta"),
    ]
    assert all("dragoman setup" in one.remedy for one in found)


def python_that(tmp_path: Path, shell: str) -> str:
    """A Python that does something else if it runs `join_host`."""
    path = tmp_path / "python-of-a-host"
    case = f'case " $* " in {shell} esac'
    path.write_text(f'#!/bin/sh\n{case}\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def two_hosts(python: str) -> Hosts:
    named = {"alpha": "127.0.0.1", "beta": "127.0.0.2"}
    return Hosts(
        host=tuple(
            Host(name=name, address=address, slots=1, python=python)
            for name, address in named.items()
        )
    )


def test_every_silent_host_has_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dragoman.cluster.collect, "_FACTS_S", 2.0)
    hosts = two_hosts(python_that(tmp_path, "*join_host*) while read -r _; do :; done; exit;;"))
    facts = collect_facts(hosts).facts
    assert facts.unreachable == dict.fromkeys(("alpha", "beta"), "no answer within 2 s")
    failed = {one.host for one in examine(facts, RunNeeds(hosts, 0)) if one.status == "failure"}
    assert failed == {"alpha", "beta"}


def test_a_host_that_leaves_before_the_network_is_measured_is_a_line_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*what: Any, **how: Any) -> list[HostFacts]:
        """How fast a host is takes long to measure, and does not matter here."""
        return ask(*what, **how | {"measure": False})

    monkeypatch.setattr(dragoman.cluster.collect, "ask", asked)
    until_work = (
        'while read -r line; do case "$line" in *probe*) exit;; esac; '
        f'printf "%s\\n" "$line"; done | "{sys.executable}" "$@"; exit 3'
    )
    hosts = two_hosts(python_that(tmp_path, f"*cluster.join_host*) {until_work};;"))
    facts = collect_facts(hosts).facts
    assert len(facts.hosts) == 2
    found = [one for one in examine(facts, RunNeeds(hosts, 0)) if one.check == "bandwidth"]
    assert [one.status for one in found] == ["failure"]
    assert found[0].host in {"alpha", "beta"}
    assert "exit code 3" in found[0].found
