"""`dragoman build`: a pair of languages and a budget -> a model to serve."""

from __future__ import annotations

from pathlib import Path

from dragoman.cli.options import RANKS, SET, WORKERS, Command, Option, Options


@Command(
    "build",
    "find corpora of two languages, clean, train: within a budget",
    "Find corpora of two languages, clean them and train the best model within a budget, with "
    "back-translations of text in the target language if they are worth the time. build.toml lists "
    "all stages; you may edit it, and then run the same command again.",
    Option("pair", metavar="PAIR", help="source and target language, such as en-de"),
    Option(
        "--budget",
        metavar="TIME|MONEY",
        help='the time or money for all of it, such as 30min, 6h or "50 USD"',
    ),
    Option("--directory", type=Path, help="the place of all files (default: builds/PAIR)"),
    Option(
        "--list", action="store_true", dest="lists", help="list the corpora of the pair, do nothing"
    ),
    Option(
        "--dry-run",
        action="store_true",
        help="write build.toml and stop; fetch no corpus, train nothing",
    ),
    Option(
        "--choose",
        metavar="ID,ID",
        default="",
        help="use these corpora, not those that the rules choose (see --list)",
    ),
    Option(
        "--mono",
        type=Path,
        metavar="FILE",
        help="text of the target language, one sentence per line",
    ),
    Option(
        "--student", action="store_true", help="also train a small, fast student of the best model"
    ),
    Option(
        "--index",
        default="",
        metavar="FILE|URL",
        help="an index of corpora in place of mtdata's, such as that of a mirror: lines of JSON",
    ),
    SET.but(help="override a value of the recipes; may be given again"),
    Option(
        "--hosts",
        metavar="HOSTS",
        help="hosts.toml with the machines to train on and their prices; one that lists only "
        "this machine gives its price",
    ),
    *(RANKS, WORKERS),
)
def run(options: Options) -> None:
    """Make or read the plan; then do the stages that are left."""
    from dragoman.base.terminal import open_console
    from dragoman.builds.build import Views, build
    from dragoman.builds.plan import parse_pair
    from dragoman.builds.planning import Wanted, index_file, listed, planned
    from dragoman.cli.budget_view import print_plan
    from dragoman.cli.build_view import print_build_plan, print_corpora, print_end
    from dragoman.cluster.doctor_view import print_findings
    from dragoman.cluster.training import NotFitError
    from dragoman.corpus.catalogue import Catalogue
    from dragoman.recipe.budget import parse_budget
    from dragoman.run.budget import Place
    from dragoman.run.progress import preparing
    from dragoman.telemetry.console import ConsoleSink
    from dragoman.telemetry.host import process_started

    pair = parse_pair(options.pair)
    directory = options.directory or Path("builds") / options.pair
    wanted = Wanted(
        pair=options.pair,
        budget=options.budget or "",
        index=options.index,
        choose=[word.strip() for word in options.choose.split(",") if word.strip()],
        mono=options.mono,
        student=options.student,
        overrides=options.overrides,
    )
    if options.lists:
        catalogue = Catalogue(index_file(wanted.index, directory))
        print_corpora(listed(catalogue, wanted, pair, at_most_s=60.0))
        return
    place = Place.of(options.hosts, ranks=options.ranks)
    began = process_started()
    plan, corpora = planned(wanted, directory, place, began=began, dry_run=options.dry_run)
    if corpora:
        print_corpora(corpora, most=12)
    print_build_plan(plan, parse_budget(plan.budget, place.price), place.price)
    if options.dry_run:
        return
    console = open_console(outlives_reader=True)
    views = Views(
        print_line=lambda text: console.print(text, soft_wrap=True),
        show=preparing,
        show_plan=print_plan,
        listeners=lambda: [ConsoleSink()],
        bars=True,
    )
    try:
        stages, clock = build(
            plan, directory, place, began=began, workers=options.workers, views=views
        )
    except NotFitError as error:
        print_findings(error.findings, error.facts, console)
        raise
    print_end(plan, directory, stages, clock, place.price)
