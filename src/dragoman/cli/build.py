"""`dragoman build`: a pair of languages and a budget, in; a model to serve, out."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.base.errors import ConfigError
from dragoman.cli.options import RANKS, SET, WORKERS, Command, Option, Options

if TYPE_CHECKING:
    from dragoman.builds.plan import BuildPlan
    from dragoman.run.budget import Place


@Command(
    "build",
    "find corpora of two languages, clean, train: within a budget",
    "Find corpora of two languages, clean them and train the best model of a budget; with more "
    "text of the target language if that is worth its time. build.toml says all stages, and may be "
    "edited before the same command goes on with them.",
    Option("pair", metavar="PAIR", help="source and target language, such as en-de"),
    Option(
        "--budget",
        metavar="TIME|MONEY",
        help='what all of it may take, such as 30min, 6h or "50 USD"',
    ),
    Option("--directory", type=Path, help="the place of all files (default: builds/PAIR)"),
    Option(
        "--list", action="store_true", dest="lists", help="list the corpora of the pair, do nothing"
    ),
    Option("--dry-run", action="store_true", help="write build.toml, fetch and train nothing"),
    Option("--choose", metavar="ID,ID", default="", help="these corpora, in place of the rules"),
    Option(
        "--mono", type=Path, metavar="FILE", help="text of the target language, a sentence a line"
    ),
    Option("--student", action="store_true", help="train a small, fast model on the best one, too"),
    Option(
        "--index",
        default="",
        metavar="FILE|URL",
        help="another index of mtdata, such as that of a mirror: its lines of JSON",
    ),
    SET.but(help="override a value of the recipes; may be given again"),
    Option("--hosts", metavar="HOSTS", help="the machines to train on, or this machine's price"),
    *(RANKS, WORKERS),
)
def run(options: Options) -> None:
    """Plan, or read the plan; then do the stages that are left."""
    from dragoman.base.terminal import open_console
    from dragoman.builds.build import Views, build
    from dragoman.builds.plan import parse_pair, read_plan
    from dragoman.builds.planning import index_file
    from dragoman.builds.stages import clock_runs
    from dragoman.cli.budget_view import print_plan
    from dragoman.cli.build_view import print_build_plan, print_end
    from dragoman.cluster.doctor_view import print_findings
    from dragoman.cluster.training import NotFitError
    from dragoman.recipe.budget import parse_budget
    from dragoman.run.budget import Place
    from dragoman.run.progress import preparing
    from dragoman.telemetry.console import ConsoleSink
    from dragoman.telemetry.host import process_started

    pair = parse_pair(options.pair)
    directory = options.directory or Path("builds") / options.pair
    if options.lists:
        _list(options, directory)
        return
    place = Place.of(options.hosts, ranks=options.ranks)
    plan = read_plan(directory)
    if plan is None:
        if options.budget is None:
            raise ConfigError(
                "a build needs one, and there is no build.toml yet",
                place="--budget",
                remedy="give a time such as 6h",
            )
        seconds_s = parse_budget(options.budget, place.price)
        running = clock_runs(directory, began=process_started())
        with nullcontext() if options.dry_run else running:
            plan = _planned(options, pair, directory, place, seconds_s)
    else:
        _check_same(options, plan, directory)
        print_build_plan(plan, parse_budget(plan.budget, place.price), place.price)
    if options.dry_run:
        return
    console = open_console(outlives_reader=True)
    views = Views(
        tell=lambda text: console.print(text, soft_wrap=True),
        show=preparing,
        told_plan=print_plan,
        listeners=lambda: [ConsoleSink()],
    )
    try:
        stages, clock = build(
            plan,
            directory,
            place,
            index=index_file(plan.index, directory),
            began=process_started(),
            workers=options.workers,
            views=views,
        )
    except NotFitError as error:
        print_findings(error.findings, error.facts, console)
        raise
    print_end(plan, directory, stages, clock, place.price)


def _planned(
    options: Options, pair: tuple[str, str], directory: Path, place: Place, seconds_s: float
) -> BuildPlan:
    """A new plan, written and shown."""
    from dragoman.builds.planning import Wanted, index_file, make_plan, save_corpora
    from dragoman.cli.build_view import print_build_plan, print_corpora
    from dragoman.corpus.catalogue import Catalogue

    wanted = Wanted(
        pair=options.pair,
        budget=options.budget,
        index=_absolute(options.index),
        choose=_words(options.choose),
        mono=options.mono,
        student=options.student,
        overrides=options.overrides,
    )
    catalogue = Catalogue(index_file(wanted.index, directory))
    plan, corpora = make_plan(catalogue, wanted, pair, seconds_s, place)
    plan.save(directory)
    save_corpora(corpora, directory)
    print_corpora(corpora, most=12)
    print_build_plan(plan, seconds_s, place.price)
    return plan


def _list(options: Options, directory: Path) -> None:
    from dragoman.builds.plan import parse_pair
    from dragoman.builds.planning import Wanted, index_file, listed
    from dragoman.cli.build_view import print_corpora
    from dragoman.corpus.catalogue import Catalogue

    catalogue = Catalogue(index_file(options.index, directory))
    wanted = Wanted(pair=options.pair, budget="")
    print_corpora(listed(catalogue, wanted, parse_pair(options.pair), at_most_s=60.0))


def _check_same(options: Options, plan: BuildPlan, directory: Path) -> None:
    """Raises ConfigError for an option that says other than the plan."""
    file = directory / "build.toml"
    agrees = {
        "pair": options.pair == plan.pair,
        "--budget": options.budget in (None, plan.budget),
        "--choose": set(_words(options.choose)) <= {one.id for one in plan.corpus},
        "--mono": options.mono is None or str(options.mono.resolve()) == plan.mono,
        "--index": not options.index or _absolute(options.index) == plan.index,
        "--set": options.overrides in ([], list(plan.set)),
        "--student": not options.student or "student" in plan.shares(),
    }
    for name, same in agrees.items():
        if not same:
            raise ConfigError(
                f"{file} says otherwise",
                place=name,
                remedy="edit it there and leave the option out, or give another --directory",
            )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _absolute(name: str) -> str:
    return str(Path(name).resolve()) if name and "://" not in name else name
