"""Progress of a training inside a notebook."""

from __future__ import annotations

import io
import sys
from typing import Any, Final

from rich.console import Console, Group
from rich.text import Text

from dragoman.base.terminal import Terminal
from dragoman.telemetry.console import event_lines, progress_view
from dragoman.telemetry.events import Event, EventListener, RunFinished
from dragoman.telemetry.progress import Progress

_WIDTH: Final = 110
_MOST_LINES: Final = 12
_PAGE: Final = '<pre style="line-height:1.3;white-space:pre-wrap">{code}</pre>'


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, which shows HTML."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


class NotebookProgress(EventListener):
    """The progress of a run in one place of a notebook, with the last events above it."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._lines: list[Text] = []
        self._shown: Any = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._progress.see(event)
        self._lines += event_lines(event, self._progress, width=_WIDTH)
        self._lines = self._lines[-_MOST_LINES:]
        parts = [*self._lines]
        body = Group(*parts) if event.kind == RunFinished.kind else Group(*parts, self._view())
        self._show(as_html(body))

    def _view(self) -> Group:
        return Group(progress_view(self._progress))

    def _show(self, page: str) -> None:
        from IPython.display import HTML, display

        if self._shown is None:
            self._shown = display(HTML(page), display_id=True)
        else:
            self._shown.update(HTML(page))


def as_html(body: Group) -> str:
    """The text of a terminal as HTML; its characters are escaped."""
    console: Console = Terminal(
        record=True, file=io.StringIO(), width=_WIDTH, highlight=False, markup=False
    )
    console.print(body)
    return console.export_html(inline_styles=True, code_format=_PAGE)
