"""OpenSSH as a list of arguments: what runs on another host, and how its end is noticed.

Host keys are verified, nothing asks for a password, no key leaves this machine. A remote command
is a list of words, quoted for the one shell that sshd puts between: nothing else interprets it.
That shell may greet people on its standard output (an `echo` in a .bashrc), so it says a word of
ours where the greeting ends and what the program prints begins.

This process logs in to each host once. Further programs on the host share that connection
(ControlMaster of ssh_config(5)); if it is lost, the next program logs in again.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import selectors
import shlex
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.cluster.hosts import Host

CONNECT_S: Final = 10
LOST_AFTER_S: Final = 15
"""A host that has not answered ssh for so long is lost."""
NO_PYTHON: Final = "there is no"
FAILED: Final = "a command failed"
SET_UP: Final = "run dragoman setup --hosts, or name its python in hosts.toml"
BEGIN: Final = "dragoman-begins-here"
_MOST_GREETING_BYTES: Final = 1 << 20
_MOST_OUTPUT_BYTES: Final = 4 << 20
"""Most output of one command. Our longest is a list of some thousand checkpoints."""
_MOST_ERROR_BYTES: Final = 1 << 16
"""So many last bytes of a host's standard error are read: our longest error is a traceback."""
_LONGEST_REASON: Final = 1000
_ALIVE_EVERY_S: Final = 5
_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
_starting: Final = threading.Lock()
_logins: Final[dict[str, list[str]]] = {}
"""Whom ssh logged in to, by the socket of the connection."""
NO_LOGIN: Final = 255
_NO_PROGRAM: Final = 127
_NO_PACKAGE: Final = re.compile(r"ModuleNotFoundError: No module named '(?!dragoman)([^']+)'")
_OPTIONS: Final = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": str(_ALIVE_EVERY_S),
    "ServerAliveCountMax": str(LOST_AFTER_S // _ALIVE_EVERY_S),
    "ForwardAgent": "no",
    "ClearAllForwardings": "yes",
    "LogLevel": "ERROR",
}


_SHARED: Final = {"ControlMaster": "auto", "ControlPersist": "300"}
"""The connection outlives its last program by 5 minutes at most, if this process is killed."""
_CLOSE_S: Final = 5.0


def ssh_command(host: Host, arguments: Sequence[str], *, socket: str = "none") -> list[str]:
    """The local command that runs these arguments on the host, in the home of its user.

    socket: of the connection to share; "none" logs in anew. A connection that the user's own ssh
    shares is never used: it would be found dead by that one's settings, not by these.
    """
    sharing = {"ControlPath": socket} | ({} if socket == "none" else _SHARED)
    settings = (_OPTIONS | sharing).items()
    options = [word for key, value in settings for word in ("-o", f"{key}={value}")]
    place = ["--", host.login or host.address]
    command = f"echo {BEGIN} && exec {shlex.join(arguments)}"
    return ["ssh", "-T", *options, *_target(host), *place, command]


def how_to_log_in(host: Host) -> str:
    """What a user does who cannot: the command to try is ours, without the options."""
    place = shlex.join(["ssh", *_target(host), host.login or host.address, "true"])
    return f"make `{place}` work from here, without a password and with its host key known"


