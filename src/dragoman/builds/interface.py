"""`build`: two languages and a budget -> a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dragoman.api.checks import checked, optional_path
from dragoman.api.kinds import Count, OnEvent, Option, Overrides

if TYPE_CHECKING:
    from dragoman.builds.build import Built
    from dragoman.builds.plan import BuildPlan
    from dragoman.builds.planning import Choice, Wanted


@checked
def build(
    pair: str,
    budget: Annotated[str, Option("--budget", "TIME|MONEY")] = "",
    *,
    directory: str | Path | None = None,
    choose: Annotated[Sequence[str], Option(metavar="ID,ID")] = (),
    mono: str | Path | None = None,
    student: bool = False,
    index: Annotated[str | Path, Option(metavar="FILE|URL")] = "",
    overrides: Overrides = (),
    hosts: Annotated[str | Path | None, Option(metavar="HOSTS")] = None,
    ranks: Count | None = None,
    workers: Count | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> Built:
    """Find corpora, clean them and train a model within a budget.

    The best model is trained, with back-translations of text in the target language if they are
    worth the time. build.toml lists all stages; you may edit it, and then run the same command
    again, which does not repeat finished parts.

    pair: source and target language, such as en-de.
    budget: the time or money for all of it, such as 30min, 6h or "50 USD"; without it: that of
        build.toml.
    directory: the folder for all files; None: builds/PAIR.
    choose: use these corpora, not those that the rules choose.
    mono: a file of text of the target language, one sentence per line.
    student: also train a small, fast student of the best model.
    index: an index of corpora in place of mtdata's, such as that of a mirror: lines of JSON.
    overrides: a setting to change in the recipes of all models, such as corpus.lowercase=true; may
        be given again.
    hosts: hosts.toml with the machines to train on and their prices; one that lists only this
        machine gives its price.
    ranks: processes on this machine; None: one per GPU, or 1.
    workers: processes that prepare text; None: one per core.
    on_event: called with each event of each training, one at a time.
    progress: show the progress of the build.
    Raises ConfigError, CorpusError, MachineError and the errors of `train`.
    """
    from dragoman.api.progress import say_nothing
    from dragoman.builds.build import carry_out
    from dragoman.run.budget_view import print_plan

    began = time.time()
    wanted = _wanted(
        pair, budget, directory, choose, index, mono=mono, student=student, overrides=overrides,
        hosts=hosts, ranks=ranks,
    )  # fmt: skip
    plan = _planned(wanted, dry_run=False, progress=progress)
    return carry_out(
        plan,
        wanted,
        began=began,
        workers=workers,
        progress=progress,
        on_event=on_event,
        show_plan=print_plan if progress else say_nothing,
    )


@checked
def plan_build(**given: Any) -> None:
    """Write build.toml and print the plan; fetch no corpus, train nothing.

    given: the arguments of `build`.
    Raises ConfigError and MachineError.
    """
    _planned(_wanted(**given), dry_run=True, progress=True)


@checked
def list_corpora(**given: Any) -> Choice:
    """List the corpora of two languages, with those that a build would use.

    given: the arguments of `build`.
    Raises ConfigError and MachineError.
    """
    from dragoman.builds.planning import listed

    return listed(_wanted(**given), at_most_s=60.0)


def _wanted(
    pair: str,
    budget: str = "",
    directory: str | Path | None = None,
    choose: Sequence[str] = (),
    index: str | Path = "",
    *,
    mono: str | Path | None = None,
    student: bool = False,
    overrides: Sequence[str] = (),
    hosts: str | Path | None = None,
    ranks: int | None = None,
    **_others: object,
) -> Wanted:
    from dragoman.builds.planning import Wanted
    from dragoman.run.budget_plan import Place

    place = str(index)
    return Wanted(
        pair=pair,
        directory=optional_path(directory) or Path("builds") / pair,
        budget=budget,
        index=place if not place or "://" in place else str(Path(place).resolve()),
        choose=[one.strip() for word in choose for one in word.split(",") if one.strip()],
        mono=optional_path(mono),
        student=student,
        overrides=overrides,
        place=Place.of(None if hosts is None else str(hosts), ranks=ranks),
    )


def _planned(wanted: Wanted, *, dry_run: bool, progress: bool) -> BuildPlan:
    from dragoman.builds.planning import budget_of, planned
    from dragoman.builds.record import BuildRecord
    from dragoman.builds.report import print_corpora, print_stages, rows

    plan, choice = planned(wanted, dry_run=dry_run)
    if progress:
        if choice is not None:
            print_corpora(choice, most=12)
        print_stages(rows(plan, BuildRecord(), budget_of(plan, wanted), wanted.place.price))
    return plan


def show_build(built: Built) -> None:
    """How to use the model."""
    print(f"report: {built.report}\nserve: dragoman serve {built.model}")


def show_corpora(choice: Choice) -> None:
    """A row for each corpus, and the forms of the languages that were not considered."""
    from dragoman.builds.report import print_corpora

    print_corpora(choice)
