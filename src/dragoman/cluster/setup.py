"""Installs a virtual environment with dragoman's dependencies on every host, once, over ssh.

Its packages have the versions of this machine; the code of dragoman itself comes with each run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import PurePosixPath
from typing import Final

from dragoman.base.errors import ConfigError, MachineError
from dragoman.cluster import ssh
from dragoman.cluster.collect import on_all
from dragoman.cluster.hosts import Host, Hosts

_INSTALL_S: Final = 86_400.0
"""A limit, not a detector: pip gives up an index that is silent, and ssh a host. PyTorch for GPUs
has three gigabytes: 80 minutes at 5 Mbit/s."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA: Final = re.compile(r"""extra == ['"]([^'"]+)""")
_PROBE: Final = "import sys; sys.exit(sys.version_info < (3, 11))"


def requirements(*, gpus: bool) -> Iterator[str]:
    """The dependencies of dragoman, in the versions that run here: `torch==2.13.0`, ...

    gpus: include the package that measures GPUs, in any version if this machine has none.
    """
    for line in metadata.requires("dragoman") or []:
        extra = _EXTRA.search(line)
        if extra is None or (gpus and extra[1] == "gpu"):
            match = _NAME.match(line)
            assert match is not None
            try:
                # A suffix such as "+cpu" names the build, which the host's package index chooses.
                public, _, _build = metadata.version(match[0]).partition("+")
            except metadata.PackageNotFoundError:
                yield line.partition(";")[0].strip()
            else:
                yield f"{match[0]}=={public}"


def environment_of(host: Host) -> str:
    """The virtual environment of the host's Python; raises ConfigError if it is in none."""
    python = PurePosixPath(host.python)
    if python.parent.name != "bin" or len(python.parts) < 3:
        raise ConfigError(
            f"{host.python} is not in a virtual environment, and packages go only into one",
            place=host.name,
            remedy="leave python out of hosts.toml, or name .../bin/python of one to be made",
        )
    return str(python.parent.parent)


def commands(host: Host) -> list[list[str]]:
    """The commands that prepare the host: check Python, make the environment, install packages."""
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [
        ["python3", "-c", _PROBE],
        ["python3", "-m", "venv", environment_of(host)],
        [host.python, *install, *requirements(gpus=host.gpus > 0)],
    ]


def set_up(hosts: Hosts, *, print_line: Callable[[str], None]) -> None:
    """Prepare all hosts at once.

    Raises ConfigError if a host's Python is in no virtual environment, and the first MachineError.
    """
    for host in hosts.host:
        environment_of(host)

    def one(host: Host) -> None:
        for command in commands(host):
            _run(host, command)
        print_line(f"{host.name}: {host.python} is ready")

    on_all(hosts.host, one)


def _run(host: Host, command: list[str]) -> None:
    try:
        ssh.run(host, command, timeout_s=_INSTALL_S)
    except MachineError as error:
        if error.problem.startswith(("ssh ", ssh.LOST)):  # no ssh, no login, or connection lost
            raise
        raise MachineError(
            f"`{' '.join(command[:4])} ...` failed: {error.problem}",
            place=host.name,
            remedy="it needs Python 3.11 or newer with venv (Debian: python3-venv) and a package "
            "index that it can reach",
        ) from error
