"""Progress inside a notebook."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from dragoman.base.line_files import FileProgress
from dragoman.base.terminal import Terminal
from dragoman.corpus.prepare import OnProgress
from dragoman.run.progress import STAGES, pairs_done
from dragoman.telemetry.console import StandingAlerts, event_lines, progress_view
from dragoman.telemetry.events import Event, EventListener, RunFinished, RunStarted
from dragoman.telemetry.progress import Progress

_WIDTH: Final = 110
_MOST_LINES: Final = 12
_SAY_EVERY_S: Final = 0.3
_PAGE: Final = (
    '<pre style="font-family:monospace;line-height:1.3;white-space:pre-wrap">{code}</pre>'
)


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, which shows HTML."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


class _OutputArea:
    """One output of a notebook, whose content is replaced by what is shown next."""

    def __init__(self) -> None:
        self._shown: Any = None

    @property
    def is_used(self) -> bool:
        """Whether this place shows anything."""
        return self._shown is not None

    def show(self, body: RenderableType) -> None:
        """Show this in place of the earlier output."""
        from IPython.display import HTML, display

        page = HTML(as_html(body))
        if self._shown is None:
            self._shown = display(page, display_id=True)
        else:
            self._shown.update(page)


@contextmanager
def preparing_in_notebook() -> Iterator[OnProgress]:
    """A function that shows the progress of a preparation; it shows nothing if nothing is to do."""
    place, said_at = _OutputArea(), -_SAY_EVERY_S

    def show(stage: str, pairs: int, total: int | None) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _SAY_EVERY_S:
            said_at = time.monotonic()
            done = pairs_done(pairs, total)
            place.show(Text(f"{STAGES[stage]}: {done}" if done else STAGES[stage]))

    yield show
    if place.is_used:
        place.show(Text("prepared"))


@contextmanager
def lines_in_notebook() -> Iterator[Callable[[FileProgress], None]]:
    """A function that shows how many lines of a file are done."""
    place, said_at = _OutputArea(), -_SAY_EVERY_S

    def show(progress: FileProgress) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _SAY_EVERY_S or progress.share == 1.0:
            said_at = time.monotonic()
            place.show(Text(progress.text))

    yield show


class NotebookProgress(EventListener):
    """The progress of a run in one place of a notebook, with the last events above it."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._trains = False
        self._lines: list[Text] = []
        self._standing = StandingAlerts()
        self._place = _OutputArea()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._progress.see(event)
        if not self._standing.see(event):
            self._lines += event_lines(event, self._progress, width=_WIDTH)
        self._lines = self._lines[-_MOST_LINES:]
        if event.kind in (RunStarted.kind, RunFinished.kind):
            self._trains = event.kind == RunStarted.kind
        alerts = self._standing.lines()
        end = [progress_view(self._progress, alerts)] if self._trains else alerts
        self._place.show(Group(*self._lines, *end))


def as_html(body: RenderableType) -> str:
    """The text of a terminal as HTML; its characters are escaped."""
    console: Console = Terminal(
        record=True, file=io.StringIO(), width=_WIDTH, highlight=False, markup=False
    )
    console.print(body)
    return console.export_html(inline_styles=True, code_format=_PAGE)
