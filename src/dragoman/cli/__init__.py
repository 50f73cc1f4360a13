"""The command line: one module for each command, thin over the packages below.

command_line     `dragoman COMMAND ...`: the parser, the list of commands, exit codes
options          commands and options as data, and the options that several commands share
console          tables on a terminal, unbroken lines elsewhere
summary          the output of `dragoman run` at its end
budget_view      the tables of a budget
build_view       the tables of a build
comparison_view  the output of `dragoman compare` and `dragoman distill`
"""

from dragoman.cli.command_line import main

__all__ = ["main"]
