"""The console that everything of ours is shown on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dragoman.printable import printable


class Terminal(Console):
    """A rich console on which styles come from us alone.

    A character in a text that would steer the terminal is shown as U+FFFD, whoever wrote it.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What rich makes of it, its texts made harmless; rich's own control codes stay."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """`dragoman.cli.main` knows what to do; the one of rich calls it a failure of ours."""
        raise BrokenPipeError
