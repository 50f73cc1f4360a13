"""The lines between the controller and the program that it starts on a host (`cluster.agent`).

controller                        the program on the host
a FactsRequest as JSON            an Answer with facts; time and the commands below may come later
a WorkRequest: train              Answers with event, and one with done
a WorkRequest: probe              an Answer with closed
begin (after a probe's `closed`)  Answers with measured, and one with done
time                              an Answer with time
stop, kill                        the work saves and ends, or ends at once
an empty line, every second       nothing: it is a sign of life
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.base.settings import Section
from dragoman.cluster.facts import HostFacts, PairRates

Command = Literal["", "time", "begin", "stop", "kill"]
Weight = Literal["own", "hung", "signal", "other"]
"""How likely a failure is the cause of the failures of other hosts."""


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
    """One host's share of the work of all hosts.

    number: the position of this host among all, from 0.
    endpoints: the address and port of each host at which it listens; the store opens at the first.
    token: keeps the processes of this work apart from all others.
    run: the run's directory below the folder, also its name on the host.
    checkpoint: the name of the one to resume from; newer ones belong to steps that were given up.
    price_per_hour: the price of all hosts together for an hour, with the currency; "" if it is not
        known.
    on_processor: its ranks do not use the GPUs that the host may have.
    log: size and sha256 of the controller's copy of the run's log, which the first host writes.
    """

    job: Literal["train", "probe"]
    number: int
    endpoints: tuple[tuple[str, Annotated[int, Field(ge=1, le=65_535)]], ...]
    ranks: int
    token: str
    run: str = ""
    checkpoint: str = ""
    price_per_hour: str = ""
    on_processor: bool = False
    log: tuple[int, str] = (0, "")


class Done(Section):
    """The work has ended. problem: "" if it succeeded. kind: the class of the error that a worker
    raised; "" if it is not known."""

    exit_code: int = Field(default=0, ge=0, le=255)
    problem: str = ""
    weight: Weight = "other"
    kind: str = ""


class Answer(Section):
    """A line from a host; any other line ends the connection.

    time: its clock, in seconds since 1970.
    closed: address:port of the other hosts that it cannot reach.
    measured: a line of the measuring process. exposed: address:port at which other machines could
        reach that process.
    event: a line that was appended to the run's log.
    """

    facts: HostFacts | None = None
    time: float | None = None
    closed: tuple[str, ...] | None = None
    measured: str | None = None
    exposed: tuple[str, ...] = ()
    event: str = ""
    done: Done | None = None


class ProbePair(PairRates):
    """The rates between two hosts, by their numbers."""

    ranks: tuple[int, int]


class ProbeResult(Section):
    """The output of the first host's probe: {} before each round, all values at its end."""

    pairs: tuple[ProbePair, ...] = ()
    all_reduce_bytes_per_s: float | None = Field(default=None, gt=0.0)
    diloco_weight_s: float | None = Field(default=None, ge=0.0)
