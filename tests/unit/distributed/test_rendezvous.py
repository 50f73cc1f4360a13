"""The address of a run's store, as it travels in the environment of processes."""

from __future__ import annotations

import pytest

from dragoman.distributed.rendezvous import ROUND_VARIABLE, STORE_VARIABLE, StoreAddress, attempt

ADDRESSES = {
    "10.0.0.1:29500/0123abcd": StoreAddress("10.0.0.1", 29500, "0123abcd"),
    "[fd00::1]:80/a": StoreAddress("fd00::1", 80, "a"),
    "host-1.lan:1234/": StoreAddress("host-1.lan", 1234, ""),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_is_read_as_it_is_written(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ADDRESSES[text]
    assert str(address) == text
    assert address.endpoint == text.partition("/")[0], "as torchrun takes it"
    assert StoreAddress.parse(text) == address
    monkeypatch.setenv(STORE_VARIABLE, text)
    assert StoreAddress.of_this_process() == address


def test_processes_of_one_machine_have_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert StoreAddress.of_this_process() is None


def test_each_round_of_the_hosts_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROUND_VARIABLE, raising=False)
    assert attempt() == "0"
    monkeypatch.setenv(ROUND_VARIABLE, "0123abcd")
    assert attempt() == "0123abcd"
