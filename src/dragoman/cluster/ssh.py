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
import ctypes
import hashlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final, Self

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.cluster.hosts import Host

CONNECT_S: Final = 10
LOST_AFTER_S: Final = 15
"""A host that has not answered ssh for this long is lost."""
NO_PYTHON: Final = "there is no"
FAILED: Final = "a command failed"
LOST: Final = "the connection was lost"
LOST_REMEDY: Final = "see whether it runs, and its network"
SILENT: Final = "nothing has passed"
SILENT_REMEDY: Final = (
    "see whether its disk, its network or a program there stands still; if it is only slow, raise "
    "silence_s in hosts.toml"
)
SET_UP: Final = "run dragoman setup with these hosts, or name its python in hosts.toml"
BEGIN: Final = "dragoman-begins-here"
_MOST_ERROR_BYTES: Final = 1 << 16
"""The last bytes of a host's standard error that are read: our longest error is a traceback."""
_LONGEST_REASON: Final = 1000
_ALIVE_EVERY_S: Final = 5
_LIBRARY: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()
_starting: Final = threading.Lock()
_logins: Final[dict[str, list[str]]] = {}
"""The user and host that ssh logged in to, by the socket of the connection."""
_answered: Final[set[tuple[str, ...]]] = set()
"""The hosts that have run something for this process, by the name that ssh gets."""
_greeting: Final[set[tuple[str, ...]]] = set()
"""The hosts whose login shell prints something before a program runs."""
NO_LOGIN: Final = 255
_REFUSED: Final = (
    "Permission denied",
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION",
)
"""Messages of ssh when a host answers and refuses the login."""
_TAR_ENDS: Final = "tar: Exiting with failure status due to previous errors"
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


def ssh_command(host: Host, arguments: Sequence[str], *, socket: str = "none") -> list[str]:
    """The local command that runs these arguments on the host, in the home of its user.

    socket: the path of the socket of a connection to share; "none" logs in separately. A connection
    that the user's own ssh shares is never used: its settings, not ours, would decide when it
    counts as dead.
    """
    command = f"echo {BEGIN} && exec {shlex.join(arguments)}"
    return [*_login(socket), *_place(host), command]


def rsync_command(host: Host, words: Sequence[str], *, socket: str = "none") -> list[str]:
    """The local command that runs rsync with these words over ssh to the host.

    It fails with exit code 30 if nothing passes for the host's `silence_s`. socket: see
    `ssh_command`.
    """
    shell = [*_login(socket), *_target(host), "--"]
    timeout = f"--timeout={max(1, round(host.silence_s))}"
    return ["rsync", "--protect-args", timeout, "--rsh", shlex.join(shell), *words]


def _login(socket: str) -> list[str]:
    """ssh and its options, without the host."""
    sharing = {"ControlPath": socket} | ({} if socket == "none" else _SHARED)
    settings = (_OPTIONS | sharing).items()
    return ["ssh", "-T", *(word for key, value in settings for word in ("-o", f"{key}={value}"))]


def how_to_log_in(host: Host) -> str:
    """Advice for a user who cannot log in: the command to try is ours, without the options."""
    place = shlex.join(["ssh", *_target(host), host.login or host.address, "true"])
    return f"make `{place}` work from here, without a password and with its host key known"


def start(host: Host, arguments: Sequence[str], *, stderr: int) -> subprocess.Popen[bytes]:
    """Start a program on the host; its standard input and output are pipes.

    Raises MachineError if there is no ssh here.
    """
    return start_here(host, ssh_command(host, arguments, socket=shared_socket(host)), stderr=stderr)


