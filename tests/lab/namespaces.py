"""A machine made of namespaces: its own processes, network, name, mounts and shared memory.

Nothing of it has a name outside: when its first process ends, all of it is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

_INIT: Final = Path(__file__).with_name("init.py")
_KINDS: Final = ("--net", "--uts", "--mount", "--pid", "--ipc")
_TOOLS: Final = ("unshare", "nsenter", "ip", "tc", "sshd", "ssh", "ssh-keygen", "mount")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def why_no_lab() -> str:
    """The things that this machine lacks for a lab; empty if it lacks nothing."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"missing {', '.join(missing)} (Debian: openssh-server, iproute2)"
    trial = (
        "ip link add one type veth peer name two && tc qdisc add dev one root tbf "
        "rate 1mbit burst 32kb latency 50ms && ip link add three type bridge"
    )
    tried = subprocess.run(
        ["unshare", *_KINDS, "--fork", "--mount-proc", "sh", "-c", trial],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": _PATH},
        check=False,
    )
    return "" if tried.returncode == 0 else f"namespaces do not work: {tried.stderr.strip()}"


class Machine:
    """Namespaces with one process in them, and a way to run more."""

    def __init__(self, name: str, *, home: Path) -> None:
        self.name = name
        self.home = home
        home.mkdir(parents=True)
        self._unshare = subprocess.Popen(
            ["unshare", *_KINDS, "--fork", "--kill-child", "--mount-proc", sys.executable, _INIT],
            stdin=subprocess.PIPE,
        )
        self.pid = self._first_process()
        self.run(["sh", "-c", f"echo {name} > /proc/sys/kernel/hostname"])
        self.run(["ip", "link", "set", "lo", "up"])

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        check: bool = True,
        timeout_s: float = 60.0,
        env: dict[str, str] | None = None,
        text: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the machine to its end; a failure shows its output."""
        done = subprocess.run(
            self._inside(arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self._environment(env),
            check=False,
        )
        said = f"{self.name}: {list(map(str, arguments))} ended with {done.returncode}"
        assert not check or done.returncode == 0, f"{said}:\n{done.stdout}{done.stderr}"
        return done

    def start(
        self,
        arguments: Sequence[str | Path],
        *,
        env: dict[str, str] | None = None,
        stdout: int | IO[Any] | None = subprocess.DEVNULL,
        stderr: int | IO[Any] | None = subprocess.STDOUT,
    ) -> subprocess.Popen[str]:
        """Start a program on the machine; it ends with the machine at the latest."""
        return subprocess.Popen(
            self._inside(arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=self._environment(env),
        )

    def processes(self) -> dict[int, list[str]]:
        """The words of every process on the machine, by its number there; none of the dead."""
        wanted = Path(f"/proc/{self.pid}/ns/pid").stat().st_ino
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                if entry.name.isdecimal() and (entry / "ns" / "pid").stat().st_ino == wanted:
                    words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    status = (entry / "status").read_text()
                    number = next(line for line in status.splitlines() if line.startswith("NSpid"))
                    if words != [b""]:
                        found[int(number.split()[-1])] = [word.decode() for word in words]
        return found

    def mount(self, *arguments: str | Path) -> None:
        """Mount a file system that only this machine sees."""
        self.run(["mount", *arguments])

    def lay_cable(self, port: str, *, to: Machine, interface: str) -> None:
        """Connect an interface of this machine with one of another; both are made."""
        # From outside of its process namespace, where the other's process has a number.
        inside = ["nsenter", "--target", str(self.pid), "--net", "--"]
        link = ["ip", "link", "add", port, "type", "veth", "peer", "name", interface]
        subprocess.run([*inside, *link, "netns", str(to.pid)], env={"PATH": _PATH}, check=True)

    def power_off(self) -> None:
        """Kill every process of it at once; its network goes, too."""
        self._unshare.kill()
        self.close()

    def close(self) -> None:
        """Take the machine down; harmless when it is down."""
        assert self._unshare.stdin is not None
        with contextlib.suppress(OSError):
            self._unshare.stdin.close()
        try:
            self._unshare.wait(10)
        except subprocess.TimeoutExpired:
            self._unshare.kill()
            self._unshare.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        for _ in range(1000):
            with contextlib.suppress(OSError):
                found = children.read_text().split()
                # Before it becomes our program, it still makes the namespaces ready.
                if found and _program(found[0]) == sys.executable:
                    return int(found[0])
            assert self._unshare.poll() is None, f"{self.name}: the namespaces were refused"
            time.sleep(0.01)
        raise AssertionError(f"{self.name} did not start")

    def _inside(self, arguments: Sequence[str | Path]) -> list[str]:
        enter = ["nsenter", "--target", str(self.pid), *_KINDS, f"--wdns={self.home}", "--"]
        return enter + [str(argument) for argument in arguments]

    def _environment(self, more: dict[str, str] | None) -> dict[str, str]:
        # With PYTHONPATH, the code of another working copy than the installed one is tested.
        names = ("LANG", "TERM", "PYTHONPATH")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        own = {"PATH": _PATH, "HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        return kept | own | (more or {})


def _program(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
