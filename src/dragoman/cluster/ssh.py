"""OpenSSH as a list of arguments: runs programs on another host and notices their end.

Host keys are verified, no password is asked for, and no key leaves this machine. A remote command
is a list of words, quoted for the one shell that sshd starts: nothing else interprets it. That
shell may print a greeting (an `echo` in a .bashrc), so it prints a marker of ours where the
greeting ends and the program's output begins.

This process logs in to each host once. Further programs on the host share that connection
(ControlMaster of ssh_config(5)); if it is lost, the next program logs in again.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import os
import re
import select
import shlex
import stat
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.files import try_lock
from dragoman.cluster.hosts import Host

CONNECT_S: Final = 10
LOST_AFTER_S: Final = 15
"""A host that has not answered ssh for this long is lost."""
NO_PYTHON: Final = "there is no"
FAILED: Final = "a command failed"
LOST: Final = "the connection was lost"
LOST_REMEDY: Final = "see whether it runs, and its network"
SILENT: Final = "hardly a byte has passed"
SILENT_REMEDY: Final = (
    "see whether its disk, its network or a program there stands still; if it is only slow, raise "
    "silence_s in hosts.toml"
)
SET_UP: Final = "run dragoman setup --hosts, or name its python in hosts.toml"
BEGIN: Final = "dragoman-begins-here"
_MOST_GREETING_BYTES: Final = 1 << 20
_MOST_OUTPUT_BYTES: Final = 4 << 20
"""Most output of one command. Our longest is a list of some thousand checkpoints."""
_MOST_ERROR_BYTES: Final = 1 << 16
"""The last bytes of a host's standard error that are read: our longest error is a traceback."""
_HARDLY_BYTES: Final = 1 << 10
"""Fewer bytes within the time that a host may be silent count as silence."""
_LONGEST_REASON: Final = 1000
_ALIVE_EVERY_S: Final = 5
_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
_starting: Final = threading.Lock()
_logins: Final[dict[str, list[str]]] = {}
"""The user and host that ssh logged in to, by the socket of the connection."""
_answered: Final[set[tuple[str, ...]]] = set()
"""The hosts that have run something for this process, by the name that ssh gets."""
NO_LOGIN: Final = 255
_REFUSED: Final = (
    "Permission denied",
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION",
)
"""Messages of ssh when a host answers and refuses the login."""
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
_SOCKETS: Final = Path("/tmp")  # noqa: S108  # a folder in it is ours alone
_SOCKETS_PREFIX: Final = "dragoman-ssh-"
_LOCK: Final = "lock"


def ssh_command(host: Host, arguments: Sequence[str], *, socket: str = "none") -> list[str]:
    """The local command that runs these arguments on the host, in the home of its user.

    socket: the path of the socket of a connection to share; "none" logs in separately. A connection
    that the user's own ssh shares is never used: its settings, not ours, would decide when it
    counts as dead.
    """
    sharing = {"ControlPath": socket} | ({} if socket == "none" else _SHARED)
    settings = (_OPTIONS | sharing).items()
    options = [word for key, value in settings for word in ("-o", f"{key}={value}")]
    command = f"echo {BEGIN} && exec {shlex.join(arguments)}"
    return ["ssh", "-T", *options, *_place(host), command]


def how_to_log_in(host: Host) -> str:
    """Advice for a user who cannot log in: the command to try is ours, without the options."""
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
            start_new_session=True,  # we pass on the terminal's Ctrl-C ourselves
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
    """The socket of the shared connection to a host; "none" if there is no folder for it."""
    with _starting:  # otherwise two threads could each make a folder
        folder = _sockets()
    if folder is None:
        return "none"
    place = _place(host)
    socket = str(folder / hashlib.sha256("\0".join(place).encode()).hexdigest()[:16])
    with _starting:
        _logins[socket] = place
    return socket


