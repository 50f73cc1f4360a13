"""Functions on the record of a run: plan it before, watch it meanwhile, report on it afterwards."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, overload

from dragoman.api.checks import checked, opened_run, path_of
from dragoman.api.kinds import (
    Count,
    HostsLike,
    Option,
    Origin,
    Overrides,
    Port,
    RecipeLike,
    RunLike,
)
from dragoman.base.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.cluster.plan import Plan
    from dragoman.reporting.comparison import RunComparison
    from dragoman.reporting.render import Report
    from dragoman.training.inventory import Inventory
    from dragoman.watch.live import LiveRun
    from dragoman.watch.status import Status

_LOOK_EVERY_S: Final = 0.5
_DRAW_EVERY_S: Final = 5.0
_PRINTED: Final = (100, 40)
"""Columns and lines of a screen that goes into a file."""
"""Redraw at least this often: even without new events the time left decreases."""


@checked
def plan(
    recipe: RecipeLike,
    *,
    overrides: Overrides = (),
    origin: Origin | None = None,
    hosts: Annotated[Count | str | Path | None, Option(metavar="HOSTS")] = None,
    gpu: Annotated[str | None, Option(metavar="KIND[:NUMBER]")] = None,
    tflops: float | None = None,
    link: str | None = None,
    gpu_link: str | None = None,
    compute: str | None = None,
    price: str | None = None,
) -> Plan:
    """Predict the hours and the cost of a run.

    It says which hosts are cheapest and which are quickest, and how they shall exchange gradients.
    If nothing is said of hosts, GPUs or compute time, it times this machine for some seconds.

    recipe: as for `run_recipe`.
    overrides: as for `train`.
    origin: plan a training that starts from this model; its shape and vocabulary replace the
        recipe's.
    hosts: the number of like hosts, a file, or addresses: 2, hosts.toml, 10.0.0.1:2,10.0.0.2:1.
    gpu: the device of every rank and how many each host has: v100, a100:4, cpu.
    tflops: for a GPU that is not known: its dense peak in the precision of training, from its data
        sheet.
    link: the link of each host: the rate of its port (100Mbit, 1Gbit), or a measured one (12MB/s).
    gpu_link: the measured rate of an all-reduce between the GPUs of one host: 200GB/s.
    compute: the compute time of the slowest rank in a step, such as 0.25s, measured while all ranks
        work and without waits.
    price: the price of one host for an hour, such as "3 USD".
    Raises ConfigError that names the missing or wrong part, CorpusError if a file of the recipe is
    missing, and CheckpointError if the model to start from cannot be read.
    """
    from dragoman.api.training import adapted, recipe_of
    from dragoman.cluster.plan_request import PlanRequest, plan_recipe
    from dragoman.corpus.sources import check_files
    from dragoman.recipe.recipe import SHIPPED_RECIPES

    loaded, _ = adapted(recipe_of(recipe, overrides), origin)
    if not Path(loaded.corpus.folder).is_relative_to(SHIPPED_RECIPES):  # the user adds its text
        check_files(loaded.corpus)
    request = PlanRequest(
        hosts=None if hosts is None else str(hosts),
        gpu=gpu,
        tflops=tflops,
        link=link,
        gpu_link=gpu_link,
        compute=compute,
        price=price,
    )
    here = None
    if request.is_about_this_machine:
        from dragoman.run.speed import timed_here
        from dragoman.run.worker import default_ranks

        here = timed_here(loaded, ranks=default_ranks())
    return plan_recipe(loaded, request, here=here)


@overload
def report(run: RunLike, *, price: str | Sequence[str] | None = None) -> Report: ...


@overload
def report(
    run: RunLike, *others: RunLike, price: str | Sequence[str] | None = None
) -> Report | RunComparison: ...


@checked
def report(
    run: RunLike, *others: RunLike, price: str | Sequence[str] | None = None
) -> Report | RunComparison:
    """Answer twelve questions about a run, or compare runs.

    Runs are compared by samples, tokens, time and money, never by steps.

    run: a run.
    others: runs to compare with it.
    price: the price of one machine for an hour, such as "3 USD", in place of the recorded one; once
        for all runs, or once for each.
    Returns answers, which a notebook shows as a page; of several runs a comparison. Raises
    CheckpointError if there is no run, ConfigError if a price cannot be read.
    """
    from dragoman.reporting.comparison import NAMES, compare
    from dragoman.reporting.reading import read_facts
    from dragoman.reporting.render import Report
    from dragoman.telemetry.host import HourlyPrice

    runs = [path_of(one) for one in (run, *others)]
    texts = [price] if isinstance(price, str) else list(price or ())
    if len(texts) not in (0, 1, len(runs)):
        raise ConfigError(
            f"{len(texts)} prices for {len(runs)} runs",
            place="price",
            remedy="give one price for all runs, or one for each run, in the same order",
        )
    if len(runs) > len(NAMES):
        raise ConfigError(
            f"cannot compare {len(runs)} runs",
            place="report",
            remedy=f"name at most {len(NAMES)} runs",
        )
    prices: list[HourlyPrice | None] = [HourlyPrice.parse(text) for text in texts]
    prices = prices if len(prices) == len(runs) else (prices or [None]) * len(runs)
    facts = [read_facts(one, price=cost) for one, cost in zip(runs, prices, strict=True)]
    return Report.of(facts[0]) if not others else compare(facts)


@checked
def follow_report(
    run: RunLike, *, price: str | None = None, output: str | Path | None = None
) -> Report:
    """Write the page of a run, and write it again after news until the run ends.

    An open page reloads itself. Ctrl-C ends this, not the run.

    run: a run, which may still be about to begin.
    price: the price of one machine for an hour, such as "3 USD".
    output: the folder for the page; None: RUN/report.
    Returns the last answers. Raises CheckpointError if there is no such run, ConfigError if the
    price cannot be read, MachineError if the page cannot be written.
    """
    from dragoman.reporting.render import Report
    from dragoman.telemetry.host import HourlyPrice
    from dragoman.watch.live import open_run
    from dragoman.watch.web import PAGE, follow

    directory = path_of(run)
    place = Path(output or directory / "report")
    cost = HourlyPrice.parse(price) if price else None
    with closing(open_run(directory, price=cost)) as live:
        print(f"{place / PAGE}  (written again after news; Ctrl-C ends this)", flush=True)
        with suppress(KeyboardInterrupt):
            follow(live, place)
        return Report.of(live.now().facts)


@checked
def status(*run: RunLike, runs: str | Path = "runs") -> list[Status]:
    """Tell how far each run is, the newest first.

    run: the runs; none: all in the folder of all runs.
    runs: the folder of all runs.
    Raises CheckpointError if there is no such run, or none at all.
    """
    from dragoman.watch.live import some_runs
    from dragoman.watch.status import read_status

    return [read_status(opened_run(one).path) for one in run or some_runs(Path(runs))]


@checked
def inventory(
    path: Annotated[str | Path, Option(metavar="RUN|CHECKPOINT|PREPARED")],
) -> Inventory:
    """List the files of a run with purpose and size.

    path: the folder of a run, of a checkpoint or of prepared shards.
    Raises CheckpointError if it is none of them.
    """
    from dragoman.training.inventory import take_inventory

    return take_inventory(Path(path))


@checked
def read_events(run: RunLike, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a run and of the preparation of its text, in order of time.

    Each is a flat dictionary, so `pandas.DataFrame(read_events(run, "train_interval"))` is a table
    of events. The kinds and their fields are the classes of dragoman.telemetry.events.

    kind: such as "train_interval" or "validated"; None: all kinds.
    Raises CheckpointError if there is no run, ConfigError if there is no such kind.
    """
    from dragoman.recipe.run_directory import PREPARE_EVENTS, RunDirectory
    from dragoman.telemetry.events import KINDS, event_file
    from dragoman.telemetry.events import read_events as events_of_file

    directory = path_of(run)
    events = RunDirectory(directory).events
    paths = [event_file(events)]
    if not paths[0].is_file():
        raise CheckpointError(
            "has no record of a training (events/*.jsonl)",
            place=directory,
            remedy="name a run whose training has begun",
        )
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            f"{kind!r} is not a kind of event",
            place="kind",
            remedy=f"give one of {', '.join(sorted(KINDS))}",
        )
    if (prepared := events / PREPARE_EVENTS).is_file():
        paths.insert(0, prepared)
    found = [
        {
            "kind": event.kind,
            "time": event.time,
            "host": event.host,
            "rank": event.rank,
            "step": event.step,
            **event.payload,
        }
        for path in paths
        for event in events_of_file(path)
        if kind in (None, event.kind)
    ]
    return sorted(found, key=lambda event: (event["time"], event["rank"]))


