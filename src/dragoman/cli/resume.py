"""`dragoman resume`: resume a run where it was trained before."""

from dragoman.cli.options import RUN, Command, Options
from dragoman.cli.train import train_shown


@Command(
    "resume",
    "resume a run on its hosts",
    "Resume a run where it was trained before: on its hosts, or on this machine.",
    RUN,
)
def run(options: Options) -> None:
    """Resume a run where it was trained before: on its hosts, or on this machine."""
    from dragoman.cluster.hosts import hosts_to_resume_on
    from dragoman.recipe.run_directory import RunDirectory

    directory = RunDirectory.open(options.run)
    train_shown(directory, hosts=hosts_to_resume_on(directory.path))
