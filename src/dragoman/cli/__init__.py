"""The command line: one module a command, thin over the packages below.

command_line   `dragoman COMMAND ...`: the parser, errors and exit codes
options        options that several commands share
console        tables on a terminal, unbroken lines elsewhere
summary        what `dragoman run` prints at its end
"""

from dragoman.cli.command_line import main

__all__ = ["main"]
