"""`dragoman.build`: the same build from a script or a notebook."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.api.arguments import Count, Flag, checked
from dragoman.api.training import OnEvent, listeners_of, say_nothing, shown
from dragoman.base.terminal import open_console
from dragoman.builds.build import MODEL, STUDENT, Views
from dragoman.builds.build import build as do_stages
from dragoman.builds.planning import Wanted, planned
from dragoman.builds.stages import BuildStage
from dragoman.run.budget import Place


@dataclass(frozen=True, slots=True)
class Built:
    """A finished build.

    directory: the folder with all its files. model: the best export, for `Translator`.
    student: the export of the small, fast model, if there is one.
    report: a page with the cost and the gain of each stage.
    stages: the record of each stage: the seconds it was given, its start and end, and its facts.
    """

    directory: Path
    model: Path
    student: Path | None
    report: Path
    stages: tuple[BuildStage, ...]


@checked
def build(
    pair: str,
    budget: str = "",
    *,
    directory: str | Path | None = None,
    choose: Sequence[str] = (),
    mono: str | Path | None = None,
    student: Flag = False,
    index: str | Path = "",
    overrides: Sequence[str] = (),
    hosts: str | Path | None = None,
    ranks: Count | None = None,
    workers: Count | None = None,
    on_event: OnEvent | None = None,
    progress: Flag = False,
) -> Built:
    """Find corpora of two languages, clean them and train the best model within a budget.

    The same call resumes unfinished parts, and does not repeat finished ones.

    pair: source and target language, such as "en-de".
    budget: the time or money for all of it, such as "30min", "6h" or "50 USD"; "": that of
        `build.toml`.
    directory: the folder for all files; None: `builds/PAIR`. Its `build.toml` is the plan, which
        may be edited.
    choose: ids of corpora, in place of those that the rules choose.
    mono: a file of text of the target language, one sentence per line.
    student: train a small, fast model on the best one, too.
    index: another index of mtdata, a file or an address; "": mtdata's own.
    overrides: settings to change in the recipes of all models, such as "corpus.lowercase=true".
    hosts: hosts.toml with the machines to train on, or with the price of this one.
    ranks: processes on this machine; None: one for each GPU, or one without GPUs.
    workers: processes that prepare text; None: all cores.
    on_event: called with each event of each training, one at a time.
    progress: show the progress of the build.
    Raises ConfigError, CorpusError, MachineError and the errors of `train`.
    """
    folder = Path(directory) if directory is not None else Path("builds") / pair
    place = Place.of(None if hosts is None else str(hosts), ranks=ranks)
    wanted = Wanted(
        pair=pair,
        budget=budget,
        index=str(index),
        choose=choose,
        mono=None if mono is None else Path(mono),
        student=student,
        overrides=overrides,
    )
    began = time.time()
    plan, _ = planned(wanted, folder, place, began=began)
    views = Views(
        print_line=open_console(outlives_reader=True).print if progress else say_nothing,
        show=lambda: shown(progress),
        show_plan=say_nothing,
        listeners=lambda: listeners_of(on_event, progress),
        bars=progress,
    )
    stages, _ = do_stages(plan, folder, place, began=began, workers=workers, views=views)
    small = folder / STUDENT
    return Built(
        directory=folder,
        model=folder / MODEL,
        student=small if small.exists() else None,
        report=folder / "build.html",
        stages=tuple(stages),
    )
