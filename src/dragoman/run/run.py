"""The whole run on one page: prepare, train, evaluate. Each step can be taken alone.

Finished work is not done again: shards of unchanged text are kept, an unfinished run of the
same recipe goes on where it stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.corpus.clean import REJECTED
from dragoman.corpus.directions import token_for
from dragoman.corpus.prepare import OnProgress
from dragoman.corpus.prepare import prepare as prepare_corpus
from dragoman.corpus.workplace import FAILED
from dragoman.distributed.launch import Share, WorkerError, as_raised, launch_workers
from dragoman.recipe.recipe import Recipe, check_sections, digest
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.cleaning import write_cleaning_page
from dragoman.run.curves import keep
from dragoman.telemetry.events import (
    Alert,
    EventListener,
    EventWriter,
    event_file,
    event_files,
    read_line,
)
from dragoman.telemetry.follower import Follower
from dragoman.telemetry.session import training_session

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Hosts
    from dragoman.formats.load import Origin


def run(
    recipe: Recipe,
    *,
    runs: Path,
    prepared: Path | None = None,
    workers: int | None = None,
    ranks: int | None = None,
    fresh: bool = False,
    show: AbstractContextManager[OnProgress] | None = None,
    listeners: Sequence[EventListener] = (),
) -> RunDirectory:
    """Text -> shards -> checkpoints -> scores; the directory holds all of it.

    show: a context that gives the function to call with the progress of the preparation.
    listeners: called with each event of rank 0, and with the alerts of the other ranks.
    """
    with show or nullcontext() as progress:
        shards = prepare(recipe, directory=prepared, workers=workers, progress=progress)
    directory = start(recipe, prepared=shards, runs=runs, fresh=fresh)
    train(directory, ranks=ranks, listeners=listeners)
    if recipe.corpus.test or recipe.corpus.test_pairs:
        evaluate(directory, ranks=ranks, listeners=listeners)
    return directory


def prepare(
    recipe: Recipe,
    *,
    directory: Path | None = None,
    workers: int | None = None,
    progress: OnProgress | None = None,
    origin: Origin | None = None,
) -> Path:
    """Text files -> shards and a page of the dropped pairs; returns their directory.

    directory: that of `default_place` if it is None.
    workers: processes; all cores if it is None.
    origin: the model whose vocabulary is kept; a new one is learnt if it is None.
    """
    if directory is None:
        directory = default_place(recipe)
        if origin is not None:
            directory = directory.with_name(f"{directory.name}-of-{origin.digest[:8]}")
    with EventWriter(directory / "events") as events:
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
    write_cleaning_page(directory / REJECTED)
    if origin is not None:
        origin.check_prepared(directory)
    return directory


def default_place(recipe: Recipe) -> Path:
    """The default directory of shards: `prepared/<name>-<digest of the corpus>`.

    It does not depend on the weights and names of the entries of text.
    """
    return Path("prepared") / f"{recipe.name}-{digest(recipe.corpus.of_text)[:8]}"


def start(
    recipe: Recipe,
    *,
    prepared: Path,
    runs: Path,
    fresh: bool = False,
    origin: Origin | None = None,
) -> RunDirectory:
    """The newest run of exactly this recipe, or a new one if there is none or `fresh` is set.

    origin: the model that it starts from; runs from different models are different runs.
    """
    known = "" if origin is None else origin.digest
    existing = None if fresh else RunDirectory.newest(recipe, runs=runs, origin=known)
    if existing is not None:
        return existing
    fill = None if origin is None else origin.save_as_step_0
    return RunDirectory.create(recipe, prepared=prepared, runs=runs, origin=known, fill=fill)


def train(
    directory: RunDirectory, *, ranks: int | None = None, listeners: Sequence[EventListener] = ()
) -> None:
    """Train until the run's recipe says stop, from its newest checkpoint if it has one.

    A run that finished adds its learning curve to the local table (`run.curves`).
    ranks: processes on this machine; None: one for each GPU, or one without GPUs.
    listeners: called with each event of rank 0, and with the alerts of the other ranks. An
        exception from one of them ends the training.
    """
    from dragoman.cluster.hosts import leave_hosts

    with training_session(directory.path):
        leave_hosts(directory.path)
        _work(["train", str(directory.path)], directory, ranks, listeners)
    keep(directory)


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
    listeners: called with each event of rank 0, and with the alerts of the other ranks.
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
    keep(directory)


def evaluate(
    directory: RunDirectory,
    *,
    checkpoint: str = "best",
    source: Path | None = None,
    reference: Path | None = None,
    target: str = "",
    ranks: int | None = None,
    overrides: Sequence[str] = (),
    listeners: Sequence[EventListener] = (),
) -> None:
    """Translate and score the run's test set, or another text and its reference.

    target: language of the reference, if the model translates into several.
    overrides: settings to change in the recipe's sections search and evaluate, such as
        "search.beam_size=5".
    listeners: called with each event of rank 0, and with the alerts of the other ranks.
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
    arguments = ["evaluate", str(directory.path), "--checkpoint", checkpoint]
    if source is not None and reference is not None:
        corpus = directory.recipe().corpus
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
) -> Iterator[Callable[[], None]]:
    """A function that calls the listeners with the events that rank 0 has written since its last
    call, and with the alerts of other ranks: if rank 0 stands still, only they can say so."""
    main = event_file(directory.events, rank=0)
    followers = {path: Follower(path, from_end=True) for path in event_files(directory.events)}

    def look() -> None:
        for path in event_files(directory.events):
            for line in followers.setdefault(path, Follower(path)).lines():
                event = read_line(line)
                if event is not None and (path == main or event.kind == Alert.kind):
                    for listener in listeners:
                        listener(event)

    try:
        yield look
    finally:
        for follower in followers.values():
            follower.close()
        for listener in listeners:
            listener.close()
