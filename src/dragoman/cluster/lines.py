"""The lines between `dragoman train --hosts`, the controller, and `join_host` on a host.

controller                     the host
a FactsRequest as JSON         an Answer with facts; other requests may follow
a ProbeRequest                 an Answer with closed
begin (after `closed`)         Answers with measured, and one with done
a TrainRequest                 Answers with port, event and loss, and one with done
time                           an Answer with time
again TOKEN FEWEST             nothing: the workers end at once, and meet the others anew
stop, kill                     the work saves and ends, or ends at once
an empty line, every second    nothing: it is a sign of life
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.base.settings import Section
from dragoman.cluster.facts import HostFacts, PairRates
from dragoman.distributed.launch import Weight

Port = Annotated[int, Field(ge=0, le=65_535)]


class FactsRequest(Section):
    """The questions to a host.

    run: a directory below this host's folder, "" if there is none yet.
    mark: the name of a file that the controller has put into its own directory of that run.
    ranks: the number of ranks on this host.
    measure: whether to train for some seconds, to measure the host's speed.
    """

    job: Literal["facts"] = "facts"
    host: str
    interface: str | None
    peers: tuple[str, ...]
    gpus: int
    run: str = ""
    mark: str = ""
    ranks: int = 1
    measure: bool = False


class WorkRequest(Section):
    """What a host needs for any work with the others.

    number: the position of this host, from 0; ranks are numbered in this order.
    ranks: the number of ranks on this host.
    token: keeps the processes of this work apart from all others.
    on_processor: its ranks do not use the GPUs that the host may have.
    """

    number: int
    ranks: int
    token: str
    on_processor: bool = False


class ProbeRequest(WorkRequest):
    """Measure the network together.

    endpoints: the address and port of each host at which it listens; the store opens at the first.
    """

    job: Literal["probe"] = "probe"
    endpoints: tuple[tuple[str, Port], ...]


class TrainRequest(WorkRequest):
    """Join a training.

    store: the address and port of the store; the first host opens it there, at any port if it is 0.
    fewest, most: how many hosts train at the start, and at most.
    run: the run's directory below the folder, also its name on the host.
    checkpoint: the name of the newest one that counts; newer ones belong to steps that were given
        up.
    price_per_hour: the price of this host for an hour, with the currency; "" if it is not known.
    log: size and sha256 of the controller's copy of the run's log, which the first host writes.
    """

    job: Literal["train"] = "train"
    store: tuple[str, Port]
    fewest: int
    most: int
    run: str
    checkpoint: str = ""
    price_per_hour: str = ""
    log: tuple[int, str] = (0, "")


class Loss(Section):
    """Work that failed. kind: the class of the error that a worker raised; "" if it is not
    known."""

    problem: str
    weight: Weight = "other"
    kind: str = ""


class Answer(Section):
    """A line from a host; any other line ends the connection.

    time: its clock, in seconds since 1970.
    closed: address:port of the other hosts that it cannot reach.
    measured: a line of the measuring process. exposed: address:port at which other machines could
        reach that process.
    port: where the store is open, on the first host.
    event: a line that was appended to the run's log.
    loss: workers are gone; unless `done` says otherwise, they are started again.
    done: the exit code of the work, which has ended.
    """

    facts: HostFacts | None = None
    time: float | None = None
    closed: tuple[str, ...] | None = None
    measured: str | None = None
    exposed: tuple[str, ...] = ()
    port: int | None = None
    event: str = ""
    loss: Loss | None = None
    done: Annotated[int, Field(ge=0, le=255)] | None = None


class ProbePair(PairRates):
    """The rates between two hosts, by their numbers."""

    ranks: tuple[int, int]


class ProbeResult(Section):
    """The output of the first host's probe: {} before each round, all values at its end."""

    pairs: tuple[ProbePair, ...] = ()
    all_reduce_bytes_per_s: float | None = Field(default=None, gt=0.0)
    diloco_weight_s: float | None = Field(default=None, ge=0.0)
