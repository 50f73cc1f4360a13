"""The messages between the controller and an agent: each is one line of JSON.

The controller commands, {"do": COMMAND, ...}, and the agent answers, {"say": ANSWER, ...}. Any
other answer ends the connection.

stay           {}                  a sign of life, every second
time           {}                  -> Time
facts          {request}           -> FactsFound: the request is a FactsRequest
prepare_store  {}                  the first host imports PyTorch for the store
work           {request}           -> Ready: the request is a WorkRequest
reach          {peers}             -> Reached
begin          {store}             -> Events or MeasuredLine, then Done
stop, kill     {}                  the share saves and ends, or ends at once
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from dragoman.base.settings import Section
from dragoman.cluster.facts import HostFacts, PairRates

AgentCommand = Literal[
    "stay", "time", "facts", "prepare_store", "work", "reach", "begin", "stop", "kill"
]
Weight = Literal["own", "hung", "signal", "other"]
"""How likely a failure is the cause of the failures of other hosts."""
Port = Annotated[int, Field(ge=1, le=65_535)]


class FactsRequest(Section):
    """The questions to a host.

    run: a directory below this host's folder, "" if there is none yet.
    mark: the name of a file that the controller has put into its own directory of that run.
    ranks: the number of ranks on this host.
    measure: whether to train for some seconds, to measure the host's speed.
    """

    host: str
    interface: str | None
    peers: tuple[str, ...]
    gpus: int
    run: str = ""
    mark: str = ""
    ranks: int = 1
    measure: bool = False


class WorkRequest(Section):
    """One host's share of a job of all hosts.

    number: the position of this host among num_hosts, from 0.
    interface, address: the network interface of this host for the collectives, and its address.
    token: keeps the processes of this job apart from all others.
    run: the run's directory below the folder, also its name on the host.
    checkpoint: the name of the one to resume from; newer ones belong to steps that were given up.
    price_per_hour: the price of all hosts together for an hour, with the currency; "" if it is not
        known.
    on_processor: its ranks do not use the GPUs that the host may have.
    log: size and sha256 of the controller's copy of the run's log, which the first host writes.
    """

    job: Literal["train", "probe"]
    number: int
    num_hosts: int
    ranks: int
    interface: str
    address: str
    token: str
    run: str = ""
    checkpoint: str = ""
    price_per_hour: str = ""
    on_processor: bool = False
    log: tuple[int, str] = (0, "")


class FactsFound(Section):
    """The facts of the host."""

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


class MeasuredLine(Section):
    """A line of the measuring process. exposed: address:port that other machines could reach."""

    say: Literal["measured"]
    line: str
    exposed: tuple[str, ...]


class Events(Section):
    """Whole lines that were appended to the run's log."""

    say: Literal["events"]
    text: str


class Done(Section):
    """The share has ended. problem: "" if it succeeded. kind: the class of the error that a worker
    raised; "" if it is not known."""

    say: Literal["done"]
    exit_code: int = Field(ge=0, le=255)
    problem: str
    weight: Weight
    kind: str = ""


AgentMessage = FactsFound | Time | Ready | Reached | MeasuredLine | Events | Done
AGENT_MESSAGE: Final[TypeAdapter[AgentMessage]] = TypeAdapter(
    Annotated[AgentMessage, Field(discriminator="say")]
)


class ProbePair(PairRates):
    """The rates between two hosts, by their numbers."""

    ranks: tuple[int, int]


class ProbeResult(Section):
    """The output of the first host's probe: {} before each round, all values at its end."""

    pairs: tuple[ProbePair, ...] = ()
    all_reduce_bytes_per_s: float | None = Field(default=None, gt=0.0)
    diloco_weight_s: float | None = Field(default=None, ge=0.0)
