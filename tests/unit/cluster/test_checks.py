"""Every check names the one thing that is wrong, on the host where it is, with a remedy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dragoman.cli import main
from dragoman.cluster import rates
from dragoman.cluster.checks import (
    CHECKS,
    Finding,
    RunNeeds,
    directions,
    examine,
    examine_here,
    is_fit,
    measured_link,
)
from dragoman.cluster.doctor_view import findings_as_json, print_findings, verdict
from dragoman.cluster.facts import ClusterFacts, HostFacts, InterfaceFacts, PairFacts
from dragoman.cluster.hosts import Hosts

NAMES = ("alpha", "beta", "gamma")
HOSTS = Hosts.model_validate(
    {
        "host": [
            {"name": name, "address": f"10.0.0.{number}", "gpus": 2, "interface": "eth0"}
            for number, name in enumerate(NAMES, start=1)
        ]
    }
)
WANTED = RunNeeds(HOSTS, needed_bytes=5_000_000_000)


def card(**changes: Any) -> InterfaceFacts:
    values = {
        "name": "eth0",
        "address": "10.0.0.9",
        "speed_bits_per_s": 1e9,
        "full_duplex": True,
        "mtu_bytes": 1500,
        "errors": 0,
    }
    return InterfaceFacts.model_validate(values | changes)


def host(name: str, **changes: Any) -> HostFacts:
    address = {"alpha": "10.0.0.7", "beta": "10.0.0.8"}.get(name, "10.0.0.9")
    values = {
        "host": name,
        "gpus_visible": 2,
        "gpus_usable": 2,
        "cpu_cores": 8,
        "versions": {"python": "3.11.7", "torch": "2.13.0", "driver": "580.1", "torchft": None},
        "digests": dict.fromkeys(("code", "recipe", "data", "vocabulary"), "0123456789"),
        "clock_offset_s": 0.001,
        "interface": card(address=address),
        "name_resolves_to": (address,),
        "shared_memory_bytes": 2_000_000_000,
        "disk_free_bytes": 100_000_000_000,
        "disk_write_bytes_per_s": 500e6,
        "step_s": 0.25,
        "closed_ports": (),
        "exposed_ports": (),
    }
    return HostFacts.model_validate(values | changes)


def pair(first: str, second: str, **changes: Any) -> PairFacts:
    values = {
        "hosts": (first, second),
        "forth_bytes_per_s": 117e6,
        "back_bytes_per_s": 117e6,
        "both_bytes_per_s": 115e6,
        "latency_s": 0.2e-3,
    }
    return PairFacts.model_validate(values | changes)


def cluster(last: HostFacts | None = None, *, pairs: tuple[PairFacts, ...] = ()) -> ClusterFacts:
    """A sound cluster, but for its last host or its last pairs."""
    sound = (pair("alpha", "beta"), pair("alpha", "gamma"), pair("beta", "gamma"))
    return ClusterFacts(
        hosts=(host("alpha"), host("beta"), last or host("gamma")),
        pairs=sound[: 3 - len(pairs)] + pairs,
        all_reduce_bytes_per_s=116e6,
    )


def wrong(facts: ClusterFacts) -> list[Finding]:
    return [finding for finding in examine(facts, WANTED) if finding.status != "ok"]


def test_a_sound_cluster_is_green_once_for_each_check() -> None:
    findings = examine(cluster(), WANTED)
    assert [(finding.check, finding.status) for finding in findings] == [
        (name, "ok") for name in CHECKS
    ]
    assert is_fit(findings)
    assert verdict(findings) == "Fit to train."


@pytest.mark.parametrize(
    ("changes", "check", "status", "words"),
    [
        ({"gpus_visible": 1}, "devices", "failure", "2 GPUs stated, 1 visible"),
        ({"gpus_usable": 1}, "devices", "failure", "2 GPUs visible, 1 compute right"),
        (
            {"versions": {"python": "3.11.7", "torch": "2.12.0", "driver": "580.1"}},
            "versions",
            "failure",
            "torch 2.12.0, elsewhere 2.13.0",
        ),
        (
            {"versions": {"python": "3.11.7", "torch": "2.13.0", "driver": "535"}},
            "versions",
            "warning",
            "driver 535, elsewhere 580.1",
        ),
        (
            {"versions": {"python": "3.11.7", "driver": "580.1"}},
            "versions",
            "failure",
            "torch is missing, elsewhere 2.13.0",
        ),
        (
            {
                "digests": dict.fromkeys(("code", "recipe", "data"), "0123456789")
                | {"vocabulary": "9876543210"}
            },
            "same files",
            "failure",
            "the vocabulary differs: 98765432, on alpha 01234567",
        ),
        (
            {
                "digests": dict.fromkeys(("code", "recipe", "vocabulary"), "0123456789")
                | {"data": None}
            },
            "same files",
            "failure",
            "the data is not there",
        ),
        ({"clock_offset_s": 5.0}, "clock", "failure", "5 s ahead of the others"),
        ({"clock_offset_s": -5.0}, "clock", "failure", "5 s behind the others"),
        ({"clock_offset_s": None}, "clock", "unknown", "not measured"),
        ({"interface": None}, "interface", "failure", "none of its interfaces leads"),
        (
            {"interface": card(name="eth1")},
            "interface",
            "failure",
            "eth0 is stated, eth1 routes to the other hosts",
        ),
        (
            {"name_resolves_to": ("127.0.1.1",)},
            "interface",
            "warning",
            "its own name means 127.0.1.1, not 10.0.0.9",
        ),
        ({"interface": card(full_duplex=False)}, "card", "warning", "half duplex"),
        (
            {"interface": card(mtu_bytes=9000)},
            "card",
            "failure",
            "packets of 9000 bytes, elsewhere 1500",
        ),
        ({"interface": card(errors=12)}, "card", "warning", "12 packets lost on eth0"),
        ({"closed_ports": ("10.0.0.1:29400",)}, "ports", "failure", "cannot reach 10.0.0.1:29400"),
        (
            {"exposed_ports": ("0.0.0.0:29400",)},
            "ports",
            "failure",
            "strangers can reach 0.0.0.0:29400",
        ),
        ({"exposed_ports": None}, "ports", "unknown", "not measured"),
        ({"disk_free_bytes": 10**9}, "storage", "failure", "1 GB free, 5 GB needed"),
        ({"disk_write_bytes_per_s": 1e6}, "storage", "warning", "writes 1 MB/s"),
        (
            {"shared_memory_bytes": 64 * 1024**2},
            "storage",
            "failure",
            "67.11 MB of shared memory",
        ),
        ({"step_s": 0.5}, "speed", "warning", "500 ms/step, elsewhere 250 ms/step"),
    ],
)
def test_faults_of_a_host_are_named(
    changes: dict[str, Any], check: str, status: str, words: str
) -> None:
    (finding,) = wrong(cluster(host("gamma", **changes)))
    assert (finding.check, finding.status, finding.host) == (check, status, "gamma")
    assert words in finding.found
    assert finding.remedy or status == "unknown"


@pytest.mark.parametrize("names", [("alpha",), ("alpha", "beta")])
def test_a_package_that_all_hosts_lack_is_missed(names: tuple[str, ...]) -> None:
    """All were called equal; and of two of which one has it, the other one was called wrong."""
    bare = {"python": "3.11.7", "torch": None}
    facts = ClusterFacts(hosts=tuple(host(name, versions=bare, step_s=None) for name in names))
    found = [finding for finding in wrong(facts) if finding.status == "failure"]
    assert [(one.check, one.host, one.found) for one in found] == [
        ("versions", name, "torch is missing") for name in names
    ]
    assert all("dragoman setup" in one.remedy for one in found)
    assert ("speed", "unknown") in [(one.check, one.status) for one in wrong(facts)]
    of_two = wrong(ClusterFacts(hosts=(facts.hosts[0], host("gamma"))))
    (finding,) = (one for one in of_two if one.status == "failure")
    assert (finding.host, finding.found) == ("alpha", "torch is missing, elsewhere 2.13.0")
    assert finding.remedy == "install torch 2.13.0 there"


def test_files_that_are_equal_but_not_those_of_the_run_are_named() -> None:
    wanted = replace(WANTED, digests={"data": "9876543210", "code": "0123456789"})
    findings = [one for one in examine(cluster(), wanted) if one.status != "ok"]
    assert {finding.host for finding in findings} == {"alpha", "beta", "gamma"}
    assert {finding.found for finding in findings} == {"the data differs: 01234567, here 98765432"}
    assert all("delete .dragoman/data there" in finding.remedy for finding in findings)
    changed = replace(WANTED, digests={"recipe": "9876543210"})
    (remedy,) = {one.remedy for one in examine(cluster(), changed) if one.status != "ok"}
    assert remedy.startswith("delete .dragoman/runs/RUN there: "), "other runs stay"


def test_a_host_that_has_no_files_of_the_run_yet_is_fit() -> None:
    new = host("gamma", digests={"code": "0123456789"})
    assert wrong(cluster(new)) == []


def test_two_entries_that_turn_out_to_be_one_machine_are_named() -> None:
    twice = host("gamma", interface=card(address="10.0.0.8"), name_resolves_to=("10.0.0.8",))
    (finding,) = wrong(cluster(twice))
    assert (finding.check, finding.status, finding.host) == ("interface", "failure", "gamma")
    assert finding.found == "has the same address as beta, 10.0.0.8"
    assert finding.remedy == "give each machine one entry, with all of its GPUs"


def test_a_public_address_is_a_failure() -> None:
    public = card(address="8.8.8.8")
    findings = wrong(cluster(host("gamma", interface=public, name_resolves_to=("8.8.8.8",))))
    assert [(finding.check, finding.found) for finding in findings] == [
        ("ports", "8.8.8.8 is a public address")
    ]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"both_bytes_per_s": 60e6}, "warning", "60 MB/s each way at once, 117 MB/s one way alone"),
        (
            {"forth_bytes_per_s": 12e6, "both_bytes_per_s": 11.8e6},
            "warning",
            "beta sends 12 MB/s over eth0 to gamma (eth0), which sends 117 MB/s",
        ),
        ({"latency_s": 0.02}, "warning", "20 ms for one message"),
    ],
)
def test_faults_between_two_hosts_are_named(
    changes: dict[str, Any], status: str, words: str
) -> None:
    (finding,) = wrong(cluster(pairs=(pair("beta", "gamma", **changes),)))
    assert (finding.check, finding.status, finding.host) == ("bandwidth", status, "beta - gamma")
    assert words in finding.found


def one_sided(names: tuple[str, ...], slow: str, *, sends: bool) -> ClusterFacts:
    """Hosts of which one sends, or receives, at 2 MB/s whoever the peer is."""
    pairs = []
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            forth = 2e6 if slow == (first if sends else second) else 117e6
            back = 2e6 if slow == (second if sends else first) else 117e6
            both = min(forth, back)
            pairs.append(
                pair(first, second, forth_bytes_per_s=forth, back_bytes_per_s=back,
                     both_bytes_per_s=both)
            )  # fmt: skip
    return ClusterFacts(
        hosts=tuple(map(host, names)), pairs=tuple(pairs), all_reduce_bytes_per_s=2.1e6
    )


@pytest.mark.parametrize("names", [("alpha", "beta"), NAMES])
@pytest.mark.parametrize("sends", [True, False])
def test_a_host_that_is_slow_in_one_direction_is_named_with_it(
    names: tuple[str, ...], sends: bool
) -> None:
    facts = one_sided(names, "beta", sends=sends)
    (finding,) = wrong(facts)
    assert (finding.check, finding.status) == ("bandwidth", "warning")
    if len(names) > 2:
        assert finding.host == "beta"
        ways = ("sends", "receives") if sends else ("receives", "sends")
        assert finding.found == f"{ways[0]} 2 MB/s over eth0 and {ways[1]} 117 MB/s"
        assert f"limit on the traffic that beta {ways[0]} over eth0" in finding.remedy
        assert "alpha" not in finding.remedy
    else:  # either end may be it: both are named
        assert finding.host == ("beta" if sends else "alpha")
        assert "sends 2 MB/s over eth0 to" in finding.found
        assert "sends 117 MB/s" in finding.found
        sender, receiver = ("beta", "alpha") if sends else ("alpha", "beta")
        assert f"the traffic that {sender} sends over eth0" in finding.remedy
        assert f"the traffic that {receiver} receives over eth0" in finding.remedy
    link = measured_link(facts)
    assert link is not None
    assert link.bytes_per_s == 2e6  # less than the all-reduce, in which a bucket was still full
    known = list(directions(facts).items())
    named = [known[number] for number in rates.one_sided([ways for _name, ways in known])]
    ((name, limited),) = named
    assert name == (finding.host if len(names) > 2 or sends else "alpha")
    slow, fast = ("sends", "receives") if sends or len(names) == 2 else ("receives", "sends")
    assert limited.limit == f"{slow} 2 MB/s and {fast} 117 MB/s"


def test_each_direction_is_in_the_table() -> None:
    facts = one_sided(("alpha", "beta"), "beta", sends=True)
    console = Console(width=100)
    with console.capture() as capture:
        print_findings(examine(facts, WANTED), facts, console)
    rows = [line.split() for line in capture.get().splitlines()]
    assert ["alpha", "beta", "117", "MB/s", "2", "MB/s"] in rows
    assert ["beta", "alpha", "2", "MB/s", "2", "MB/s"] in rows
    assert (
        "moves 2 MB/s through each interface, each way, because beta sends 2 MB/s and receives "
        "117 MB/s; the cards say" in capture.get()
    )


def test_a_link_too_fast_for_half_duplex_is_not_called_so() -> None:
    # At 10 Gbit/s an all-reduce is slower than a message: the processors add.
    fast = {"forth_bytes_per_s": 1.1e9, "back_bytes_per_s": 1.1e9, "both_bytes_per_s": 0.6e9}
    facts = ClusterFacts(
        hosts=(host("alpha"), host("beta")), pairs=(pair("alpha", "beta", **fast),)
    )
    (finding,) = wrong(facts)
    assert finding.status == "warning"
    assert finding.found == "600 MB/s each way at once, 1.100 GB/s one way alone"


def test_a_slow_port_of_all_hosts_is_seen_beside_the_speed_of_the_cards() -> None:
    slow = {"forth_bytes_per_s": 12e6, "back_bytes_per_s": 12e6, "both_bytes_per_s": 11.8e6}
    facts = cluster().model_copy(
        update={"pairs": (pair("alpha", "beta", **slow), pair("beta", "gamma", **slow))}
    )
    assert [(finding.status, finding.found) for finding in wrong(facts)] == [
        ("warning", "11.80 MB/s, the cards say 125 MB/s")
    ] * 2


def test_a_host_that_does_not_answer() -> None:
    lost = HOSTS.host[2].model_copy(update={"user": "ann", "port": 2222})
    hosts = HOSTS.model_copy(update={"host": (*HOSTS.host[:2], lost)})
    facts = cluster().model_copy(update={"unreachable": {"gamma": "Connection refused"}})
    (finding,) = (found for found in examine(facts, RunNeeds(hosts, 0)) if found.status != "ok")
    assert (finding.check, finding.host) == ("login", "gamma")
    assert "Connection refused" in finding.found
    # The remedy is the command that was tried; the name in our tables means nothing to ssh.
    assert "`ssh -p 2222 -l ann 10.0.0.3 true`" in finding.remedy


@pytest.mark.parametrize(("answering", "others"), [((), "unknown"), (("alpha",), "ok")])
def test_nothing_is_called_right_of_hosts_that_do_not_answer(
    answering: tuple[str, ...], others: str
) -> None:
    lost = {name: "no route to host" for name in NAMES if name not in answering}
    facts = ClusterFacts(hosts=tuple(map(host, answering)), unreachable=lost)
    found = examine(facts, WANTED)
    assert [finding.host for finding in found if finding.check == "login"] == list(lost)
    rest = {finding.check: finding for finding in found if finding.check != "login"}
    assert rest.pop("bandwidth").status == "unknown"
    assert {finding.status for finding in rest.values()} == {others}
    assert {finding.host for finding in rest.values()} == {"the others" if answering else ""}


@pytest.mark.parametrize(
    ("said", "check", "remedy"),
    [
        ("a command failed with exit code 1: OSError: No space left on device", "storage", "df -h"),
        ("there is no .dragoman/venv/bin/python", "versions", "dragoman setup"),
        ("a command failed with exit code 1: PermissionError", "login", "dragoman setup"),
        ("the connection was lost: no answer for 15 s", "login", "see whether it runs"),
        ("nothing has passed for 120 s", "login", "silence_s in hosts.toml"),
    ],
)
def test_a_host_that_cannot_be_examined_differs_from_one_that_does_not_answer(
    said: str, check: str, remedy: str
) -> None:
    (finding,) = wrong(cluster().model_copy(update={"unreachable": {"gamma": said}}))
    assert (finding.check, finding.host) == (check, "gamma")
    assert remedy in finding.remedy


def test_the_slower_of_two_hosts_is_named() -> None:
    facts = ClusterFacts(hosts=(host("alpha", step_s=0.5), host("beta")), pairs=cluster().pairs[:1])
    (finding,) = wrong(facts)
    assert (finding.check, finding.host) == ("speed", "alpha")


def test_nothing_measured_is_not_called_right() -> None:
    facts = ClusterFacts(hosts=(host("alpha", step_s=None), host("beta", step_s=None)))
    assert [(finding.check, finding.status) for finding in wrong(facts)] == [
        ("bandwidth", "unknown"),
        ("speed", "unknown"),
    ]
    assert measured_link(facts) is None


def test_a_network_that_could_not_be_measured_is_no_network() -> None:
    facts = ClusterFacts(hosts=(host("alpha"), host("beta")), unmeasured={"beta": "it timed out"})
    (finding,) = wrong(facts)
    assert (finding.check, finding.status, finding.host) == ("bandwidth", "failure", "beta")
    assert "it timed out" in finding.found


def test_ranks_on_processors_need_no_gpu() -> None:
    hosts = Hosts.model_validate({"host": [{"name": "alpha", "address": "10.0.0.1", "slots": 2}]})
    alone = ClusterFacts(hosts=(host("alpha", gpus_visible=0, gpus_usable=0),))
    assert is_fit(examine(alone, RunNeeds(hosts, needed_bytes=0)))
    crowded = ClusterFacts(hosts=(host("alpha", cpu_cores=1),))
    found = [finding.found for finding in examine(crowded, RunNeeds(hosts, needed_bytes=0))]
    assert "2 ranks on 1 cores" in found


def test_gpus_and_processors_do_not_train_together() -> None:
    """One would wait for the others in NCCL, which wait for it in Gloo."""
    machines = [{"name": "alpha", "address": "a", "gpus": 2}]
    machines.append({"name": "beta", "address": "b", "slots": 2})
    hosts = Hosts.model_validate({"host": machines})
    common = {"python": "3.11.7", "torch": "2.13.0"}
    facts = ClusterFacts(
        hosts=(
            host("alpha", versions=common | {"nccl": "2.27.3", "driver": "580.1"}),
            host("beta", versions=common),
        )
    )
    wrong = [one for one in examine(facts, RunNeeds(hosts, needed_bytes=0)) if one.status != "ok"]
    assert [(one.check, one.host) for one in wrong if one.status == "failure"] == [
        ("devices", "beta")
    ]
    assert all(one.check != "versions" for one in wrong)


def test_the_planner_gets_the_measured_link() -> None:
    link = measured_link(cluster())
    assert link is not None
    assert (link.bytes_per_s, link.latency_s) == (116e6, 0.2e-3)
    slowest = measured_link(cluster().model_copy(update={"all_reduce_bytes_per_s": None}))
    assert slowest is not None
    assert slowest.bytes_per_s == 115e6


def test_the_table_shows_remedies_and_a_verdict() -> None:
    facts = cluster(host("gamma", gpus_visible=1, interface=card(errors=3)))
    findings = examine(facts, WANTED)
    console = Console(width=80)
    with console.capture() as capture:
        print_findings(findings, facts, console)
    text = capture.get()
    assert "2 GPUs stated, 1 visible" in text
    assert "-> see nvidia-smi there" in text
    assert "Not fit to train: 1 to fix (1 with a warning)." in text
    assert "an all-reduce over all hosts moves 116 MB/s through each interface" in text
    assert "…" not in text


def test_json_holds_the_facts_that_can_be_read_back() -> None:
    facts = cluster(host("gamma", gpus_visible=1))
    values = json.loads(findings_as_json(examine(facts, WANTED), facts))
    assert values["fit"] is False
    assert {finding["status"] for finding in values["findings"]} == {"ok", "failure"}
    assert ClusterFacts.model_validate_json(json.dumps(values["facts"])) == facts


def test_a_machine_alone_is_examined_without_its_peers() -> None:
    needs = RunNeeds(Hosts(host=(HOSTS.host[0],)), needed_bytes=5_000_000_000)
    found = examine_here(host("alpha", interface=None), needs)
    assert {one.status for one in found} == {"ok"}
    assert not {"login", "interface", "ports"} & {one.check for one in found}
    versions = {"python": "3.11.7", "torch": None, "driver": "580.1"}
    broken = host("alpha", gpus_usable=1, versions=versions, disk_free_bytes=1, step_s=None)
    found = examine_here(broken, needs)
    wrong = {one.check for one in found if one.status == "failure"}
    assert wrong == {"devices", "versions", "storage"}
    assert not [one for one in found if "setup" in one.remedy], "setup is for hosts over ssh"


@pytest.mark.system
def test_doctor_examines_this_machine_without_ssh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no ssh
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (facts,) = said["facts"]["hosts"]
    assert facts["versions"]["torch"]
    assert said["fit"] is True
