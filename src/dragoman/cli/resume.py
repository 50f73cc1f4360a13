"""`dragoman resume`: go on with a run where it was trained before."""

from dragoman.cli.options import RUN, Command, Options
from dragoman.cli.train import train_shown


@Command(
    "resume",
    "go on with a run on the hosts it was on",
    "Go on with a run where it was trained before: on its hosts, or on this machine.",
    RUN,
)
def run(options: Options) -> None:
    """Go on with a run where it was trained before: on its hosts, or on this machine."""
    from dragoman.cluster.hosts import hosts_to_resume_on
    from dragoman.recipe.run_directory import RunDirectory

    directory = RunDirectory.open(options.run)
    train_shown(directory, hosts=hosts_to_resume_on(directory.path))
