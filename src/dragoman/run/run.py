"""The steps of a run: prepare, start, train, evaluate.

Finished work is not done again: shards of unchanged text are kept, an unfinished run of the
same recipe goes on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console
from dragoman.corpus.clean import REJECTED
from dragoman.corpus.directions import token_for
from dragoman.corpus.manifest import FILE_NAME, Manifest
from dragoman.corpus.prepare import OnProgress
from dragoman.corpus.prepare import prepare as prepare_corpus
from dragoman.corpus.sources import Sources
from dragoman.corpus.workers import Workers
from dragoman.corpus.workplace import FAILED
from dragoman.distributed.heartbeat import news_in
from dragoman.distributed.launch import Share, WorkerError, as_raised, launch_workers
from dragoman.recipe.recipe import Recipe, check_sections, digest
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.cleaning import write_cleaning_page
from dragoman.telemetry.events import (
    Alert,
    Event,
    EventListener,
    EventWriter,
    event_file,
    read_line,
)
from dragoman.telemetry.follower import Follower
from dragoman.telemetry.session import last_ranks, training_session

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Hosts
    from dragoman.formats.load import Origin
    from dragoman.run.extension import Extension


def prepare(
    recipe: Recipe,
    *,
    directory: Path | None = None,
    workers: Workers | None = None,
    show: AbstractContextManager[OnProgress | None] | None = None,
    origin: Origin | None = None,
    listeners: Sequence[EventListener] = (),
) -> Path:
    """Text files -> shards and a page of the dropped pairs; returns their directory.

    directory: that of `default_place` if it is None.
    workers: so many processes, or the nodes of a cluster; all cores here if it is None.
    show: a context that gives the function to call with the progress of the preparation.
    listeners: called with the alerts, after `show` has ended.
    origin: the model whose vocabulary is kept; a new one is learnt if it is None.
    """
    if directory is None:
        directory = default_place(recipe)
        if origin is not None:
            directory = directory.with_name(f"{directory.name}-of-{origin.digest[:8]}")
    alerts = _Alerts()
    with EventWriter(directory / "events") as events, show or nullcontext() as progress:
        events.subscribe(alerts)
        try:
            prepare_corpus(
                recipe.corpus,
                directory,
                workers=workers or os.cpu_count() or 1,
                events=events,
                progress=progress,
                vocabulary=None if origin is None else origin.vocabulary,
            )
        except CorpusError:
            write_cleaning_page(directory / FAILED)
            raise
        is_shown = progress is not None
    if is_shown and (told := recipe.corpus.told_by_names):
        line = Text(printable_line(f"languages: {told}"))  # after the bar, which would overwrite it
        open_console(outlives_reader=True).print(line, soft_wrap=True)
    write_cleaning_page(directory / REJECTED)
    for alert in alerts.seen:
        for listener in listeners:
            listener(alert)
    if origin is not None:
        origin.check_prepared(directory)
    return directory


def check_kept(recipe: Recipe, directory: Path | None, origin: Origin | None) -> None:
    """Raises ConfigError if `prepare` would keep shards of a directory that were made with another
    vocabulary than that of the origin. None for the directory: its default, which has its own."""
    if directory is None or origin is None or not (directory / FILE_NAME).is_file():
        return
    if Sources(recipe.corpus, downloads=None).match(Manifest.load(directory)):
        origin.check_prepared(directory)


@dataclass(slots=True)
class _Alerts(EventListener):
    """Keeps the alerts until what shows the progress has ended."""

    seen: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Keep the event if it is an alert."""
        if event.kind == Alert.kind:
            self.seen.append(event)


def default_place(recipe: Recipe) -> Path:
    """The default directory of shards: `prepared/<name>-<digest of the corpus>`.

    A change of a weight or name of the entries of text leaves it; the first one does not.
    """
    return Path("prepared") / f"{recipe.name}-{digest(recipe.corpus.of_text)[:8]}"


def start(
    recipe: Recipe,
    *,
    prepared: Path,
    runs: Path,
    fresh: bool = False,
    origin: Origin | None = None,
    extension: Extension | None = None,
) -> RunDirectory:
    """The newest run of exactly this recipe, or a new one if there is none or `fresh` is set.

    origin: the model that it starts from; runs from different models are different runs.
    extension: a finished run to go on from, in place of a model.
    """
    known = ""
    fill: Callable[[RunDirectory], None] | None = None
    if origin is not None:
        known, fill = origin.digest, origin.save_as_step_0
    if extension is not None:
        known, fill = extension.digest, extension.save
    existing = None if fresh else RunDirectory.newest(recipe, runs=runs, origin=known)
    if existing is not None:
        return existing
    return RunDirectory.create(recipe, prepared=prepared, runs=runs, origin=known, fill=fill)


