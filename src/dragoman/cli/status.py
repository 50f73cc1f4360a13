"""`dragoman status`: the state of runs."""

from dragoman.cli.options import JSON, RUN, RUNS, Command, Options


@Command(
    "status",
    "the state of runs",
    "Print the state of runs.",
    RUN.but(nargs="*", help="run directories (default: all of --runs)"),
    *(RUNS, JSON),
)
def run(options: Options) -> None:
    """Print the state of runs, the newest first."""
    from dragoman.base.terminal import open_console
    from dragoman.recipe.run_directory import RunDirectory, runs_in
    from dragoman.watch.status import print_status, read_status, status_as_json

    paths = options.run or runs_in(options.runs)
    runs = [RunDirectory.open(path).path for path in paths]
    found = [read_status(run) for run in runs]
    if options.json:
        print(status_as_json(found))
    else:
        print_status(found, open_console())
