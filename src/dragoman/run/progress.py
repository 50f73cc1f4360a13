"""Shows people how far the preparation of a corpus is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dragoman.base import units
from dragoman.base.terminal import open_console

STAGES: Final = {
    "clean": "read and clean",
    "learn": "learn the pieces",
    "relate": "learn which translate each other",
    "encode": "encode",
}
_SAY_EVERY_S: Final = 10.0


@contextmanager
def preparing(
    console: Console | None = None, *, every_s: float = _SAY_EVERY_S
) -> Iterator[Callable[[str, int, int | None], None]]:
    """A function that shows how far a preparation is: (stage, pairs done, all pairs if known).

    A bar on a terminal; elsewhere a line if `every_s` seconds have gone by since the last one.
    """
    console = console or open_console(outlives_reader=True)
    said_at, shown = time.monotonic(), ""

    def say(stage: str, pairs: int, total: int | None) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= every_s:
            said_at = time.monotonic()
            console.print(f"{STAGES[stage]}: {pairs_done(pairs, total)}")

    if not console.is_terminal:
        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True) as bar:
        task = bar.add_task("read", total=None, done="")

        def draw(stage: str, pairs: int, total: int | None) -> None:
            nonlocal shown
            if stage != shown:
                shown = stage
                bar.reset(task, total=total, description=STAGES[stage])
            bar.update(task, completed=pairs, done=pairs_done(pairs, total))

        yield draw


def pairs_done(pairs: int, total: int | None) -> str:
    """The number of finished pairs in words; "" if there are none yet."""
    of_all = "" if total is None else f" of {units.COUNT.text(total)}"
    return f"{units.COUNT.text(pairs)}{of_all} pairs" if pairs else ""
