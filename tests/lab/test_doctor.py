"""Doctor on real hosts: nothing wrong, and one thing wrong at a time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lab.conftest import OpenLab
from lab.controller import set_up_controller, wait_until
from lab.laboratory import INTERFACE, Lab

Spoil = Callable[[Lab, Path], None]
PROGRAM = Path(sys.executable).with_name("dragoman")


def examined(lab: Lab, hosts_file: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON output of doctor."""
    command: list[str | Path] = [PROGRAM, "doctor", "--json", "--hosts", hosts_file]
    done = lab.controller.run(command, check=False, timeout_s=400)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failures(said: dict[str, Any]) -> set[tuple[str, str]]:
    """Check and host of each failure; each has a remedy."""
    found = [finding for finding in said["findings"] if finding["status"] == "failure"]
    assert all(finding["remedy"] for finding in found)
    return {(finding["check"], finding["host"]) for finding in found}


def test_healthy_hosts_are_fit_and_their_network_is_measured(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = make_lab(["alpha", "beta"], rate="40mbit")
    exit_code, said = examined(lab, lab.write_hosts_file(tmp_path / "hosts.toml", slots=[1, 1]))
    assert failures(said) == set()
    assert (exit_code, said["fit"]) == (0, True)
    (pair,) = said["facts"]["pairs"]
    link = 40e6 / 8 * 0.945
    assert pair["forth_bytes_per_s"] == pytest.approx(link, rel=0.1)
    # Sums of a few rounds each wait for the slower of two hosts that share their processors.
    assert pair["both_bytes_per_s"] == pytest.approx(link, rel=0.2)
    assert said["facts"]["all_reduce_bytes_per_s"] == pytest.approx(link, rel=0.2)
    assert said["facts"]["diloco_weight_s"] > 0
    for host in said["facts"]["hosts"]:
        assert host["interface"]["name"] == INTERFACE
        assert host["exposed_ports"] == host["closed_ports"] == []
        assert host["name_resolves_to"] == [host["interface"]["address"]]
        assert host["versions"]["torch"] == metadata.version("torch")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names", [["alpha", "beta"], pytest.param(["alpha", "beta", "gamma"], marks=pytest.mark.slow)]
)
def test_a_host_that_sends_slowly_is_named_with_the_direction(
    make_lab: OpenLab, tmp_path: Path, names: list[str]
) -> None:
    lab = make_lab(names, rate="200mbit")
    lab.host("beta").limit_sending("20mbit")
    hosts_file = lab.write_hosts_file(tmp_path / "hosts.toml", slots=[1] * len(names))
    exit_code, said = examined(lab, hosts_file)
    assert (exit_code, failures(said)) == (0, set())  # slow, but it trains
    found = [one for one in said["findings"] if one["check"] == "bandwidth"]
    (finding,) = [one for one in found if one["host"] == "beta"]
    assert finding["status"] == "warning"
    assert finding["found"].startswith("sends 2.")
    assert f"over {INTERFACE}" in finding["found"]
    assert f"tc qdisc show dev {INTERFACE}" in finding["remedy"]
    for pair in said["facts"]["pairs"]:
        ways = dict(zip(pair["hosts"], ("forth_bytes_per_s", "back_bytes_per_s"), strict=True))
        for sender, way in ways.items():
            if sender == "beta":
                assert pair[way] == pytest.approx(20e6 / 8 * 0.945, rel=0.15)
            else:
                assert pair[way] > 2 * 20e6 / 8
    planned = lab.controller.run(
        [PROGRAM, "plan", "demo", "--hosts", hosts_file, "--json"], timeout_s=100
    )
    slower_way = 20e6 / 8 * 0.945
    plan = json.loads(planned.stdout)
    assert plan["link"]["bytes_per_s"] == pytest.approx(slower_way, rel=0.2)
    ways = {one["name"]: tuple(one["directions"].values()) for one in plan["hosts"]}
    assert ways["beta"][0] == pytest.approx(slower_way, rel=0.15)
    assert ways["beta"][1] > 2 * slower_way
    assert "no slow direction" in [option["name"] for option in plan["options"]]


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_an_sshd_that_allows_one_session_a_connection_is_enough(make_lab: OpenLab) -> None:
    """A command that cannot share the connection logs in anew."""
    controller = set_up_controller(make_lab(["alpha", "beta"], rate="40mbit"))
    for host in controller.lab.hosts:
        host.restart_sshd("MaxSessions 1")
    exit_code, said = examined(controller.lab, controller.folder / "hosts.toml")
    assert (exit_code, failures(said)) == (0, set())
    trained = controller.run("train", "small.toml", "--hosts", "hosts.toml")
    assert trained.returncode == 0, trained.stderr
    assert "Session open refused" not in trained.stdout + trained.stderr
    assert any(controller.folder.glob("runs/*/checkpoints/step-*/digests.json"))


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_network_that_dies_while_doctor_measures_is_named(make_lab: OpenLab) -> None:
    controller = set_up_controller(make_lab(["alpha", "beta"], rate="40mbit"))
    doctor = controller.start("doctor", "--hosts", "hosts.toml")
    beta = controller.lab.host("beta")
    wait_until(lambda: any("join_host" in " ".join(words) for words in beta.processes().values()))
    beta.run(["ip", "link", "set", INTERFACE, "down"])
    began = time.monotonic()
    printed, complaint = doctor.communicate(timeout=300)
    print(f"ended after {time.monotonic() - began:.0f} s: {printed}")
    assert doctor.returncode == 1
    assert "Traceback" not in complaint
    output = " ".join((printed + complaint).split())
    assert "beta" in output
    assert "the connection was lost: " in output or "no answer within" in output


