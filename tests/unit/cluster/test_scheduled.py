"""Where machines that a scheduler started meet."""

from __future__ import annotations

import pytest

from dragoman.cluster.scheduled import Place, met
from dragoman.errors import MachineError


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_machines_do_not_wait_for_each_other_on_loopback(node: int, address: str) -> None:
    """What /etc/hosts says of a machine's own name is often no address of the network."""
    place = Place(node, 2, address, 29_400, "0123456789abcdef")
    with (
        pytest.raises(MachineError, match="no other machine can reach"),
        met(place, wait_s=0.1),
    ):
        pass


def test_a_machine_that_is_alone_may_meet_itself_there() -> None:
    with met(Place(0, 1, "127.0.0.1", 0, "0123456789abcdef"), wait_s=0.1) as share:
        assert share.num_hosts == 1