@checked
def watch(
    run: RunLike | None = None,
    *,
    runs: str | Path = "runs",
    hosts: HostsLike | None = None,
    price: str | None = None,
    once: bool = False,
    web: bool = False,
    port: Port = 0,
) -> None:
    """Show a run while it goes on.

    The screen has the time left, curves, hosts, network and alerts. Ctrl-C ends the screen, not the
    run.

    run: a run; None: the newest. A screen or page of the newest turns to a run that begins later.
    runs: the folder of all runs.
    hosts: hosts.toml, or user@address: read the run there over ssh, by its name or path there.
    price: the price of one machine for an hour, such as "3 USD".
    once: print it once, and end.
    web: show it as a page in a browser of this machine.
    port: the port of the page; 0: any free one.
    Raises CheckpointError if there is no such run, ConfigError and MachineError.
    """
    from dragoman.base.terminal import open_console

    stays = web or (sys.stdout.isatty() and not once)
    given = None if run is None else path_of(run)
    with suppress(KeyboardInterrupt), _live(given, Path(runs), hosts, price, stays) as live:
        if web:
            from dragoman.watch.web import serve

            serve(live, port=port)
        elif stays:
            _follow(live, open_console())
        else:
            _print(live, open_console())


@contextmanager
def _live(
    run: Path | None, runs: Path, hosts: HostsLike | None, price: str | None, stays: bool
) -> Iterator[LiveRun]:
    """The named run, here or on hosts; without a name, the newest here."""
    from dragoman.cluster.hosts import load_hosts
    from dragoman.telemetry.host import HourlyPrice
    from dragoman.watch.live import NewestRun, open_run, some_runs
    from dragoman.watch.remote import remote_run

    cost = HourlyPrice.parse(price) if price else None
    if hosts is None:
        here = (
            NewestRun(runs, price=cost)
            if stays and run is None
            else open_run(run or some_runs(runs)[0], price=cost)
        )
        with closing(here) as live:
            yield live
        return
    if run is None:
        raise ConfigError("needs a run", place="hosts", remedy="give its path on the hosts")
    found = load_hosts(str(hosts)) if isinstance(hosts, str | Path) else hosts
    with remote_run(found, run, price=cost) as live:
        yield live


def _print(run: LiveRun, console: Console) -> None:
    from dragoman.watch.screen import screen

    run.look()
    width, height = (console.width, console.height) if console.is_terminal else _PRINTED
    for line in screen(run.now(), width=width, height=height):
        console.print(line, soft_wrap=True)


def _follow(run: LiveRun, console: Console) -> None:
    """Draw on the whole terminal; redraw after news, a change of its size, or some seconds."""
    from rich.console import ConsoleDimensions, Group
    from rich.live import Live

    from dragoman.watch.screen import screen

    with Live(console=console, screen=True, auto_refresh=False) as live:
        drawn_at, drawn_size = 0.0, None
        while True:
            # Ask the terminal itself: COLUMNS is its width when the shell began.
            size, moment = os.get_terminal_size(sys.stdout.fileno()), time.monotonic()
            if run.look() or size != drawn_size or moment - drawn_at >= _DRAW_EVERY_S:
                console.size = ConsoleDimensions(size.columns, size.lines)
                lines = screen(run.now(), width=size.columns, height=size.lines)
                live.update(Group(*lines), refresh=True)
                drawn_at, drawn_size = moment, size
            time.sleep(_LOOK_EVERY_S)
