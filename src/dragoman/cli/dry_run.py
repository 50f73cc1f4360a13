"""`--dry-run`: what a run would take, before it starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from dragoman.api.checks import checked, optional_path
from dragoman.api.kinds import Option


@checked
def dry_run(*, with_recipe: Annotated[bool, Option("--recipe")] = False, **given: Any) -> None:
    """Print the pairs, steps, memory, disk and hours of a run; start nothing.

    With hosts, it also prints every command of the training; with a budget, the settings that the
    budget would choose. It refuses whatever the run refuses before it prepares the text.

    with_recipe: print the whole recipe first, with all defaults.
    given: the arguments of `run_recipe` or of `train`.
    """
    if given.get("budget") is None:
        _print_training(given, with_recipe=with_recipe)
    else:
        _print_budget(given, with_recipe=with_recipe)


def _print_budget(given: dict[str, Any], *, with_recipe: bool) -> None:
    from dragoman.api.training import recipe_of, refuse_with_budget
    from dragoman.cli.forecast import print_recipe
    from dragoman.recipe.budget import parse_budget
    from dragoman.run.budget_plan import Place, plan_budget
    from dragoman.run.budget_view import print_plan

    recipe, budget = given["recipe"], given["budget"]
    refuse_with_budget(budget, recipe, given.get("extend"))
    place = Place.of(given.get("hosts"), ranks=given.get("ranks"))
    plan = plan_budget(
        recipe_of(recipe, given.get("overrides", ())),
        parse_budget(budget, place.price),
        place,
        prepared=optional_path(given.get("prepared")),
        runs=Path(given.get("runs", "runs")),
    )
    if with_recipe:
        print_recipe(plan.settled(asked="", started=time.time())[0])
    print_plan(plan)


def _print_training(given: dict[str, Any], *, with_recipe: bool) -> None:
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

    recipe, ranks, path = given["recipe"], given.get("ranks"), Path(given["recipe"])
    hosts = load_hosts(given["hosts"]) if "hosts" in given else None
    refuse_ranks_with_hosts(ranks, hosts)
    extension, warnings = None, tuple[str, ...]()
    if path.is_dir():
        run = RunDirectory.open(path)
        refuse_for_run(run, given)
        loaded, name = run.recipe(), run.path.name
    else:
        loaded, model, extension = begun_from(
            recipe_of(recipe, given.get("overrides", ())), given.get("origin"), given.get("extend")
        )
        name = f"{loaded.name}-TIME-DIGEST"
        warnings = check_text(loaded.corpus)
        if hosts is None:
            check_hook(loaded.sinks)
        if model is not None:  # which needs PyTorch; the rest does without
            from dragoman.run.run import check_kept

            check_kept(loaded, optional_path(given.get("prepared")), model)
        if extension is not None and hosts is None:
            ranks = ranks or last_ranks(extension.run.path)
    print_dry_run(
        loaded,
        name=recipe,
        ranks=sum(hosts.ranks_per_host) if hosts else ranks,
        extension=extension,
        is_here=hosts is None,
        with_recipe=with_recipe,
    )
    for warning in warnings:
        open_console().print(Text(f"\nwarning: {warning}", style="yellow"), soft_wrap=True)
    if hosts is not None:
        print("", *planned_commands(hosts, run=name), sep="\n")
