"""Doctor's facts about each host and the links between them. None: not measured."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from dragoman.base.settings import Section

PACKAGES: Final = ("torch", "numpy", "safetensors", "sentencepiece")
"""The packages that training needs on every host, each in one version."""


class InterfaceFacts(Section):
    """The interface over which a host reaches its peers."""

    name: str = Field(pattern=r"^[A-Za-z0-9._@:+-]{1,15}$")
    address: Annotated[str, AfterValidator(lambda text: str(IPv4Address(text)))]
    speed_bits_per_s: float | None = None
    """The rate that the card claims; virtual cards claim anything."""
    full_duplex: bool | None = None
    mtu_bytes: int
    errors: int
    """Packets lost to errors or full queues, sent and received, since the interface came up."""


class HostFacts(Section):
    """The facts that one host reports about itself."""

    host: str
    """Its name in hosts.toml."""
    gpus_visible: int = 0
    gpus_usable: int = 0
    """GPUs on which a matrix product came out right."""
    cpu_cores: int
    versions: dict[str, str | None]
    """Versions of python, torch, nccl, driver, ...; None if it is not installed."""
    digests: dict[str, str | None]
    """sha256 of code, recipe, data and vocabulary; None if it is not there."""
    shares_run_directory: bool = False
    """Whether its directory of the run is the controller's own directory."""
    clock_offset_s: float | None = None
    """Seconds ahead of the median clock of the hosts and the controller."""
    interface: InterfaceFacts | None = None
    """None if no interface routes to the peers."""
    port: int | None = None
    """The port of this interface at which it listens until work begins."""
    name_resolves_to: tuple[str, ...] = ()
    """Addresses to which its own host name resolves there."""
    shared_memory_bytes: int
    disk_free_bytes: int
    disk_write_bytes_per_s: float | None = None
    step_s: float | None = Field(default=None, gt=0.0)
    """Median of real training steps without any network."""
    flop_per_s: float | None = Field(default=None, gt=0.0)
    """Useful floating-point operations per second of one rank in these steps."""
    inside_bytes_per_s: float | None = Field(default=None, gt=0.0)
    """Rate through each of its ranks in an all-reduce between them; None if it has one rank."""
    closed_ports: tuple[str, ...] | None = None
    """address:port of peers that it could not reach."""
    exposed_ports: tuple[str, ...] | None = None
    """address:port on which it listens for the run and that other machines can reach."""


class PairRates(Section):
    """The rates of collectives between two hosts, from the first to the second and back."""

    forth_bytes_per_s: float = Field(gt=0.0)
    back_bytes_per_s: float = Field(gt=0.0)
    both_bytes_per_s: float = Field(gt=0.0)
    """Each direction, while both are busy."""
    latency_s: float = Field(ge=0.0)


class PairFacts(PairRates):
    """The rates between two hosts."""

    hosts: tuple[str, str]


class LinkDirection(NamedTuple):
    """One direction of a link: its rate while the way back is free."""

    sender: str
    receiver: str
    bytes_per_s: float


class ClusterFacts(Section):
    """All of doctor's facts about one cluster, at one time."""

    hosts: tuple[HostFacts, ...]
    pairs: tuple[PairFacts, ...] = ()
    unreachable: dict[str, str] = Field(default_factory=dict)
    """Hosts that did not answer, and the message of ssh."""
    unmeasured: dict[str, str] = Field(default_factory=dict)
    """Hosts on which measuring the network failed, and their messages."""
    all_reduce_bytes_per_s: float | None = None
    """Payload per second through each interface in an all-reduce over all hosts."""
    diloco_weight_s: float | None = None
    """Seconds of DiLoCo's own work per weight, from one synchronisation to the next, on the slowest
    host, measured with one rank on each host."""

    @property
    def directions(self) -> list[LinkDirection]:
        """Each direction of each pair, in the order of the pairs."""
        return [
            direction
            for pair in self.pairs
            for direction in (
                LinkDirection(pair.hosts[0], pair.hosts[1], pair.forth_bytes_per_s),
                LinkDirection(pair.hosts[1], pair.hosts[0], pair.back_bytes_per_s),
            )
        ]
