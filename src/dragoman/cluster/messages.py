"""What an agent may say. Hosts are not trusted: anything else ends the talk with that host."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from dragoman.base.settings import Section
from dragoman.cluster.facts import HostFacts

Weight = Literal["own", "hung", "signal", "other"]
"""How likely a failure is the cause of those of the other hosts."""
Port = Annotated[int, Field(ge=1, le=65_535)]


class Facts(Section):
    """The answer to doctor's questions."""

    say: Literal["facts"]
    facts: HostFacts


class Time(Section):
    """What the host's clock says, in seconds since 1970."""

    say: Literal["time"]
    time: float


class Ready(Section):
    """The host has its share. store: `address:port/token`, of the first host alone. test_port: a
    port to which the others connect once, to learn whether they reach this host."""

    say: Literal["ready"]
    store: str
    test_port: Port


class Reached(Section):
    """It has tried the others' ports. closed: address:port of those that it cannot reach."""

    say: Literal["reached"]
    closed: tuple[str, ...]


class Measured(Section):
    """A line of what measures the network. exposed: address:port open to strangers meanwhile."""

    say: Literal["measured"]
    line: str
    exposed: tuple[str, ...]


class Events(Section):
    """Whole lines that were appended to an event file."""

    say: Literal["events"]
    file: str
    text: str


class Done(Section):
    """The share has ended. problem: "" where it came to its end."""

    say: Literal["done"]
    exit_code: int = Field(ge=0, le=255)
    problem: str
    weight: Weight


MESSAGES: Final[TypeAdapter[Facts | Time | Ready | Reached | Measured | Events | Done]] = (
    TypeAdapter(
        Annotated[
            Facts | Time | Ready | Reached | Measured | Events | Done, Field(discriminator="say")
        ]
    )
)


class ProbePair(Section):
    """Two hosts by their numbers; bytes a second one way each and both ways at once."""

    ranks: tuple[int, int]
    forth: float = Field(gt=0.0)
    back: float = Field(gt=0.0)
    both: float = Field(gt=0.0)
    latency_s: float = Field(ge=0.0)


class ProbeResult(Section):
    """What the first host's probe prints, once as {} and once with all in it."""

    pairs: tuple[ProbePair, ...] = ()
    all_reduce: float | None = Field(default=None, gt=0.0)
    diloco_weight_s: float | None = Field(default=None, ge=0.0)
