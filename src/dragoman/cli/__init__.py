"""The command line: public functions as commands, and what these print.

command_line     `dragoman COMMAND ...`: from words to the call of a function; exit codes
commands         every command: its function, its view, its parts
parser           a typed function with a docstring -> options, defaults, help
views            what a command prints of its result
dry_run          what a run would take; forecast prints it
console          tables of prepared text and of files
summary          the output of `dragoman run` at its end
comparison_view  the output of `dragoman compare` and `dragoman distill`
exam_view        the output of `dragoman exam`
confidence_view  the output of `dragoman calibrate`
report_view      the answers of a report
"""

from dragoman.cli.command_line import main

__all__ = ["main"]
