"""The machines of a run: hosts.toml, or `10.0.0.1:2,10.0.0.2:1` on the command line.

    currency = "USD"

    [defaults]                     # for every host that does not say otherwise
    user = "ubuntu"
    interface = "ens5"
    price_per_hour = 3.06

    [[host]]
    address = "10.0.0.1"
    gpus = 2

    [[host]]
    address = "10.0.0.2"
    gpus = 1

Ranks count from the first host. Hosts may differ in all but two things: either all compute on GPUs
or all on their processors (`slots`), and all prices are in one currency.
"""

from __future__ import annotations

import json
import re
import shlex
import socket
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.files import write_whole
from dragoman.base.settings import Section
from dragoman.recipe.recipe import from_toml, from_validation, line_of

# No leading dash: a name is an argument of ssh, which would read it as an option.
_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_ADDRESS: Final = _NAME
_FOLDER_NAME: Final = r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$"
_LOGIN: Final = r"^([A-Za-z0-9:][A-Za-z0-9:._%-]*)?$"
_USER: Final = r"^[A-Za-z_][A-Za-z0-9._-]*$"
_CURRENCY: Final = r"^[A-Z]{3}$"
DEFAULT_CURRENCY: Final = "USD"
HOSTS_FILE: Final = "hosts.json"
"""A file in a run's directory: the hosts that the run was last trained on."""
_SUFFIXES: Final = (".toml", ".tml", ".json", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".txt")
"""A text with one of these endings is a file's name, perhaps mistyped, and not a host's."""
_MOST_PRICE: Final = 1e9
"""The highest price of a host for an hour; a larger one is a typing mistake."""
_INTERFACE: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,14}$"
_PATH: Final = r"^[\w./][\w./+@ -]*$"
_INLINE: Final = re.compile(
    r"(?:(?P<user>[A-Za-z_][A-Za-z0-9._-]*)@)?"
    r"(?P<address>[A-Za-z0-9][A-Za-z0-9._-]{0,254})(?::(?P<gpus>[0-9]{1,4}))?"
)
_INLINE_FORM: Final = "write address:gpus with commas between, such as 10.0.0.1:2,10.0.0.2:1"
_LOOKS: Final = {
    "address": "an IPv4 address or a name, such as 10.0.0.1; the port of ssh is port = 2222",
    "login": "a host for ssh: a name or an address, without user and port",
    "user": "the name of a user, such as ubuntu",
    "name": "letters, digits, dots, dashes and underscores, as in the name of a file",
    "interface": "the name of a network interface, such as ens5",
    "python": "a path, absolute or below the home of the user",
    "folder": "a path, absolute or below the home of the user",
    "currency": "a currency of three letters, such as USD",
}
"""For each field with a pattern, the required form in words, for an error."""


class HostDefaults(Section):
    """Settings that hosts may have in common."""

    user: str | None = Field(default=None, pattern=_USER)
    """The user that ssh logs in as; from ssh's own configuration if not set."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """The port of sshd; from ssh's own configuration if not set."""
    interface: str | None = Field(default=None, pattern=_INTERFACE)
    """The network interface of the collectives; the one that routes to the peers if not set."""
    gpu: str | None = None
    """Kind of GPU, as `dragoman plan` names it: v100, a100, ..."""
    gpu_link: str | None = None
    """The measured rate of an all-reduce between its GPUs, for `dragoman plan`, such as 200GB/s; if
    not set, the usual one for the kind."""
    price_per_hour: float | None = Field(default=None, ge=0.0, le=_MOST_PRICE)
    """Price of the whole machine for an hour."""
    currency: str | None = Field(default=None, pattern=_CURRENCY)
    """Currency of the price, if the file does not give one at the top; all hosts have the same."""
    spot_price_per_hour: float | None = Field(default=None, ge=0.0, le=_MOST_PRICE)
    """Price of a machine that the provider may take away; replaces price_per_hour if set."""
    interruption_hours: float | None = Field(default=None, ge=0.01, le=1e6)
    """Mean hours until the provider takes the machine away; if not set, that does not happen."""
    replacement_s: float = Field(default=300.0, ge=0.0, le=1e7)
    """Seconds until another machine replaces it."""
    python: str = Field(default=".dragoman/venv/bin/python", pattern=_PATH, max_length=1000)
    """A Python there that has torch; relative to the home of `user`. `dragoman setup` makes it."""
    folder: str = Field(default=".dragoman", pattern=_PATH, max_length=1000)
    """The folder for code, data and runs there; a folder that hosts share is filled once."""
    silence_s: float = Field(default=120.0, ge=1.0, le=86_400.0)
    """Seconds that a host may neither send nor receive during a transfer of files."""


