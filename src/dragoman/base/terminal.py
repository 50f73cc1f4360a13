"""The console and the tables for all output of dragoman."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from dragoman.base.printable import printable
from dragoman.base.process import drop_output

_UNBROKEN: Final = 10_000


class Terminal(Console):
    """A rich console that takes styles from our code alone, not from a text, even inside Jupyter.

    A character in a text that would steer the terminal is shown as U+FFFD, whoever wrote it.

    outlives_reader: if the reader of the output has gone, as after `| head`, the work goes on
    without output and a line on standard error says so. Otherwise BrokenPipeError ends the command.
    **options: those of rich's Console.
    """

    def __init__(self, *, outlives_reader: bool = False, **options: Any) -> None:
        # Inside Jupyter rich would show in the notebook what is meant for another file.
        super().__init__(**{"force_jupyter": False} | options)
        self._outlives_reader = outlives_reader

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with harmless texts; rich's own control codes stay."""
        shown = (
            Segment(text if control else printable(text), style, control)
            for text, style, control in super().render(renderable, options)
        )
        return shown if self.is_terminal else _without_padding(shown)

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles BrokenPipeError; rich itself would exit with code 1,
        silently.

        `dragoman.cli.command_line.main` handles the error.
        """
        if not self._outlives_reader:
            raise  # noqa: PLE0704  # rich handles the error right now
        self.quiet = True
        drop_output("the work goes on, and its directory has the record")


def _without_padding(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The segments without the spaces before an end of a line: rich fills lines up with them."""
    spaces: list[Segment] = []
    for segment in segments:
        text = re.sub(" +\n", "\n", segment.text)
        if text.startswith("\n"):
            spaces.clear()
        kept = text.rstrip(" ")
        if kept or segment.control:
            yield from spaces
            spaces.clear()
            yield Segment(kept, segment.style, segment.control)
        if kept != text:
            spaces.append(Segment(text[len(kept) :], segment.style))
    yield from spaces


def open_console(*, outlives_reader: bool = False) -> Console:
    """The console of this process's output. If that is not a terminal, no line is ever wrapped.

    outlives_reader: the work continues if the reader of its output is gone.
    """
    width = None if sys.stdout.isatty() else _UNBROKEN
    return Terminal(
        outlives_reader=outlives_reader, highlight=False, markup=False, emoji=False, width=width
    )


def plain_table(*left: str, right: Sequence[str] = (), no_wrap: bool = False) -> Table:
    """A table without lines. left, right: the headings of the columns that are aligned so."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in left:
        table.add_column(heading, no_wrap=no_wrap)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=no_wrap)
    return table
