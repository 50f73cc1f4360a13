"""`dragoman stop`: save and end a training, from another terminal."""

from typing import Final

from dragoman.cli.options import RUN, Command, Options

_STOP_S: Final = 180.0


@Command(
    "stop",
    "save and end a training, from another terminal",
    "Save a training and end it, from another terminal.",
    RUN,
)
def run(options: Options) -> None:
    """End a training from another terminal, after it has saved everything."""
    from dragoman.base.terminal import open_console
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.telemetry.session import stop_session

    directory = RunDirectory.open(options.run)
    session = stop_session(directory.path, wait_s=_STOP_S)
    open_console().print(session.problem or f"{directory.path}: {session.state}", soft_wrap=True)
