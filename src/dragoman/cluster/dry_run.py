"""Every command that `train --hosts` would run, in words, for --dry-run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from dragoman.cluster.files import code_digest, code_place, read_code, send_commands
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.joins import join_command
from dragoman.cluster.ssh import ssh_command
from dragoman.distributed.launch import Share, torchrun_command
from dragoman.distributed.rendezvous import StoreAddress


def planned_commands(hosts: Hosts, *, run: str) -> Iterator[str]:
    """Lines that a shell could read: comments, commands here, and commands that these start.

    Words in capitals are known only when the command runs.
    """
    digest = code_digest(read_code())
    place = f"runs/{run}"
    for number, host in enumerate(hosts.host):
        yield f"# {host.name}: {host.ranks} of the ranks"
        for sent in (code_place(digest), "data/DIGEST", place, f"{place}/checkpoints/STEP"):
            yield from map(shlex.join, send_commands(host, sent))
        # It starts once to measure, and once to compare and train.
        yield _here(host, join_command(host, code=digest))
        for there in _there(host, hosts, number=number, run=place):
            # The text after a line break would be a command, not a part of the comment.
            yield f"#   there: {' '.join(shlex.join(there).splitlines())}"


def _here(host: Host, arguments: list[str]) -> str:
    return shlex.join(ssh_command(host, arguments))


def _there(host: Host, hosts: Hosts, *, number: int, run: str) -> Iterator[list[str]]:
    """The processes that start there: the store, the measuring process, torchrun."""
    module = [host.python, "-P", "-m"]
    if number == 0:
        yield [*module, "dragoman.distributed.store", "LISTENER"]
    if host.gpus:
        yield [*module, "dragoman.distributed.devices"]
    yield [*module, "dragoman.training.measuring"]
    yield _torchrun(host, hosts, number=number, run=run)


def _torchrun(host: Host, hosts: Hosts, *, number: int, run: str) -> list[str]:
    share = Share(
        number=number,
        num_hosts=len(hosts.host),
        interface=host.interface or "INTERFACE",
        store=StoreAddress(hosts.host[0].address, 0, "TOKEN"),
        fewest=len(hosts.host),
    )
    worker = ["dragoman.run.worker", "train", run]
    command = torchrun_command(worker, ranks=host.ranks, meeting=Path("MEETING"), share=share)
    at = hosts.host[0].address
    known = [word.replace(f"{at}:0", f"{at}:PORT") for word in command[1:]]
    return [host.python, *known]
