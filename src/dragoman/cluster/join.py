"""How the machines of a run find each other, whoever starts them.

All machines know an address and a port of the first one, which opens the store there; the others
wait for it. Slurm, Kubernetes and SkyPilot start `dragoman join` on every machine, and number the
machines in the environment; `dragoman train --hosts` starts the same over ssh (`join_host`).
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Self

from dragoman.base.errors import ConfigError, MachineError
from dragoman.cluster import network
from dragoman.distributed.launch import Share
from dragoman.distributed.rendezvous import StoreAddress, listen

TOKEN_VARIABLE: Final = "DRAGOMAN_JOB_TOKEN"  # noqa: S105  # its name, not the token
"""The environment variable with the secret that keeps one run's processes apart from all others.

It is not the server's token: a user who may request translations must not be able to join a
training.
"""
_NODE_VARIABLES: Final = ("SLURM_NODEID", "PET_NODE_RANK", "SKYPILOT_NODE_RANK")
_NODES_VARIABLES: Final = ("SLURM_NNODES", "PET_NNODES", "SKYPILOT_NUM_NODES")
_ENDPOINT: Final = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*):(?P<port>\d{1,5})")
_TOKEN: Final = re.compile(r"[A-Za-z0-9]{16,128}")
_RESOLVE_S: Final = 300.0
_KNOCK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """Machine `number` of `nodes`, counted from 0, and where they meet.

    host, port: a name or address of machine 0 on the private network, and a free port there; on
        machine 0 itself, port 0 chooses one.
    """

    number: int
    nodes: int
    host: str
    port: int
    token: str

    @classmethod
    def read(
        cls, at: str, *, node: int | None, nodes: int | None, environment: Mapping[str, str]
    ) -> Self:
        """Read ADDRESS:PORT; the token, and numbers that are None, are read from the environment.

        Raises ConfigError if a value is missing or wrong.
        """
        match = _ENDPOINT.fullmatch(at)
        if match is None or not 0 < int(match["port"]) < 1 << 16:
            raise ConfigError(
                f"{at!r} is not ADDRESS:PORT",
                place="at",
                remedy="write for example 10.0.0.1:29400",
            )
        node = _number("node", node, _NODE_VARIABLES, environment)
        nodes = _number("nodes", nodes, _NODES_VARIABLES, environment)
        if not 0 <= node < nodes:
            raise ConfigError(
                f"there is no machine {node} among {nodes}",
                place="node",
                remedy="count machines from 0",
            )
        token = environment.get(TOKEN_VARIABLE, "")
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                "it must hold 16 or more letters and digits, the same on all machines of a run",
                place=TOKEN_VARIABLE,
                remedy=f"export {TOKEN_VARIABLE}=$(openssl rand -hex 16)",
            )
        return cls(node, nodes, match["host"], int(match["port"]), token)


@contextmanager
def rendezvous(node: Node, *, wait_s: float) -> Iterator[Share]:
    """This machine's share of the run; inside the block the store is open.

    wait_s: how long the first machine may take to open it, as it may have to prepare a corpus.
    Raises the errors of `share_of`; MachineError if the address is not the first machine's own, if
    the store cannot be opened there, or does not answer in time.
    """
    share = share_of(node)
    if node.number:
        _wait_for(share.store, wait_s)
        yield share
    elif network.addresses().get(share.interface) != share.store.address:
        raise MachineError(
            f"the first machine does not have the address {share.store.address}",
            place="at",
            remedy="give an address of the machine that is number 0",
        )
    else:
        with closing(StoreProcess(share.store.address, share.store.port)) as store:
            yield replace(share, store=replace(share.store, port=store.port))


def share_of(node: Node) -> Share:
    """A machine's share: the store, and the interface that leads there.

    Raises MachineError if the name has no address for five minutes; if the address is a loopback
    address (with several machines) or has no route.
    """
    address = _resolved(node.host)
    if node.nodes > 1 and ipaddress.ip_address(address).is_loopback:
        # Many machines resolve their own name to this; no other machine could reach the store.
        raise MachineError(
            f"{node.host} is {address} here, which no other machine can reach",
            place="at",
            remedy="give the address in the private network, or put it into /etc/hosts there",
        )
    interface = network.route_to([address])
    if interface is None:
        raise MachineError(
            f"no interface of this machine leads to {address}",
            place="at",
            remedy="give an address of the network that all machines of the run are on",
        )
    return Share(node.number, node.nodes, interface, StoreAddress(address, node.port, node.token))


class StoreProcess:
    """The process of `dragoman.distributed.store`, which listens on this address alone.

    port: the port at which it listens; 0 chooses a free one. Raises MachineError if it cannot.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        try:
            listener = listen(address, port)
        except OSError as error:
            raise MachineError(
                f"cannot listen at {address}" + (f", port {port}" if port else ""),
                remedy="check that the address is this machine's own and that the port is free",
            ) from error
        with listener:
            self.port: int = listener.getsockname()[1]
            number = listener.fileno()
            program = [sys.executable, "-P", "-m", "dragoman.distributed.store", str(number)]
            # Its warnings of clients that have gone would stand in the error of a host.
            quiet = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, pass_fds=[number], env=quiet
            )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def _wait_for(store: StoreAddress, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while network.unreachable([(store.address, store.port)]):
        if time.monotonic() > deadline:
            raise MachineError(
                f"the first machine does not answer at {store.endpoint}",
                remedy="see its log, and whether the network lets this port through",
            )
        time.sleep(_KNOCK_EVERY_S)


def _resolved(host: str) -> str:
    """The address of a name; a cluster may publish it only after the machine has started.

    Raises MachineError if there is none after five minutes.
    """
    deadline = time.monotonic() + _RESOLVE_S
    while not (found := network.resolve(host)):
        if time.monotonic() > deadline:
            raise MachineError(
                f"{host} has no address", place="at", remedy="see the cluster's name service"
            )
        time.sleep(_KNOCK_EVERY_S)
    return found[0]


def _number(
    option: str, given: int | None, variables: Sequence[str], environment: Mapping[str, str]
) -> int:
    texts = (environment.get(variable, "") for variable in variables)
    number = given if given is not None else next((int(t) for t in texts if t.isdecimal()), None)
    if number is None:
        raise ConfigError(
            f"no scheduler sets it here (none of {', '.join(variables)} is set)",
            place=option,
            remedy=f"give {option}",
        )
    return number
