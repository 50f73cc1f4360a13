"""Several hosts on one machine: own names, own sshd, own rate-limited ports on one switch.

    with open_lab(tmp_path, ["alpha", "beta"], rate="100mbit") as lab:
        lab.controller.run(["ssh", "alpha", "hostname"])

The controller is the user's machine: it is on the same switch, its port has no limit, and it holds
the only private key. Hosts know each other's names, and the controller knows their host keys.
`make lab` shows all of it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lab.namespaces import Machine

NETWORK: Final = "10.77.0"
PORT: Final = 22
INTERFACE: Final = "eth0"
CONTROLLER: Final = "controller"
BUCKET_BYTES: Final = 256 * 1024
"""Bytes that a limited port lets through at once before the limit applies."""


class LabHost(Machine):
    """One host, its address and its port on the switch."""

    def __init__(self, name: str, *, home: Path, address: str, switch: Machine) -> None:
        super().__init__(name, home=home)
        self.address = address
        self._switch = switch
        self._port = f"to-{name}"
        switch.lay_cable(self._port, to=self, interface=INTERFACE)
        switch.run(["ip", "link", "set", self._port, "master", "bridge", "up"])
        self.run(["ip", "address", "add", f"{address}/24", "dev", INTERFACE])
        self.run(["ip", "link", "set", INTERFACE, "up"])

    def limit(self, rate: str | None, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        """Limit its port to this rate each way, in tc's form (100mbit); None removes the limit."""
        self.limit_sending(rate, bucket_bytes=bucket_bytes)
        self.limit_receiving(rate, bucket_bytes=bucket_bytes)

    def limit_sending(
        self, rate: str | None, *, bucket_bytes: int = BUCKET_BYTES, queue: str = "50ms"
    ) -> None:
        """Limit its sending rate alone; `queue` is the time that bytes wait at most."""
        _limit(self, INTERFACE, rate, bucket_bytes, queue)

    def limit_receiving(self, rate: str | None, *, bucket_bytes: int = BUCKET_BYTES) -> None:
        """Limit its receiving rate alone."""
        _limit(self._switch, self._port, rate, bucket_bytes, "50ms")

    def plug(self, *, plugged: bool) -> None:
        """Pull its cable out of the switch, or put it back."""
        self._switch.run(["ip", "link", "set", self._port, "up" if plugged else "down"])

    def restart_sshd(self, more: str) -> None:
        """End its sshd, and start one with more lines in its configuration."""
        running = [pid for pid, words in self.processes().items() if words[0].endswith("sshd")]
        running += [pid for pid, words in self.processes().items() if words[0].startswith("sshd:")]
        self.run(["kill", *map(str, running)], check=False)
        for _ in range(500):
            if f"{self.address}:{PORT}" not in self.run(["ss", "-Hltn"]).stdout:
                break
            time.sleep(0.02)
        _start_sshd(self, more)

    def sent_bytes(self) -> int:
        """Bytes that its interface has sent, including headers."""
        return self._counted("tx_bytes")

    def received_bytes(self) -> int:
        """Bytes that its interface has received, including headers."""
        return self._counted("rx_bytes")

    def _counted(self, counter: str) -> int:
        path = f"/sys/class/net/{INTERFACE}/statistics/{counter}"
        return int(self.run(["cat", path]).stdout)


def _limit(machine: Machine, device: str, rate: str | None, bucket_bytes: int, queue: str) -> None:
    if rate is None:
        machine.run(["tc", "qdisc", "delete", "dev", device, "root"], check=False)
    else:
        shape = ["tbf", "rate", rate, "burst", str(bucket_bytes), "latency", queue]
        machine.run(["tc", "qdisc", "replace", "dev", device, "root", *shape])