def start_here(host: Host, command: Sequence[str], *, stderr: int) -> subprocess.Popen[bytes]:
    """Start a program of this machine that is about a host, so that `hang_up` ends it.

    It ends with the thread that starts it, so that nothing is copied when this process is killed.
    Its standard input and output are pipes. Raises MachineError if it cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # we pass on the terminal's Ctrl-C ourselves
            preexec_fn=_end_with_thread,
        )
    except OSError as error:
        raise MachineError(
            f"{command[0]} does not start: {error.strerror}",
            place=host.name,
            remedy="install an OpenSSH client here",
        ) from error
    with _starting:
        _started.add(process)
    return process


def _end_with_thread() -> None:
    """Ask the kernel for SIGTERM when the thread ends that started this process (Linux)."""
    with contextlib.suppress(AttributeError):
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def shared_socket(host: Host) -> str:
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
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="dragoman-ssh-", dir=_SOCKETS)
    except OSError:
        return None
    atexit.register(folder.cleanup)
    atexit.register(_close_connections)
    return Path(folder.name)


def _close_connections() -> None:
    """End the connections that no program uses any more, without waiting for their 5 minutes."""
    for socket, target in _logins.items():
        command = ["ssh", "-O", "stop", "-o", f"ControlPath={socket}", *target]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_CLOSE_S, check=False)


def hang_up() -> None:
    """End every ssh and rsync that was started here, and the command that it runs on its host."""
    with _starting:  # each host has a thread of its own
        running = list(_started)
    for process in running:
        if process.poll() is None:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program that `start_here` has started, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


class Patience:
    """Inside the block, a program is killed if `passed` is not called for `limit_s`.

    expired: whether that has happened.
    """

    def __init__(self, process: subprocess.Popen[bytes], limit_s: float) -> None:
        self.expired = False
        self._process = process
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def passed(self) -> None:
        """Begin to wait anew: something has passed."""
        self._deadline = time.monotonic() + self._limit_s

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, self._deadline - time.monotonic())):
            if time.monotonic() >= self._deadline:
                self.expired = True
                self._process.kill()
                return


def run(host: Host, arguments: Sequence[str], *, timeout_s: float = 60.0) -> str:
    """Run a program on the host and return its output.

    Raises MachineError if it fails or takes too long.
    """
    limit = units.DURATION.text(timeout_s)
    slow = MachineError(f"no answer within {limit}", place=host.name, remedy="look at its load")
    with running(host, arguments, limit_s=timeout_s, slow=slow) as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        printed = process.stdout.read()
    return printed.decode(errors="replace")


@contextlib.contextmanager
def running(
    host: Host, arguments: Sequence[str], *, limit_s: float, slow: MachineError
) -> Iterator[tuple[subprocess.Popen[bytes], Patience]]:
    """Run a program on the host, which has succeeded after the block.

    Raises `slow` if the patience with it ends, and MachineError if it does not begin or fails. Its
    failure takes the place of an EOFError or BrokenPipeError in the block.
    """
    with (
        tempfile.TemporaryFile() as errors,
        start(host, arguments, stderr=errors.fileno()) as process,
        Patience(process, limit_s) as patience,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            begun = skip_greeting(host, process.stdout)
            cut_off: OSError | EOFError | None = None
            try:
                if begun:
                    yield process, patience
                process.stdin.close()
            except (BrokenPipeError, EOFError) as error:
                cut_off = error
                with contextlib.suppress(OSError):  # it still has what nobody takes
                    process.stdin.close()
            process.wait()
        except BaseException:  # a signal, too: ssh must be waited for
            process.kill()
            raise
        if patience.expired:
            raise slow
        if process.returncode:
            raise failure(host, process.returncode, read_errors(errors))
        if cut_off is not None:
            raise MachineError(f"a copy broke off: {cut_off}", place=host.name, remedy="try again")
    if not begun:
        raise MachineError(
            "its login shell does not run the command that ssh sends",
            place=host.name,
            remedy="check its start-up files there (.bashrc) and command= in .ssh/authorized_keys",
        )


def skip_greeting(host: Host, stream: IO[bytes]) -> bool:
    """Read on to the beginning of a program's output; False if it does not come."""
    place, end = tuple(_place(host)), f"{BEGIN}\n".encode()
    for line in stream:
        if line != end:
            _greeting.add(place)
        if line.endswith(end):
            _answered.add(place)
            return True
    return False


def greets(host: Host) -> bool:
    """Whether the host's login shell has printed something before a program's output."""
    return tuple(_place(host)) in _greeting


def read_errors(file: IO[bytes]) -> bytes:
    """The end of a file that holds a host's standard error."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_ERROR_BYTES))
    return file.read(_MOST_ERROR_BYTES)


def odd_answer(host: Host, problem: str) -> MachineError:
    """The error for an answer that no host of ours sends."""
    return MachineError(problem, place=host.name, remedy="see what its login shell prints")


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
        remedy="see the commands: dragoman train RECIPE --hosts HOSTS --dry-run",
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
    lines = said.decode(errors="replace").replace(_TAR_ENDS, "").strip().splitlines()
    return lines[-1].strip()[:_LONGEST_REASON] if lines else ""
