"""Every error a user can meet, as one tree.

DragomanError              one line: place, problem, remedy
├── ConfigError            a recipe, a setting, a command line
├── CorpusError            a text file, a subword model, a shard
├── CheckpointError        a checkpoint or a run directory
├── TrainingError          training cannot go on
│   └── DivergenceError    the loss left the range in which training makes sense
└── MachineError           disk, memory, devices, network, a missing package

A message names the place (file, line, key), what is wrong there, and what to do about it.
`assert` is for our own bugs only. Text that a message quotes, from a file or from another machine,
cannot steer the terminal it is shown on.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from dragoman.base.printable import printable_line


class DragomanError(Exception):
    """An error with a place and a remedy, printed by the command line as one line.

    problem: what is wrong, in words a user knows.
    place: the file, line or key it is wrong at; "" if there is none.
    remedy: what to change or to run; "" only if nothing can be done.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, place: str | Path = "", remedy: str = "") -> None:
        self.problem = printable_line(problem)
        self.place = printable_line(str(place))
        self.remedy = printable_line(remedy)
        super().__init__(self._line())

    def set_words(self, *, place: str | None = None, remedy: str | None = None) -> None:
        """Change the place, the remedy or both."""
        self.place = self.place if place is None else printable_line(place)
        self.remedy = self.remedy if remedy is None else printable_line(remedy)
        self.args = (self._line(), *self.args[1:])

    def show_more(self) -> None:
        """Print what explains the error, if one line is too short for that."""

    def _line(self) -> str:
        text = f"{self.place}: {self.problem}" if self.place else self.problem
        return f"{text}; {self.remedy}" if self.remedy else text

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback: the error's line and its notes."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class ConfigError(DragomanError):
    """A recipe, an override or a command line that cannot be used."""

    exit_code = 2


class CorpusError(DragomanError):
    """A text file, subword model or shard that cannot be used."""


class CheckpointError(DragomanError):
    """A checkpoint or run directory that cannot be used."""


class TrainingError(DragomanError):
    """Training cannot go on."""


class DivergenceError(TrainingError):
    """The loss is NaN, infinite or back above that of an untrained model."""


class MachineError(DragomanError):
    """The machine lacks something: disk, memory, a device, a package, the network."""
