"""`dragoman average`: several checkpoints into one model."""

from pathlib import Path
from typing import Final

from dragoman.cli.options import RUN, Command, Option, Options, positive

_DEFAULT_COUNT: Final = 5


@Command(
    "average",
    "average checkpoints into one model",
    "Average the weights of several checkpoints into one model.",
    RUN,
    (
        Option("--last", type=positive, metavar="K", help="the last K (default: 5)"),
        Option("--best", type=positive, metavar="K", help="the best K by dev loss"),
    ),
    Option(
        "--output", type=Path, help="the folder of the result (default: RUN/checkpoints/average)"
    ),
)
def run(options: Options) -> None:
    """Average checkpoints into one model; CheckpointError if there are fewer than requested."""
    from dragoman.base.errors import CheckpointError
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.training.average import average_checkpoints
    from dragoman.training.checkpoint import CheckpointStore
    from dragoman.training.durable import step_number

    directory = RunDirectory.open(options.run)
    store = CheckpointStore(directory.checkpoints, directory.recipe().checkpoint)
    wanted = options.best or options.last
    count = wanted or _DEFAULT_COUNT
    found = store.best(count + 1) if options.best else store.last(count + 1)
    # Step 0 is the model that --from named: it is not trained yet.
    trained = [path for path in found if step_number(path.name) > 0]
    paths = trained[:count] if options.best else trained[-count:]
    if wanted and len(paths) < wanted:
        kept, key = ("measured and kept", "best") if options.best else ("kept", "last")
        raise CheckpointError(
            f"only {len(paths)} of the {wanted} checkpoints to average were {kept}",
            place=directory.checkpoints,
            remedy=f"average fewer; a run with checkpoint.keep_{key} = {wanted} keeps enough",
        )
    output = options.output or directory.checkpoints / "average"
    average_checkpoints(paths, output)
    print(f"average of {', '.join(path.name for path in paths)}: {output}")
