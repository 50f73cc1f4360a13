"""Shows the progress of a function: not at all, as lines in a terminal, or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.api.checks import OF_CALLER
from dragoman.telemetry.events import Event, EventListener

if TYPE_CHECKING:
    from dragoman.api.kinds import OnEvent
    from dragoman.base.line_files import FileProgress
    from dragoman.corpus.prepare import OnProgress


def shown(progress: bool) -> AbstractContextManager[OnProgress | None]:
    """A function that shows the progress of a preparation; None without `progress`."""
    if not progress:
        return nullcontext()
    from dragoman.api.notebook import in_notebook, preparing_in_notebook
    from dragoman.run.progress import preparing

    return preparing_in_notebook() if in_notebook() else preparing()


def lines_shown(progress: bool) -> AbstractContextManager[Callable[[FileProgress], None]]:
    """A function that shows how many lines of a file are done."""
    if not progress:
        return nullcontext(say_nothing)
    from dragoman.api.notebook import in_notebook, lines_in_notebook
    from dragoman.base.line_files import progress_bar

    return lines_in_notebook() if in_notebook() else progress_bar()


@contextmanager
def bar_shown(progress: bool, parts: int) -> Iterator[Callable[[str], None]]:
    """A function that names the part of a work that begins, of so many after a first one.

    A terminal shows a bar, which goes away at the end.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from dragoman.base.terminal import Terminal

    console = Terminal(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    is_shown = progress and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task("", total=parts, completed=-1)
        yield lambda part: bar.update(task, description=part, advance=1)


def listeners_of(on_event: OnEvent | None, progress: bool) -> list[EventListener]:
    """The listeners of a training: a function, and a view for people."""
    from dragoman.api.notebook import NotebookProgress, in_notebook
    from dragoman.telemetry.console import ConsoleSink

    listeners: list[EventListener] = [] if on_event is None else [Calls(on_event)]
    if progress:
        listeners.append(NotebookProgress() if in_notebook() else ConsoleSink())
    return listeners


def line_printer(progress: bool) -> Callable[[str], None]:
    """A function that prints a line, if progress is shown."""
    if not progress:
        return say_nothing
    from dragoman.base.terminal import open_console

    console = open_console(outlives_reader=True)
    return lambda text: console.print(text, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Calls(EventListener):
    """A function as a listener."""

    function: OnEvent

    def __call__(self, event: Event) -> None:
        """Call it; an OSError that it raises is marked as the caller's own."""
        try:
            self.function(event)
        except OSError as error:
            error.add_note(OF_CALLER)
            raise


def say_nothing(_: object) -> None:
    """Do nothing, in place of a function that prints a line."""
