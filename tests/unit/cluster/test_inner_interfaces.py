"""Interfaces that lead to nobody else, mostly: loopback, and bridges to containers."""

from __future__ import annotations

import pytest

from dragoman.cluster.checks import Finding, RunNeeds, interfaces
from dragoman.cluster.facts import ClusterFacts, HostFacts, InterfaceFacts
from dragoman.cluster.hosts import Host, Hosts


def found(name: str, addresses: tuple[str, str], *, stated: str | None = None) -> list[Finding]:
    """Facts of two hosts that reach each other over interfaces of this name."""
    hosts = tuple(Host(name=one, address=one, slots=1, interface=stated) for one in "ab")
    facts = tuple(
        HostFacts(
            host=host.name,
            cpu_cores=1,
            versions={},
            digests={},
            interface=InterfaceFacts(name=name, address=address, mtu_bytes=1500, errors=0),
            shared_memory_bytes=0,
            disk_free_bytes=0,
        )
        for host, address in zip(hosts, addresses, strict=True)
    )
    return list(interfaces(ClusterFacts(hosts=facts), RunNeeds(Hosts(host=hosts), 0)))


@pytest.mark.parametrize("name", ["lo", "docker0", "br-1f2e3d", "virbr0"])
def test_loopback_and_container_bridges_are_named(name: str) -> None:
    failures = found(name, ("172.17.0.2", "172.17.0.3"))
    assert [(one.status, one.host) for one in failures] == [("failure", "a"), ("failure", "b")]
    assert all(f'interface = "{name}"' in one.remedy for one in failures)


def test_a_bridge_to_the_network_may_be_stated() -> None:
    """Open vSwitch has br-ex, OpenWrt br-lan; nothing else would let them train."""
    addresses = ("10.0.0.1", "10.0.0.2")
    assert found("br-ex", addresses)
    assert found("br-ex", addresses, stated="br-ex") == []


def test_loopback_is_one_machine_whoever_states_it() -> None:
    (failure,) = found("lo", ("127.0.0.1", "127.0.0.1"), stated="lo")
    assert failure.found == "has the same address as a, 127.0.0.1"
