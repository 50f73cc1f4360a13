"""Console and TensorBoard, fed by events."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from tensorboard.compat.proto.event_pb2 import Event as TensorBoardEvent
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from dragoman.base import units
from dragoman.base.files import disk_errors_named
from dragoman.base.terminal import Terminal
from dragoman.telemetry import events
from dragoman.telemetry.events import Event, EventListener
from dragoman.telemetry.lines import event_lines, learning, progress_line, speed, time_left
from dragoman.telemetry.progress import Progress
from dragoman.telemetry.scored import MetricScored, TestScored

_LOUD_KINDS = {TestScored.kind, events.RunFinished.kind}
_TENSORBOARD_FORMAT = "brain.Event:2"
_num_files = itertools.count()


class ConsoleSink(EventListener):
    """Shows a run: its progress in place at the bottom, what happened as lines above.

    Where the console is no terminal, progress is one line an interval.
    quiet: only warnings, test scores and the end.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console = console or Terminal(outlives_reader=True, highlight=False)
        self._quiet = quiet
        self._progress = Progress()
        self._live: Live | None = None
        self._sampled_step: int | None = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._progress.see(event)
        if not self._is_told(event):
            return
        if event.kind == events.RunFinished.kind:
            self.close()
        if event.kind == events.TrainInterval.kind:
            self._show_progress()
        elif event.kind == events.SampleTranslation.kind:
            self._show_sample(event)
        for line in event_lines(event, self._progress, width=self._console.width):
            self._print(line)

    def close(self) -> None:
        """Take the progress away; the lines stay."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _is_told(self, event: Event) -> bool:
        if not self._quiet or event.kind in _LOUD_KINDS:
            return True
        return event.kind == events.Alert.kind and event.payload["severity"] != "info"

    def _show_progress(self) -> None:
        if not self._console.is_terminal:
            self._print(progress_line(self._progress))
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(progress_view(self._progress), refresh=True)

    def _show_sample(self, event: Event) -> None:
        """The first sample of each validation; the others are kept in the run directory."""
        if event.step != self._sampled_step:
            self._sampled_step = event.step
            for label in ("source", "hypothesis"):
                text = " ".join(event.payload[label].split()) or "(empty)"
                self._print(Text(f"  {label:<11} {text}", style="dim"))

    def _print(self, line: Text) -> None:
        if not self._console.is_terminal:
            self._console.out(line.plain, highlight=False)
        elif line.plain.startswith("  "):
            self._console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(line)


def progress_view(progress: Progress) -> RenderableType:
    """The progress of a run as four calm lines: how far, how well, how fast, how long."""
    last = progress.max_steps or progress.step
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True, max_width=24)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    head.add_row(
        Text(str(progress.run.get("run_name", "")), style="bold"),
        ProgressBar(total=max(last, 1), completed=progress.step, complete_style="cyan"),
        Text(f"{units.COUNT.text(progress.step)} of {units.COUNT.text(last)} steps"),
    )
    rows = (learning(progress.interval), speed(progress))
    return Group("", head, *map(_joined, rows), Text(time_left(progress), style="dim"))


def _joined(parts: Iterable[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in parts:
        text.append(f"{label} ", style="dim").append(f"{value}   ")
    return text


class TensorBoardSink(EventListener):
    """Writes the scalars that TensorBoard shows, and sample translations as text.

    Steps after a resume hide what an interrupted process had written for the same steps.
    Raises MachineError when the disk takes no more. Nothing is written in a thread, which could
    only print a traceback of that.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # TensorBoard reads files of this name; the parts keep those of all processes apart.
        parts = (int(time.time()), socket.gethostname(), os.getpid(), next(_num_files))
        name = ".".join(["events.out.tfevents", *map(str, parts)])
        with disk_errors_named(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / name).open("xb")
        self._writer = RecordWriter(self._file)
        self._write(TensorBoardEvent(wall_time=time.time(), file_version=_TENSORBOARD_FORMAT))
        self._sample: tuple[int | None, int] = (None, 0)

    def __call__(self, event: Event) -> None:
        """Write what TensorBoard shows of one event."""
        if event.kind == events.RunStarted.kind:
            self._restart(event)
        elif event.kind == events.SampleTranslation.kind:
            self._text(event)
        else:
            scalars = _scalars(event).items()
            values = [
                Summary.Value(tag=tag, simple_value=value)
                for tag, value in scalars
                if value is not None
            ]
            if values:
                self._add(event, summary=Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # each write was flushed, so that this only repeats an error
            self._file.close()

    def _restart(self, event: Event) -> None:
        if event.payload["resumed_from_step"] is not None:
            log = SessionLog(status=SessionLog.START)
            self._add(event, step=event.payload["resumed_from_step"] + 1, session_log=log)

    def _text(self, event: Event) -> None:
        number = self._sample[1] + 1 if event.step == self._sample[0] else 0
        self._sample = (event.step, number)
        lines = (f"**{key}** {event.payload[key]}" for key in ("source", "hypothesis", "reference"))
        value = Summary.Value(
            tag=f"sample_translation/{number}",
            metadata=create_summary_metadata(display_name=None, description=None),
            tensor=TensorProto(
                dtype=DT_STRING,
                string_val=["\n\n".join(lines).encode()],
                tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
            ),
        )
        self._add(event, summary=Summary(value=[value]))

    def _add(self, event: Event, *, step: int | None = None, **what: object) -> None:
        at = (event.step or 0) if step is None else step
        self._write(TensorBoardEvent(wall_time=event.time, step=at, **what))

    def _write(self, event: TensorBoardEvent) -> None:
        with disk_errors_named(self._directory):
            self._writer.write(event.SerializeToString())
            self._writer.flush()


def _scalars(event: Event) -> dict[str, float | None]:
    seen = event.payload
    if event.kind == events.Validated.kind:
        return {"eval_loss": seen["dev_loss"], "eval_bleu": seen["bleu"]}
    if event.kind == MetricScored.kind and seen["text"] == "valid":
        return {f"eval_{seen['metric']}": seen["value"]}
    if event.kind != events.TrainInterval.kind:
        return {}
    tokens = seen["source_tokens"] + seen["target_tokens"]
    return {
        "train_loss": seen["train_loss"],
        "learning_rate": seen["learning_rate"],
        "global_gradient_norm": seen["gradient_norm"],
        "padding_share": seen["padding_share"],
        "global_step_per_s": seen["steps"] / seen["interval_s"] if seen["interval_s"] else None,
        "tokens_per_s": tokens / seen["interval_s"] if seen["interval_s"] else None,
    }
