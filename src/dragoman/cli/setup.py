"""`dragoman setup`: Python and torch on every host, over ssh."""

from dragoman.cli.options import HOSTS, Command, Options


@Command(
    "setup",
    "install a Python environment with torch on every host, over ssh",
    "Install a Python environment with torch on every host, over ssh.",
    HOSTS.but(required=True),
)
def run(options: Options) -> None:
    """Install a Python environment with all that dragoman needs on every host."""
    from dragoman.base.terminal import open_console
    from dragoman.cluster.hosts import load_hosts
    from dragoman.cluster.setup import set_up

    set_up(load_hosts(options.hosts), print_line=open_console(outlives_reader=True).print)
