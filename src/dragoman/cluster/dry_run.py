"""Every command that `train --hosts` would run, in words, for --dry-run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from dragoman.cluster.copying import code_digest, code_parcel, read_code, receive_command
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.messages import Verb
from dragoman.cluster.ssh import ssh_command
from dragoman.cluster.team import agent_command
from dragoman.distributed.launch import Share, torchrun_command
from dragoman.distributed.rendezvous import StoreAddress


def planned_commands(hosts: Hosts, *, run: str) -> Iterator[str]:
    """Lines that a shell could read: comments, commands here, and commands that these start.

    The word after `<` names the data that is sent. Words in capitals are known only when the
    command runs.
    """
    code = read_code()
    digest = code_digest(code)
    place = f"runs/{run}"
    for number, host in enumerate(hosts.host):
        yield f"# {host.name}: {host.ranks} of the ranks"
        sent = code_parcel(code)
        yield _sending(host, sent.place, str(len(sent.files)))
        for unknown in ("data/DIGEST", place, f"{place}/checkpoints/STEP"):
            yield _sending(host, unknown, "NUM_FILES")
        # The agent starts once to measure, and once to compare and train.
        yield _here(host, agent_command(host, code=digest, verb="answer"))
        for there in _there(host, hosts, number=number, run=place):
            # The text after a line break would be a command, not a part of the comment.
            yield f"#   there: {' '.join(shlex.join(there).splitlines())}"
        verbs: tuple[Verb, ...] = ("list", "send", "forget")
        for verb in verbs:
            yield _here(host, agent_command(host, code=digest, verb=verb, more=[place]))


def _here(host: Host, arguments: list[str]) -> str:
    return shlex.join(ssh_command(host, arguments))


def _sending(host: Host, place: str, num_files: str) -> str:
    command = receive_command(host, place, num_files)
    return f"{_here(host, command)} < {shlex.quote(f'{place}.tar')}"


def _there(host: Host, hosts: Hosts, *, number: int, run: str) -> Iterator[list[str]]:
    """The processes that agents start: the store, the measuring process, torchrun."""
    module = [host.python, "-P", "-m"]
    if number == 0:
        yield [*module, "dragoman.distributed.store"]
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
    )
    worker = ["dragoman.run.worker", "train", run]
    command = torchrun_command(worker, ranks=host.ranks, meeting=Path("MEETING"), share=share)
    at = hosts.host[0].address
    known = [word.replace(f"{at}:0", f"{at}:PORT") for word in command[1:]]
    return [host.python, *known]