class Host(HostDefaults):
    """One machine. It runs one rank on each of its GPUs, or `slots` ranks on its CPU."""

    address: str = Field(pattern=_ADDRESS, max_length=255)
    """The address for its peers: an IPv4 address or a name of the private network."""
    login: str = Field(default="", pattern=_LOGIN, max_length=255)
    """The address for ssh from here, or a name of ssh's own configuration; `address` if not set."""
    name: str = Field(default="", pattern=_FOLDER_NAME, max_length=255)
    """The name in tables and logs; `address` if not set."""
    gpus: int = Field(default=0, ge=0, le=64)
    slots: int = Field(default=0, ge=0, le=1024)

    @property
    def paid_per_hour(self) -> float | None:
        """The price that is paid: the spot price if there is one."""
        spot = self.spot_price_per_hour
        return self.price_per_hour if spot is None else spot

    @property
    def ranks(self) -> int:
        """Processes that train on it."""
        return self.gpus or self.slots


class Hosts(Section):
    """Every machine of a run, in the order of their ranks."""

    host: tuple[Host, ...] = Field(min_length=1)
    currency: str = Field(default=DEFAULT_CURRENCY, pattern=_CURRENCY)
    defaults: HostDefaults = Field(default_factory=HostDefaults)

    @property
    def ranks_per_host(self) -> tuple[int, ...]:
        """Ranks of each host."""
        return tuple(host.ranks for host in self.host)

    @property
    def price_per_hour(self) -> float | None:
        """The price of all hosts together; None if the price of one is not known."""
        prices = [host.paid_per_hour for host in self.host if host.paid_per_hour is not None]
        return sum(prices) if len(prices) == len(self.host) else None


class _HostsRecord(Hosts):
    """The hosts as a run's directory records them."""

    left: bool = False
    """Whether the run has been trained on this machine since."""


def is_this_machine(hosts: Hosts) -> bool:
    """Whether this machine is the only host."""
    return len(hosts.host) == 1 and _address(hosts.host[0]) == "localhost"


def load_hosts(text: str) -> Hosts:
    """The hosts of a file, if it exists or the text ends like its name; else of the inline form.

    Defaults are filled in, so every host has all of its settings. Raises ConfigError, which names
    the file and line, or the word of the inline form, the problem and the remedy.
    """
    if text.strip().lower().endswith(_SUFFIXES) or _is_file(text):
        return _from_file(Path(text))
    return _from_words(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a list of many hosts may be longer than a file name may be
        return False


def record_hosts(run: Path, hosts: Hosts) -> None:
    """Write the hosts of a run into its directory, for `recorded_hosts`.

    Raises MachineError if the run's directory cannot be written to; an old record then stays.
    """
    with disk_errors_named(run):
        write_whole(run / HOSTS_FILE, hosts.model_dump_json(indent=1))


def leave_hosts(run: Path) -> None:
    """Note that a run goes on without its hosts; their prices stay known.

    Raises MachineError if the run's directory cannot be written to.
    """
    with suppress(CheckpointError):
        record = _record(run)
        if record is not None and not record.left:
            record_hosts(run, record.model_copy(update={"left": True}))


def recorded_hosts(run: Path) -> Hosts | None:
    """The hosts that a run was last trained on, if it ever was on hosts.

    Raises CheckpointError if the record is there and cannot be read.
    """
    record = _record(run)
    return record and Hosts.model_validate(record.model_dump(exclude={"left"}))


def hosts_to_resume_on(run: Path) -> Hosts | None:
    """The hosts to resume a run on; None if it was last trained on this machine, or never on hosts.

    Raises CheckpointError if the record is there and cannot be read.
    """
    record = _record(run)
    return None if record is None or record.left else recorded_hosts(run)


def _record(run: Path) -> _HostsRecord | None:
    file = run / HOSTS_FILE
    try:
        return _HostsRecord.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(
            "does not say which hosts the run was trained on",
            place=file,
            remedy=f"name them again: dragoman train {shlex.quote(str(run))} --hosts HOSTS",
        ) from error


def _from_words(text: str) -> Hosts:
    hosts = []
    place = f"hosts {text if text.isprintable() else ascii(text)}"
    for word in text.split(","):
        match = _INLINE.fullmatch(word.strip())
        if match is None:
            raise ConfigError(f"{word.strip()!r} is not a host", place=place, remedy=_INLINE_FORM)
        address = match["address"]
        gpus = int(match["gpus"] or 1)
        if not 1 <= gpus <= 64:
            raise ConfigError(
                f"{word.strip()!r} has {gpus} GPUs", place=place, remedy="give 1 to 64"
            )
        hosts.append(Host(address=address, name=address, gpus=gpus, user=match["user"]))
    _check_unique(hosts, places=[place] * len(hosts))
    return Hosts(host=tuple(hosts))


def _from_file(file: Path) -> Hosts:
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"cannot read the hosts: {reason}",
            place=file,
            remedy=f"name a hosts.toml, or {_INLINE_FORM}",
        ) from error
    try:
        values = tomllib.loads(text)
        parsed = Hosts.model_validate_json(json.dumps(values, default=str), strict=True)
    except tomllib.TOMLDecodeError as error:
        raise from_toml(error, place=str(file)) from error
    except ValidationError as error:
        raise _explained(error, file=file, text=text) from error
    places = [f"{file}:{line_of(text, ('host', n)) or 1}" for n in range(len(parsed.host))]
    hosts = [_filled(host, parsed.defaults) for host in parsed.host]
    for host, place in zip(hosts, places, strict=True):
        _check(host, place=place)
    _check_unique(hosts, places=places)
    stated = parsed.currency if "currency" in parsed.model_fields_set else None
    currency = _one_currency(hosts, stated, places=places)
    return parsed.model_copy(update={"host": tuple(hosts), "currency": currency})