def a_missing_gpu(_lab: Lab, hosts_file: Path) -> None:
    text = hosts_file.read_text()
    before, last = text.rsplit("slots = 1", 1)
    hosts_file.write_text(f"{before}gpus = 1{last}")


def another_torch(lab: Lab, hosts_file: Path) -> None:
    (metadata_file,) = Path(str(metadata.distribution("torch").locate_file(""))).glob(
        "torch-*.dist-info/METADATA"
    )
    text = metadata_file.read_text().replace(
        f"Version: {metadata.version('torch')}", "Version: 1.0"
    )
    other = hosts_file.with_name("METADATA")
    other.write_text(text)
    lab.host("beta").mount("--bind", other, metadata_file)


def a_clock_ahead(lab: Lab, _hosts_file: Path) -> None:
    """A Python whose clock is 5 s ahead, as if the machine's were."""
    beta = lab.host("beta")
    folder = beta.home / "ahead"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import time\nreal = time.time\ntime.time = lambda: real() + 5\n"
    )
    wrapper = beta.home / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{folder} exec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    _set_of_beta(_hosts_file, f'python = "{wrapper}"')


def a_full_disk(lab: Lab, hosts_file: Path) -> None:
    """So full that not even the code gets there."""
    small = lab.host("beta").home / "small"
    small.mkdir()
    lab.host("beta").mount("-t", "tmpfs", "-o", "size=2m", "lab-small", small)
    _set_of_beta(hosts_file, f'folder = "{small}/dragoman"')


def a_wrong_interface(lab: Lab, hosts_file: Path) -> None:
    beta = lab.host("beta")
    beta.run(["ip", "link", "add", "eth9", "type", "veth", "peer", "name", "eth8"])
    beta.run(["ip", "address", "add", "10.99.0.1/24", "dev", "eth9"])
    beta.run(["ip", "link", "set", "eth9", "up"])
    _set_of_beta(hosts_file, 'interface = "eth9"')


def closed_ports(lab: Lab, _hosts_file: Path) -> None:
    """Like a firewall on beta that lets only ssh through."""
    rule = ["ipproto", "tcp", "dport", "1024-65534", "to", lab.host("beta").address]
    lab.host("alpha").run(["ip", "rule", "add", "priority", "10", *rule, "prohibit"])


def a_dead_host(lab: Lab, _hosts_file: Path) -> None:
    lab.host("beta").power_off()


def a_small_shared_memory(lab: Lab, _hosts_file: Path) -> None:
    lab.host("beta").mount("-t", "tmpfs", "-o", "size=64m", "lab-shm", "/dev/shm")


def _set_of_beta(hosts_file: Path, line: str) -> None:
    hosts_file.write_text(f"{hosts_file.read_text()}{line}\n")


@pytest.mark.parametrize(
    ("spoil", "check", "host"),
    [
        (a_missing_gpu, "devices", "beta"),
        (another_torch, "versions", "beta"),
        (a_clock_ahead, "clock", "beta"),
        (a_full_disk, "storage", "beta"),
        (a_wrong_interface, "interface", "beta"),
        (closed_ports, "ports", "alpha"),
        (a_small_shared_memory, "storage", "beta"),
        (a_dead_host, "login", "beta"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_faults_are_named_and_nothing_is_trained(
    make_lab: OpenLab, spoil: Spoil, check: str, host: str
) -> None:
    controller = set_up_controller(make_lab(["alpha", "beta"], rate="40mbit"), slots=(1, 1))
    hosts_file = controller.folder / "hosts.toml"
    spoil(controller.lab, hosts_file)
    exit_code, said = examined(controller.lab, hosts_file)
    # A port that is closed one way also stops the answers to the other.
    assert {found for found, _ in failures(said)} == {check}
    assert (check, host) in failures(said)
    assert exit_code == 1
    refused = controller.run("train", "small.toml", "--hosts", "hosts.toml")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert f": {check}: " in refused.stderr
    assert not (controller.lab.host("alpha").home / ".dragoman" / "runs").exists()
    assert controller.events("run_started") == []


@pytest.mark.smoke
def test_a_host_with_an_unknown_key_is_refused(make_lab: OpenLab, tmp_path: Path) -> None:
    lab = make_lab(["alpha"])
    hosts_file = lab.write_hosts_file(tmp_path / "hosts.toml", slots=[1])
    (lab.controller.home / ".ssh" / "known_hosts").write_text("")
    exit_code, said = examined(lab, hosts_file)
    assert exit_code == 1
    (finding,) = [one for one in said["findings"] if one["status"] == "failure"]
    assert finding["check"] == "login"
    assert "Host key verification failed" in finding["found"]
