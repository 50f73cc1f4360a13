"""The command line: one module for each command, thin over the packages below.

command_line     `dragoman COMMAND ...`: the parser, the list of commands, exit codes
options          what commands are made of, and the options that several share
console          tables on a terminal, unbroken lines elsewhere
summary          what `dragoman run` prints at its end
budget_view      the tables of a budget
build_view       the tables of a build
comparison_view  what `dragoman compare` and `dragoman distill` print
"""

from dragoman.cli.command_line import main

__all__ = ["main"]
