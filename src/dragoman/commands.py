"""What each command does: options in, a call of run.py, a few lines out."""

from __future__ import annotations

from argparse import Namespace

from dragoman import console
from dragoman.corpus.manifest import Manifest
from dragoman.errors import CheckpointError
from dragoman.recipe import list_recipes, load_recipe
from dragoman.run_directory import RunDirectory

_DEFAULT_AVERAGE = 5


def recipes(_options: Namespace) -> int:
    """List the shipped recipes."""
    console.print_recipes(list_recipes())
    return 0


def run(options: Namespace) -> int:
    """Prepare, train, evaluate and show some translations; or say what it will take."""
    recipe = load_recipe(options.recipe, options.overrides)
    if options.dry_run:
        console.print_dry_run(recipe, world_size=options.ranks or 1)
        return 0
    from dragoman.run import run as run_all
    from dragoman.summary import print_summary

    directory = run_all(
        recipe,
        runs=options.runs,
        prepared=options.prepared,
        workers=options.workers,
        ranks=options.ranks,
        fresh=options.fresh,
        show=console.preparing(),
    )
    print_summary(directory)
    return 0


def plan(options: Namespace) -> int:
    """What a run will take on given hosts and links."""
    from dragoman.cluster.plan_command import PlanRequest, plan_recipe
    from dragoman.cluster.plan_view import plan_as_json, print_plan

    request = PlanRequest(
        link=options.link,
        hosts=options.hosts,
        ranks=options.ranks,
        gpu=options.gpu,
        compute=options.compute,
        price=options.price,
    )
    planned = plan_recipe(load_recipe(options.recipe, options.overrides), request)
    if options.json:
        print(plan_as_json(planned))
    else:
        print_plan(planned, console.open_console())
    return 0


def prepare(options: Namespace) -> int:
    """Text files -> shards."""
    from dragoman.run import prepare as prepare_shards

    recipe = load_recipe(options.recipe, options.overrides)
    with console.preparing() as progress:
        directory = prepare_shards(
            recipe, directory=options.prepared, workers=options.workers, progress=progress
        )
    console.print_prepared(Manifest.load(directory), directory)
    return 0


def evaluate(options: Namespace) -> int:
    """Translate a test set and score it."""
    from dragoman.run import evaluate as evaluate_run

    evaluate_run(
        RunDirectory.open(options.run),
        checkpoint=options.checkpoint,
        source=options.source,
        reference=options.reference,
        ranks=options.ranks,
        overrides=options.overrides,
    )
    return 0


def average(options: Namespace) -> int:
    """Average checkpoints into one model."""
    from dragoman.train.average import average_checkpoints
    from dragoman.train.checkpoint import CheckpointStore

    run = RunDirectory.open(options.run)
    store = CheckpointStore(run.checkpoints, run.recipe().checkpoint)
    paths = (
        store.best(options.best) if options.best else store.last(options.last or _DEFAULT_AVERAGE)
    )
    wanted = options.best or options.last
    if wanted and len(paths) < wanted:
        kept, key = ("measured and kept", "best") if options.best else ("kept", "last")
        raise CheckpointError(
            f"only {len(paths)} of the {wanted} checkpoints to average were {kept}",
            place=run.checkpoints,
            remedy=f"average fewer; a run with checkpoint.keep_{key} = {wanted} keeps enough",
        )
    output = options.output or run.checkpoints / "average"
    average_checkpoints(paths, output)
    print(f"average of {', '.join(path.name for path in paths)}: {output}")
    return 0


def inspect(options: Namespace) -> int:
    """Every file with its purpose and size."""
    console.print_inventory(options.path)
    return 0