def train(
    directory: RunDirectory, *, ranks: int | None = None, listeners: Sequence[EventListener] = ()
) -> None:
    """Train until the run's recipe says stop, from its newest checkpoint if it has one.

    ranks: processes on this machine; None: as many as the last training of this run was given
        here, otherwise one for each GPU, or one without GPUs.
    listeners: called with each event of the run. An
        exception from one of them ends the training.
    """
    from dragoman.cluster.hosts import leave_hosts

    ranks = ranks or last_ranks(directory.path)
    with training_session(directory.path, ranks=ranks):
        leave_hosts(directory.path)
        _work(["train", str(directory.path)], directory, ranks, listeners)


def train_share(
    directory: RunDirectory, share: Share, *, ranks: int, listeners: Sequence[EventListener] = ()
) -> None:
    """Train this machine's share of a run whose other machines a scheduler has started."""
    work = ["dragoman.run.worker", "train", str(directory.path)]
    with (
        nullcontext() if share.number else training_session(directory.path),
        _following(directory, () if share.number else listeners) as look,
    ):
        launch_workers(work, ranks=ranks, run_directory=directory.path, share=share, meanwhile=look)


def train_on(
    hosts: Hosts,
    directory: RunDirectory,
    *,
    print_line: Callable[[str], None],
    listeners: Sequence[EventListener] = (),
) -> None:
    """Train on several hosts; their files come back into the run's directory.

    print_line: called with each part of the work, in words for people.
    listeners: called with each event of the run.
    """
    from dragoman.cluster.training import train_on_hosts
    from dragoman.telemetry.sinks import TensorBoardSink

    directory.prepared()  # if it is gone, no host is asked
    with training_session(directory.path):
        with disk_errors_named(directory.tensorboard):
            listeners = [*listeners, TensorBoardSink(directory.tensorboard)]
        try:
            train_on_hosts(directory, hosts, listeners=listeners, print_line=print_line)
        finally:
            for listener in listeners:
                listener.close()


def evaluate(
    directory: RunDirectory,
    *,
    checkpoint: str = "best",
    source: Path | None = None,
    reference: Path | None = None,
    target: str = "",
    languages: str = "",
    ranks: int | None = None,
    overrides: Sequence[str] = (),
    listeners: Sequence[EventListener] = (),
) -> None:
    """Translate and score the run's test set, or another text and its reference.

    target: language of the reference, if the model translates into several.
    languages: the right languages of a run that was trained under wrong ones, such as "en-fr".
    overrides: settings to change in the recipe's sections search and evaluate, such as
        "search.beam_size=5".
    listeners: called with each event of the run.
    """
    if (source is None) != (reference is None):
        raise ConfigError(
            "a source needs its reference and a reference its source",
            place="evaluate",
            remedy="give both source and reference, or neither for the run's own test set",
        )
    if source is None and not (directory.prepared() / "test").is_dir():
        raise ConfigError(
            "the run has no test set",
            place=directory.path,
            remedy="name another text: its source and its reference",
        )
    check_sections(overrides, ("search", "evaluate"))
    corpus = directory.recipe().with_languages(languages).corpus
    arguments = ["evaluate", str(directory.path), "--checkpoint", checkpoint]
    arguments += [f"--languages={languages}"]
    if source is not None and reference is not None:
        token_for(target, corpus.directions, corpus.language_tokens)
        arguments += ["--source", str(source), "--reference", str(reference)]
        arguments += [f"--target={target}"]
    elif target:
        raise ConfigError(
            "the run's own test set says its languages itself",
            place=f"target language {target}",
            remedy="leave it out, or name another text: its source and its reference",
        )
    for override in overrides:
        arguments += ["--set", override]
    _work(arguments, directory, ranks, listeners)


def _work(
    arguments: Sequence[str],
    directory: RunDirectory,
    ranks: int | None,
    listeners: Sequence[EventListener],
) -> None:
    """Do a job: in this process if one rank is enough, else in workers through torchrun."""
    if ranks is None or ranks == 1:
        from dragoman.run import worker  # imports torch, which a mere launcher does not need

        ranks = ranks or worker.default_ranks()
        if ranks == 1:
            worker.work(arguments, listeners)
            return
    module = ["dragoman.run.worker", *arguments]
    with _following(directory, listeners) as look:
        try:
            launch_workers(module, ranks=ranks, run_directory=directory.path, meanwhile=look)
        except WorkerError as error:
            raise as_raised(error) from error


@contextmanager
def _following(
    directory: RunDirectory, listeners: Sequence[EventListener]
) -> Iterator[Callable[[Path], None]]:
    """A function that calls the listeners with the events that were written since its last call.

    It is given the directory of the heartbeats: if rank 0 stands still, its log does, too, and only
    the heartbeats of the other ranks say so.
    """
    follower = Follower(event_file(directory.events), start=None)
    shown: set[bytes] = set()

    def look(meeting: Path) -> None:
        for line in [*(text.strip().encode() for text in news_in(meeting)), *follower.lines()]:
            event = read_line(line)
            if event is None or line in shown:
                continue
            if event.kind == Alert.kind:
                shown.add(line)
            for listener in listeners:
                listener(event)

    try:
        yield look
    finally:
        follower.close()
        for listener in listeners:
            listener.close()
