"""`--dry-run`: what a run would take, before it starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.api.checks import checked, optional_path
from dragoman.api.kinds import Count, HostsLike, Option, Origin, Overrides, RecipeLike, RunLike

if TYPE_CHECKING:
    from dragoman.recipe.run_directory import RunDirectory


@checked
def dry_run(
    recipe: RecipeLike,
    *,
    overrides: Overrides = (),
    budget: str | None = None,
    extend: RunLike | None = None,
    fresh: bool = False,
    ranks: Count | None = None,
    hosts: HostsLike | None = None,
    runs: str | Path = "runs",
    prepared: str | Path | None = None,
    workers: Count | None = None,
    with_recipe: Annotated[bool, Option("--recipe")] = False,
) -> None:
    """Print the pairs, steps, memory, disk and hours of a run; start nothing.

    With hosts, it also prints every command of the training; with a budget, the settings that the
    budget would choose. It refuses whatever the run refuses before it prepares the text.

    recipe, budget: as for `run_recipe`.
    overrides, extend, fresh, ranks, hosts, runs, prepared, workers: as for `train`.
    with_recipe: print the whole recipe first, with all defaults.
    """
    if budget is None:
        dry_train(
            recipe,
            overrides=overrides,
            extend=extend,
            fresh=fresh,
            ranks=ranks,
            hosts=hosts,
            runs=runs,
            prepared=prepared,
            workers=workers,
            with_recipe=with_recipe,
        )
        return
    from dragoman.api.training import recipe_of, refuse_with_budget
    from dragoman.cli.forecast import print_recipe
    from dragoman.recipe.budget import parse_budget
    from dragoman.run.budget_plan import Place, plan_budget
    from dragoman.run.budget_view import print_plan

    refuse_with_budget(budget, recipe, extend)
    place = Place.of(None if hosts is None else str(hosts), ranks=ranks)
    plan = plan_budget(
        recipe_of(recipe, overrides),
        parse_budget(budget, place.price),
        place,
        prepared=optional_path(prepared),
        runs=Path(runs),
    )
    if with_recipe:
        print_recipe(plan.settled(asked="", started=time.time())[0])
    print_plan(plan)


@checked
def dry_train(
    recipe: Annotated[RecipeLike | RunDirectory, Option(metavar="RECIPE|RUN")],
    *,
    overrides: Overrides = (),
    origin: Origin | None = None,
    extend: RunLike | None = None,
    fresh: bool = False,
    ranks: Count | None = None,
    hosts: HostsLike | None = None,
    runs: str | Path = "runs",  # noqa: ARG001  # an option of `train`; nothing is written
    prepared: str | Path | None = None,
    workers: Count | None = None,
    with_recipe: Annotated[bool, Option("--recipe")] = False,
) -> None:
    """Print the pairs, steps, memory, disk and hours of a training; start nothing.

    With hosts, it also prints every command of the training. It refuses whatever the training
    refuses before it prepares the text.

    recipe, overrides, origin, extend, fresh, ranks, hosts, runs, prepared, workers: as for `train`.
    with_recipe: print the whole recipe first, with all defaults.
    """
    from rich.text import Text

    from dragoman.api.training import (
        begun_from,
        recipe_of,
        refuse_for_run,
        refuse_ranks_with_hosts,
    )
    from dragoman.base.terminal import open_console
    from dragoman.cli.forecast import print_dry_run
    from dragoman.cluster.dry_run import planned_commands
    from dragoman.cluster.hosts import load_hosts
    from dragoman.corpus.sources import check_text
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.telemetry.session import last_ranks
    from dragoman.telemetry.sinks import check_hook

    path = Path(str(recipe))
    directory = RunDirectory.open(path) if path.is_dir() else None
    if directory is not None:
        refuse_for_run(
            directory,
            overrides=overrides,
            origin=origin,
            extend=extend,
            prepared=prepared,
            workers=workers,
            fresh=fresh,
        )
    loaded = directory.recipe() if directory else recipe_of(recipe, overrides)
    listed = load_hosts(str(hosts)) if hosts is not None else None
    refuse_ranks_with_hosts(ranks, listed)
    extension, warnings = None, tuple[str, ...]()
    if directory is None:
        loaded, model, extension = begun_from(loaded, origin, extend)
        warnings = check_text(loaded.corpus)
        if listed is None:
            check_hook(loaded.sinks)
        if model is not None:  # which needs PyTorch; the rest does without
            from dragoman.run.run import check_kept

            check_kept(loaded, optional_path(prepared), model)
        if extension is not None and listed is None:
            ranks = ranks or last_ranks(extension.run.path)
    print_dry_run(
        loaded,
        name=str(recipe),
        ranks=sum(listed.ranks_per_host) if listed else ranks,
        extension=extension,
        is_here=listed is None,
        with_recipe=with_recipe,
    )
    for warning in warnings:
        open_console().print(Text(f"\nwarning: {warning}", style="yellow"), soft_wrap=True)
    if listed is not None:
        run = directory.path.name if directory else f"{loaded.name}-TIME-DIGEST"
        print("", *planned_commands(listed, run=run), sep="\n")
