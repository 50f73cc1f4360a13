"""`dragoman run`: prepare, train, evaluate and show some translations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.base.errors import ConfigError
from dragoman.cli.options import FRESH, PLACES, RANKS, RECIPE, SET, Command, Option, Options

if TYPE_CHECKING:
    from dragoman.recipe.recipe import Recipe


@Command(
    "run",
    "prepare, train, score and translate, in one go",
    "Prepare, train, score the test set and translate, in one go. The same command again "
    "resumes unfinished parts.",
    *(RECIPE, SET, *PLACES, RANKS, FRESH),
    Option(
        "--budget",
        metavar="TIME|MONEY",
        help='the time or money for all of it, such as 30min, 6h or "50 USD"; it chooses the '
        "settings that the recipe leaves out",
    ),
    Option(
        "--hosts",
        metavar="HOSTS",
        help="with --budget: hosts.toml with the machines to train on and their prices; one that "
        "lists only this machine gives its price",
    ),
    Option(
        "--dry-run",
        action="store_true",
        help="print the parameters, steps, memory and disk of the run, and stop",
    ),
)
def run(options: Options) -> None:
    """Prepare, train, evaluate and show some translations; with --dry-run only estimate the run."""
    from dragoman.cli import console
    from dragoman.recipe.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    if options.hosts is not None and options.budget is None:
        raise ConfigError(
            "dragoman run uses hosts only with a budget",
            place="--hosts",
            remedy="add --budget, or train on hosts with: dragoman train RECIPE --hosts HOSTS",
        )
    if options.budget is not None:
        _run_in_budget(recipe, options)
        return
    if options.dry_run:
        from dragoman.run.worker import default_ranks

        console.print_dry_run(recipe, world_size=options.ranks or default_ranks())
        return
    from dragoman.cli.summary import print_summary
    from dragoman.run.progress import preparing
    from dragoman.run.run import run as run_all
    from dragoman.telemetry.console import ConsoleSink

    directory = run_all(
        recipe,
        runs=options.runs,
        prepared=options.prepared,
        workers=options.workers,
        ranks=options.ranks,
        fresh=options.fresh,
        show=preparing(),
        listeners=[ConsoleSink()],
    )
    print_summary(directory)


def _run_in_budget(recipe: Recipe, options: Options) -> None:
    from dragoman.base.terminal import open_console
    from dragoman.cli.budget_view import print_outcome, print_plan
    from dragoman.cli.summary import print_summary
    from dragoman.cluster.doctor_view import print_findings
    from dragoman.cluster.training import NotFitError
    from dragoman.recipe.budget import money_of, parse_budget
    from dragoman.run.budget import Place, plan_budget, run_in_budget
    from dragoman.run.progress import preparing
    from dragoman.telemetry.console import ConsoleSink
    from dragoman.telemetry.host import process_started

    place = Place.of(options.hosts, ranks=options.ranks)
    seconds_s = parse_budget(options.budget, place.price)
    if options.dry_run:
        print_plan(plan_budget(recipe, seconds_s, place, prepared=options.prepared))
        return
    console = open_console(outlives_reader=True)
    try:
        directory = run_in_budget(
            recipe,
            seconds_s,
            place,
            runs=options.runs,
            money=money_of(options.budget),
            prepared=options.prepared,
            workers=options.workers,
            began=process_started(),
            fresh=options.fresh,
            show=preparing(),
            listeners=[ConsoleSink()],
            show_plan=print_plan,
            print_line=console.print,
        )
    except NotFitError as error:
        print_findings(error.findings, error.facts, console)
        raise
    print_summary(directory)
    print_outcome(directory)
