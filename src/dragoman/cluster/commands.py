"""Every command that `train --hosts` runs, as words, before any of them is run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from dragoman.cluster.copying import Parcel, code_digest, code_parcel, read_code
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.ssh import ssh_command
from dragoman.cluster.team import agent_command
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.launch import Share, torchrun_command


def planned_commands(hosts: Hosts, *, run: str) -> Iterator[str]:
    """Lines that a shell could read: comments, commands here, and what these start on the host.

    Words in capitals are known when the command is run.
    """
    code = read_code()
    digest = code_digest(code)
    place = f"runs/{run}"
    for number, host in enumerate(hosts.host):
        yield f"# {host.name}: {host.ranks} of the ranks"
        parcels = (code_parcel(code), Parcel("data/DIGEST", {}), Parcel(place, {}))
        for parcel in parcels:
            yield f"{_here(host, parcel.command(host))} < {parcel.place}.tar"
        for verb in ("facts", "work"):  # each starts again to measure, compare and train
            yield _here(host, agent_command(host, code=digest, verb=verb))
        yield f"#   there: {shlex.join(_torchrun(host, hosts, number=number, run=place))}"
        if number == 0:
            store = [host.python, "-P", "-m", "dragoman.distributed.store", "ADDRESS"]
            yield f"#   there, for all: {shlex.join(store)}"
        for verb in ("list", "send"):
            yield _here(host, agent_command(host, code=digest, verb=verb, more=[place]))


def _here(host: Host, arguments: list[str]) -> str:
    return shlex.join(ssh_command(host, arguments))


def _torchrun(host: Host, hosts: Hosts, *, number: int, run: str) -> list[str]:
    share = Share(
        number=number,
        num_hosts=len(hosts.host),
        interface=host.interface or "INTERFACE",
        store=StoreAddress(hosts.host[0].address, 0, "TOKEN"),
    )
    worker = ["dragoman.worker", "train", run]
    command = torchrun_command(worker, ranks=host.ranks, meeting=Path("MEETING"), share=share)
    return [host.python, *command[1:]]