class Lab:
    """The hosts by their order, and the controller."""

    def __init__(self, hosts: list[LabHost], *, controller: LabHost) -> None:
        self.hosts = hosts
        self.controller = controller

    def host(self, name: str) -> LabHost:
        """The host of this name."""
        return next(host for host in self.hosts if host.name == name)

    def write_hosts_file(self, path: Path, *, slots: Sequence[int]) -> Path:
        """A hosts.toml with this many ranks on each host; like a user's it names no interface."""
        entries = [
            f'[[host]]\nname = "{host.name}"\naddress = "{host.address}"\nslots = {count}\n'
            for host, count in zip(self.hosts, slots, strict=True)
        ]
        defaults = f'[defaults]\nuser = "root"\nport = {PORT}\npython = "{sys.executable}"\n'
        path.write_text("\n".join([defaults, *entries]))
        return path


@contextmanager
def open_lab(directory: Path, names: Sequence[str], *, rate: str | None) -> Iterator[Lab]:
    """A lab with hosts of these names, each behind a port of this rate; removed at the end."""
    with ExitStack() as stack:
        switch = stack.enter_context(Machine("switch", home=directory / "switch"))
        switch.run(["ip", "link", "add", "bridge", "type", "bridge"])
        switch.run(["ip", "link", "set", "bridge", "up"])
        hosts = [
            stack.enter_context(
                LabHost(
                    name,
                    home=directory / name,
                    address=f"{NETWORK}.{number}",
                    switch=switch,
                )
            )
            for number, name in enumerate([CONTROLLER, *names], start=1)
        ]
        for host in hosts:
            _name_everyone(host, hosts)
        controller, *others = hosts
        _let_in(controller, others)
        for host in others:
            host.limit(rate)
            _start_sshd(host)
        yield Lab(others, controller=controller)


def _name_everyone(host: LabHost, hosts: Sequence[LabHost]) -> None:
    """Its own hosts file and home; the machine below it keeps its own."""
    names = "".join(f"{one.address} {one.name}\n" for one in hosts)
    known = host.home / "etc-hosts"
    known.write_text(f"127.0.0.1 localhost\n{names}")
    users = host.home / "etc-passwd"
    users.write_text(
        f"root:x:0:0:root:{host.home}:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    host.mount("--bind", known, "/etc/hosts")
    host.mount("--bind", users, "/etc/passwd")
    host.mount("-t", "tmpfs", "-o", "mode=755", "lab-run", "/run")
    host.mount("-t", "tmpfs", "lab-shm", "/dev/shm")
    host.mount("-t", "sysfs", "lab-sys", "/sys")


def _let_in(controller: LabHost, hosts: Sequence[LabHost]) -> None:
    """Give the controller a key that the hosts accept, and the public keys of the hosts."""
    private = controller.home / ".ssh" / "id_ed25519"
    for machine in (controller, *hosts):
        (machine.home / ".ssh").mkdir(mode=0o700)
    _make_key(private)
    known = []
    for host in hosts:
        _make_key(host.home / "host-key")
        (host.home / ".ssh" / "authorized_keys").write_text(_public(private))
        kind, key, *_ = _public(host.home / "host-key").split()
        known += [f"{name} {kind} {key}\n" for name in (host.name, host.address)]
    (controller.home / ".ssh" / "known_hosts").write_text("".join(known))


def _make_key(path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)], check=True
    )


def _public(private: Path) -> str:
    return private.with_name(f"{private.name}.pub").read_text()


def _start_sshd(host: LabHost, more: str = "") -> None:
    config = host.home / "sshd_config"
    config.write_text(
        f"ListenAddress {host.address}:{PORT}\n"
        f"HostKey {host.home / 'host-key'}\n"
        "PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        # The lab lives in a temporary directory, whose parents anyone may write to.
        f"StrictModes no\n{more}\n"
    )
    host.run(["mkdir", "-p", "/run/sshd"])
    with (host.home / "sshd.log").open("w") as log:
        host.start(["/usr/sbin/sshd", "-D", "-e", "-f", config], stdout=log)
    for _ in range(500):
        if f"{host.address}:{PORT}" in host.run(["ss", "-Hltn"]).stdout:
            return
        time.sleep(0.02)
    raise AssertionError(f"sshd of {host.name} does not listen")