def start(host: Host, arguments: Sequence[str], *, stderr: int) -> subprocess.Popen[bytes]:
    """Start a program on the host; its standard input and output are pipes.

    Raises MachineError if there is no ssh here.
    """
    try:
        process = subprocess.Popen(
            ssh_command(host, arguments, socket=_socket(host)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
    except OSError as error:
        raise MachineError(
            f"ssh does not start: {error.strerror}",
            place=host.name,
            remedy="install an OpenSSH client here",
        ) from error
    with _starting:
        _started.add(process)
    return process


def _socket(host: Host) -> str:
    """Where this process shares its connection to a host; "none" if there is no room for it."""
    with _starting:  # or two threads that come first would make a folder each
        folder = _sockets()
    if folder is None:
        return "none"
    target = [*_target(host), host.login or host.address]
    socket = str(folder / hashlib.sha256("\0".join(target).encode()).hexdigest()[:16])
    with _starting:
        _logins[socket] = [*_target(host), "--", host.login or host.address]
    return socket


@cache
def _sockets() -> Path | None:
    """A folder for the sockets, removed at exit. Its path is short: a socket's has 107 bytes."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="dragoman-ssh-", dir="/tmp")
    except OSError:
        return None
    atexit.register(folder.cleanup)
    atexit.register(_close_connections)
    return Path(folder.name)


def _close_connections() -> None:
    """End the connections that no program uses any more, so that none waits for its 5 minutes."""
    for socket, target in _logins.items():
        command = ["ssh", "-O", "stop", "-o", f"ControlPath={socket}", *target]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_CLOSE_S, check=False)


def hang_up() -> None:
    """End every ssh that was started here, and with it what it runs on its host."""
    with _starting:  # hosts are spoken to from a thread each
        running = list(_started)
    for process in running:
        process.kill()


def run(host: Host, arguments: Sequence[str], *, timeout_s: float = 60.0) -> str:
    """Run a program on the host and return its output.

    Raises MachineError if it fails, takes too long, or prints more than 4 MiB.
    """
    with (
        tempfile.TemporaryFile() as errors,
        start(host, arguments, stderr=errors.fileno()) as process,
    ):
        try:
            printed = _output(process, host, timeout_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise MachineError(
                f"no answer within {units.DURATION.text(timeout_s)}",
                place=host.name,
                remedy="look at its load",
            ) from error
        except MachineError:
            process.kill()
            raise
        said = read_errors(errors)
    if process.returncode:
        raise failure(host, process.returncode, said)
    _greeting, begun, own = printed.partition(f"{BEGIN}\n".encode())
    if not begun:
        raise not_run(host)
    return own.decode(errors="replace")


def _output(process: subprocess.Popen[bytes], host: Host, timeout_s: float) -> bytearray:
    """Standard output. `communicate` would keep all of it, whatever its size.

    Standard error is a file, since a pipe has no end: ssh's shared connection keeps it open in
    versions of OpenSSH that are still in use.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    printed = bytearray()
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as output:
        output.register(process.stdout, selectors.EVENT_READ)
        piece = b"x"
        while piece:
            ready = output.select(max(0.0, deadline - time.monotonic()))
            if not ready or time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            piece = os.read(process.stdout.fileno(), 1 << 16)
            printed += piece
            if len(printed) > _MOST_OUTPUT_BYTES:
                raise too_much(host)
    process.wait(max(0.0, deadline - time.monotonic()))
    return printed


def skip_greeting(stream: IO[bytes]) -> bool:
    """Read on to where the output of a program begins; False if that is not within 1 MiB."""
    left = _MOST_GREETING_BYTES
    while line := stream.readline(left):
        if line.endswith(f"{BEGIN}\n".encode()):
            return True
        left -= len(line)
    return False


def read_errors(file: IO[bytes]) -> bytes:
    """The end of a file that holds what a host wrote to standard error."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_ERROR_BYTES))
    return file.read(_MOST_ERROR_BYTES)


def too_much(host: Host) -> MachineError:
    """A host sends without end, or lines without end."""
    return MachineError(
        "it sends more than dragoman ever does",
        place=host.name,
        remedy="see what its login shell prints, and whether the host can be trusted",
    )


def not_run(host: Host) -> MachineError:
    """That ssh ended well, and without having run what it was told."""
    return MachineError(
        "its login shell does not run what ssh tells it",
        place=host.name,
        remedy="see the shell's own files there (.bashrc) and command= in .ssh/authorized_keys",
    )


def failure(host: Host, exit_code: int, said: bytes) -> MachineError:
    """What a failed ssh command means; `said` is its standard error."""
    last = _last_line(said)
    if exit_code == NO_LOGIN:
        return MachineError(
            f"ssh cannot log in: {last or 'no answer'}",
            place=host.name,
            remedy=how_to_log_in(host),
        )
    package = _NO_PACKAGE.fullmatch(last)
    if package or exit_code == _NO_PROGRAM:
        missing = f"{package[1]} for {host.python}" if package else host.python
        return MachineError(f"{NO_PYTHON} {missing}", place=host.name, remedy=SET_UP)
    return MachineError(
        f"{FAILED} with exit code {exit_code}: {last}",
        place=host.name,
        remedy="dragoman train RECIPE --hosts ... --dry-run prints what is run",
    )


def _target(host: Host) -> list[str]:
    """Port and user, where they are not what ssh's own configuration says."""
    port = [] if host.port is None else ["-p", str(host.port)]
    user = [] if host.user is None else ["-l", host.user]
    return [*port, *user]


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:_LONGEST_REASON] if lines else ""