@cache
def _sockets() -> Path | None:
    """A folder for the sockets, removed at exit; None if it cannot be made.

    Its path is short, as a socket's may have at most 107 bytes.

    A process that is killed leaves its folder, and the next process removes it: a lock in it shows
    whether its process still runs.
    """
    remove_old_sockets(_SOCKETS)
    try:
        folder = tempfile.TemporaryDirectory(prefix=_SOCKETS_PREFIX, dir=_SOCKETS)
        lock = os.open(Path(folder.name) / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try_lock(lock)  # as long as this process runs
    except OSError:
        return None
    atexit.register(folder.cleanup)
    atexit.register(_close_connections)
    return Path(folder.name)


def remove_old_sockets(where: Path) -> None:
    """Remove the folders of sockets whose process has ended without removing them.

    Other users can write to the parent folder. So it removes only files in folders of this user
    that no other user can enter, and follows no link.
    """
    for path in where.glob(f"{_SOCKETS_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, folder)
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
                continue
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            stack.callback(os.close, lock)
            if not try_lock(lock):
                continue
            for name in os.listdir(folder):  # noqa: PTH208  # by descriptor, it cannot be exchanged
                os.unlink(name, dir_fd=folder)
            path.rmdir()


def _close_connections() -> None:
    """End the connections that no program uses any more, without waiting for their 5 minutes."""
    for socket, target in _logins.items():
        command = ["ssh", "-O", "stop", "-o", f"ControlPath={socket}", *target]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_CLOSE_S, check=False)


def hang_up() -> None:
    """End every ssh that was started here, and the command that it runs on its host."""
    with _starting:  # each host has a thread of its own
        running = list(_started)
    for process in running:
        process.kill()


def run(host: Host, arguments: Sequence[str], *, timeout_s: float = 60.0) -> str:
    """Run a program on the host and return its output.

    Raises MachineError if it fails, takes too long, or prints more than 4 MiB.
    """
    with transfer(host, arguments, timeout_s=timeout_s) as program:
        program.end_input()
        printed = program.output.read(_MOST_OUTPUT_BYTES + 1)
        if len(printed) > _MOST_OUTPUT_BYTES:
            raise odd_answer(host)
    return printed.decode(errors="replace")


class _Patience:
    """Waits for the pipes of one program, and fails if that takes too long.

    Only waiting counts: a disk of this machine may be slow, and time asleep is not waiting.
    timeout_s: for all waits together; None: the host's `silence_s`, for the waits for each KiB.
    """

    def __init__(self, host: Host, timeout_s: float | None) -> None:
        self._host = host
        self._is_for_all = timeout_s is not None
        self._waited_s = 0.0
        self._passed_bytes = 0
        self.limit_s = host.silence_s if timeout_s is None else timeout_s

    def wait_for(self, pipe: IO[bytes], event: int) -> None:
        """Wait until a pipe has something or room; raises MachineError if that takes too long."""
        waiting = select.poll()
        waiting.register(pipe, event)
        began = time.monotonic()
        ready = waiting.poll(max(0.0, self.limit_s - self._waited_s) * 1000)
        self._waited_s += time.monotonic() - began
        if not ready or self._waited_s > self.limit_s:
            raise self.over()

    def passed(self, num_bytes: int) -> None:
        """Count bytes that were read or written."""
        self._passed_bytes += num_bytes
        if self._passed_bytes >= _HARDLY_BYTES and not self._is_for_all:
            self._waited_s, self._passed_bytes = 0.0, 0

    def over(self) -> MachineError:
        """The error for a program that has used up its time."""
        limit = units.DURATION.text(self.limit_s)
        if self._is_for_all:
            problem, remedy = f"no answer within {limit}", "look at its load"
        else:
            problem, remedy = f"{SILENT} for {limit}", SILENT_REMEDY
        return MachineError(problem, place=self._host.name, remedy=remedy)


class _HostOutput(io.RawIOBase):
    """The output of a host's program; reading raises MachineError if the host is silent."""

    def __init__(self, pipe: IO[bytes], patience: _Patience) -> None:
        self._pipe = pipe
        self._patience = patience

    def readable(self) -> bool:
        """Always True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes that have come, as many as fit; returns their number, 0 at the end."""
        self._patience.wait_for(self._pipe, select.POLLIN)
        num_bytes = os.readv(self._pipe.fileno(), [buffer])
        self._patience.passed(num_bytes)
        return num_bytes


class Transfer:
    """A program on a host, with input and output of any size."""

    def __init__(self, host: Host, process: subprocess.Popen[bytes], patience: _Patience) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._host = host
        self._process = process
        self._patience = patience
        self._input = process.stdin
        os.set_blocking(self._input.fileno(), False)
        self.output = io.BufferedReader(_HostOutput(process.stdout, patience))

    def write(self, content: bytes) -> int:
        """Write all of this to the program; raises MachineError if the host reads too slowly.

        A program that has ended needs no input: its exit code shows why it ended.
        """
        left = memoryview(content)
        with contextlib.suppress(BrokenPipeError):
            while left:
                self._patience.wait_for(self._input, select.POLLOUT)
                with contextlib.suppress(BlockingIOError):
                    taken = os.write(self._input.fileno(), left)
                    self._patience.passed(taken)
                    left = left[taken:]
        return len(content)

    def end_input(self) -> None:
        """Show the program the end of its input."""
        self._input.close()

    def end(self) -> None:
        """Wait for the end of a program that gets no more input and has little output left.

        Raises MachineError if it has more than 1 MiB left, or does not end in time.
        """
        self.end_input()
        deadline = time.monotonic() + self._patience.limit_s
        left = _MOST_GREETING_BYTES
        while piece := self.output.read1(1 << 16):
            left -= len(piece)
            if left < 0:
                raise odd_answer(self._host)
            if time.monotonic() > deadline:
                raise self._patience.over()
        self.wait()

    def wait(self) -> int:
        """The exit code of ssh; raises MachineError if it does not end."""
        try:
            return self._process.wait(self._patience.limit_s)
        except subprocess.TimeoutExpired:
            raise self._patience.over() from None


@contextlib.contextmanager
def transfer(
    host: Host, arguments: Sequence[str], *, first: bytes = b"", timeout_s: float | None = None
) -> Iterator[Transfer]:
    """Run a program on the host with large input or output; after the block it has succeeded.

    first: the beginning of its input.
    timeout_s: the limit of the whole; None: it fails if fewer than 1 KiB pass within the host's
        `silence_s`.
    Raises MachineError if it does not begin, fails, takes longer, or has more than 1 MiB of output
    left after the block.
    """
    with (
        tempfile.TemporaryFile() as errors,
        start(host, arguments, stderr=errors.fileno()) as process,
    ):
        made = Transfer(host, process, _Patience(host, timeout_s))
        try:
            made.write(first)
            begun = skip_greeting(host, made.output)
            try:
                if begun:
                    yield made
                made.end()
            except EOFError:  # ssh may have failed, which `wait` reports
                if not made.wait():
                    raise
        except BaseException:  # a signal, too: ssh must be waited for
            process.kill()
            raise
        said = read_errors(errors)
    if process.returncode:
        raise failure(host, process.returncode, said)
    if not begun:
        raise MachineError(
            "its login shell does not run the command that ssh sends",
            place=host.name,
            remedy="check its start-up files there (.bashrc) and command= in .ssh/authorized_keys",
        )


def skip_greeting(host: Host, stream: IO[bytes]) -> bool:
    """Read on to the beginning of a program's output; False if it does not come within 1 MiB."""
    left = _MOST_GREETING_BYTES
    while line := stream.readline(left):
        if line.endswith(f"{BEGIN}\n".encode()):
            _answered.add(tuple(_place(host)))
            return True
        left -= len(line)
    return False


def read_errors(file: IO[bytes]) -> bytes:
    """The end of a file that holds a host's standard error."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_ERROR_BYTES))
    return file.read(_MOST_ERROR_BYTES)


def odd_answer(host: Host, problem: str = "it sends more than dragoman ever does") -> MachineError:
    """The error for an answer that no agent sends, such as a line without end."""
    return MachineError(
        problem,
        place=host.name,
        remedy="see what its login shell prints, and whether the host can be trusted",
    )


def failure(host: Host, exit_code: int, said: bytes) -> MachineError:
    """The error for a failed ssh command; `said` is its standard error."""
    last = _last_line(said)
    if exit_code == NO_LOGIN and has_answered(host) and not any(word in last for word in _REFUSED):
        reason = last or f"no answer for {units.DURATION.text(LOST_AFTER_S)}, or it was closed"
        return MachineError(f"{LOST}: {reason}", place=host.name, remedy=LOST_REMEDY)
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
        remedy="dragoman train RECIPE --hosts ... --dry-run prints the commands",
    )


def has_answered(host: Host) -> bool:
    """Whether the host has run anything for this process."""
    return tuple(_place(host)) in _answered


def _place(host: Host) -> list[str]:
    """The host and how to reach it, as the last options of ssh."""
    return [*_target(host), "--", host.login or host.address]


def _target(host: Host) -> list[str]:
    """Port and user, if they differ from ssh's own configuration."""
    port = [] if host.port is None else ["-p", str(host.port)]
    user = [] if host.user is None else ["-l", host.user]
    return [*port, *user]


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:_LONGEST_REASON] if lines else ""
