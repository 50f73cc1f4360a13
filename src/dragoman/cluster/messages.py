"""Messages of an agent. Hosts are not trusted: any other message ends the connection."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from dragoman.base.settings import Section
from dragoman.cluster.facts import HostFacts, PairRates

Weight = Literal["own", "hung", "signal", "other"]
"""How likely a failure is the cause of the failures of other hosts."""
Port = Annotated[int, Field(ge=1, le=65_535)]


class Facts(Section):
    """The answer to doctor's questions."""

    say: Literal["facts"]
    facts: HostFacts


class Time(Section):
    """The host's clock, in seconds since 1970."""

    say: Literal["time"]
    time: float


class Ready(Section):
    """The host has its share. store: `address:port/token`, from the first host only. test_port: a
    port to which the other hosts connect once, to check that they reach this host."""

    say: Literal["ready"]
    store: str
    test_port: Port


class Reached(Section):
    """The host has tried the others' ports. closed: address:port of those that it cannot reach."""

    say: Literal["reached"]
    closed: tuple[str, ...]


class Measured(Section):
    """A line of the measuring process. exposed: address:port that other machines could reach."""

    say: Literal["measured"]
    line: str
    exposed: tuple[str, ...]


class Events(Section):
    """Whole lines that were appended to an event file."""

    say: Literal["events"]
    file: str
    text: str


class Done(Section):
    """The share has ended. problem: "" if it succeeded."""

    say: Literal["done"]
    exit_code: int = Field(ge=0, le=255)
    problem: str
    weight: Weight


Said = Facts | Time | Ready | Reached | Measured | Events | Done
SAID: Final[TypeAdapter[Said]] = TypeAdapter(Annotated[Said, Field(discriminator="say")])


class ProbePair(PairRates):
    """The rates between two hosts, by their numbers."""

    ranks: tuple[int, int]


class ProbeResult(Section):
    """The output of the first host's probe: {} at its start, all values at its end."""

    pairs: tuple[ProbePair, ...] = ()
    all_reduce_bytes_per_s: float | None = Field(default=None, gt=0.0)
    diloco_weight_s: float | None = Field(default=None, ge=0.0)