def _one_currency(hosts: list[Host], stated: str | None, *, places: list[str]) -> str:
    """The currency of all prices. Raises ConfigError, which names the first price in another."""
    known = [(stated, "the file's")] if stated else []
    for host, place in zip(hosts, places, strict=True):
        own = host.currency or stated or DEFAULT_CURRENCY
        if host.paid_per_hour is None and host.currency is None:
            continue
        if known and own != known[0][0]:
            currency, whose = known[0]
            raise ConfigError(
                f"the price of {host.name} is in {own}, {whose} in {currency}",
                place=place,
                remedy="give all prices in one currency: sums need one",
            )
        known.append((own, f"that of {host.name}"))
    return known[0][0] if known else DEFAULT_CURRENCY


def _explained(error: ValidationError, *, file: Path, text: str) -> ConfigError:
    if all(detail["loc"] == ("host",) for detail in error.errors()):
        return ConfigError(
            "it lists no host",
            place=file,
            remedy='write [[host]] and below it address = "10.0.0.1" and gpus = 1, for each host',
        )
    explained = from_validation(error, Hosts, file=file, text=text, overrides={})
    problem, pattern, _ = explained.problem.partition(": must match pattern")
    if not pattern:
        return explained
    key = problem.partition(" = ")[0].rpartition(".")[2]
    wrong = f"{problem} is not usable"
    return ConfigError(wrong, place=explained.place, remedy=f"write {_LOOKS[key]}")


def _filled(host: Host, defaults: HostDefaults) -> Host:
    """The host, with the defaults for settings that it leaves out."""
    said = host.model_dump(exclude_unset=True)
    values = defaults.model_dump(exclude_unset=True) | {"name": host.address} | said
    return Host(**values)


def _check(host: Host, *, place: str) -> None:
    if bool(host.gpus) == bool(host.slots):
        problem = "neither gpus nor slots is set" if not host.ranks else "gpus and slots are set"
        remedy = "write gpus = 2 (a rank on each GPU) or slots = 2 (ranks on the CPU)"
        raise ConfigError(f"host {host.name}: {problem}", place=place, remedy=remedy)
    if host.spot_price_per_hour is not None and host.interruption_hours is None:
        raise ConfigError(
            f"host {host.name}: it has a spot price, but no mean time to an interruption",
            place=place,
            remedy="set the mean of the provider, or of your runs: interruption_hours = 12",
        )


def _check_unique(hosts: list[Host], *, places: list[str]) -> None:
    """Raises ConfigError if two entries are one machine or have one name; it names both."""
    for key, text_of in _UNIQUE.items():
        seen: dict[str, int] = {}
        for number, host in enumerate(hosts):
            text = text_of(host)
            first = seen.setdefault(text.lower(), number)  # host names ignore case
            if first != number:
                problem = f"{key} {text} occurs twice"
                if key == "address" and hosts[first].address.lower() != host.address.lower():
                    problem = f"{hosts[first].address} and {host.address} are one machine, this one"
                raise ConfigError(
                    f"{problem}, in entries {first + 1} and {number + 1}",
                    place=places[number],
                    remedy="give each machine one entry, with all of its GPUs",
                )


def _login(host: Host) -> str:
    """The login for ssh. Behind a relay, the user or the port may select the machine."""
    user = "" if host.user is None else f"{host.user}@"
    port = "" if host.port is None else f" port {host.port}"
    return f"{user}{host.login or host.address}{port}"


def _address(host: Host) -> str:
    """The address; this machine's own name and loopback addresses become `localhost`."""
    own = host.address.lower() in ("localhost", socket.gethostname().lower())
    return "localhost" if own or host.address.startswith("127.") else host.address


_UNIQUE: Final[dict[str, Callable[[Host], str]]] = {
    "address": _address,
    "login": _login,
    "name": lambda host: host.name,
}
"""Values that no two entries may share, by their name."""
