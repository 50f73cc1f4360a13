"""`build`: two languages and a budget -> a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.api.checks import checked, optional_path
from dragoman.api.kinds import Count, OnEvent, Option, Overrides

if TYPE_CHECKING:
    from dragoman.builds.build import Built
    from dragoman.builds.corpora import Corpus
    from dragoman.builds.plan import BuildPlan
    from dragoman.builds.planning import Wanted
    from dragoman.run.budget_plan import Place


@dataclass(frozen=True, slots=True)
class Listing:
    """The corpora of two languages.

    other_forms: the scripts and regions whose corpora were not considered, in words.
    """

    corpora: Sequence[Corpus]
    other_forms: str


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
    from dragoman.builds.planning import planned
    from dragoman.builds.view import print_end
    from dragoman.recipe.budget import parse_budget
    from dragoman.run.budget_plan import Place
    from dragoman.run.budget_view import print_plan

    folder = optional_path(directory) or Path("builds") / pair
    wanted = _wanted(pair, budget, choose, mono, student, index, overrides)
    place = Place.of(None if hosts is None else str(hosts), ranks=ranks)
    began = time.time()
    plan, corpora = planned(wanted, folder, place)
    if progress:
        _print_planned(wanted, folder, plan, corpora, place)
    built = carry_out(
        plan,
        folder,
        place,
        began=began,
        workers=workers,
        progress=progress,
        on_event=on_event,
        show_plan=print_plan if progress else say_nothing,
    )
    if progress:
        print_end(plan, built, parse_budget(plan.budget, place.price), place.price)
    return built


@checked
def plan_build(
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
) -> None:
    """Write build.toml and print the plan; fetch no corpus, train nothing.

    pair, budget, directory, choose, mono, student, index: as for `build`.
    overrides, hosts, ranks: as for `build`.
    Raises ConfigError and MachineError.
    """
    from dragoman.builds.planning import planned
    from dragoman.run.budget_plan import Place

    folder = optional_path(directory) or Path("builds") / pair
    wanted = _wanted(pair, budget, choose, mono, student, index, overrides)
    place = Place.of(None if hosts is None else str(hosts), ranks=ranks)
    plan, corpora = planned(wanted, folder, place, dry_run=True)
    _print_planned(wanted, folder, plan, corpora, place)


@checked
def list_corpora(
    pair: str,
    budget: Annotated[str, Option("--budget", "TIME|MONEY")] = "",
    *,
    directory: str | Path | None = None,
    choose: Annotated[Sequence[str], Option(metavar="ID,ID")] = (),
    index: Annotated[str | Path, Option(metavar="FILE|URL")] = "",
) -> Listing:
    """List the corpora of two languages, with those that a build would use.

    pair, budget, directory, choose, index: as for `build`.
    Raises ConfigError and MachineError.
    """
    from dragoman.builds.planning import index_file, listed, other_forms
    from dragoman.corpus.catalogue import Catalogue
    from dragoman.corpus.directions import parse_pair

    languages = parse_pair(pair)
    folder = optional_path(directory) or Path("builds") / pair
    wanted = _wanted(pair, budget, choose, None, False, index, ())
    catalogue = Catalogue(index_file(wanted.index, folder))
    corpora = listed(catalogue, wanted, languages, at_most_s=60.0)
    return Listing(corpora, other_forms(catalogue, languages))


def _wanted(
    pair: str,
    budget: str,
    choose: Sequence[str],
    mono: str | Path | None,
    student: bool,
    index: str | Path,
    overrides: Sequence[str],
) -> Wanted:
    from dragoman.builds.planning import Wanted

    return Wanted(
        pair=pair,
        budget=budget,
        index=str(index),
        choose=[one.strip() for word in choose for one in word.split(",") if one.strip()],
        mono=optional_path(mono),
        student=student,
        overrides=overrides,
    )


def _print_planned(
    wanted: Wanted, folder: Path, plan: BuildPlan, corpora: Sequence[Corpus], place: Place
) -> None:
    from dragoman.builds.planning import index_file, other_forms
    from dragoman.builds.view import print_build_plan, print_corpora, print_other_forms
    from dragoman.corpus.catalogue import Catalogue
    from dragoman.corpus.directions import parse_pair
    from dragoman.recipe.budget import parse_budget

    if corpora:
        print_corpora(corpora, most=12)
        catalogue = Catalogue(index_file(wanted.index, folder))
        print_other_forms(other_forms(catalogue, parse_pair(wanted.pair)))
    print_build_plan(plan, parse_budget(plan.budget, place.price), place.price)


def show_build(built: Built) -> None:
    """How to use the model."""
    print(f"report: {built.report}\nserve: dragoman serve {built.model}")


def show_corpora(listing: Listing) -> None:
    """A row for each corpus, and the forms of the languages that were not considered."""
    from dragoman.builds.view import print_corpora, print_other_forms

    print_corpora(listing.corpora)
    print_other_forms(listing.other_forms)
