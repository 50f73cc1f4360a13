"""The command `dragoman`, and `python -m dragoman`: handles Ctrl-C, then imports the rest."""

import gc
import os
import sys

try:
    from dragoman.base.interrupts import end_at_once_on_interrupt
except KeyboardInterrupt:  # the only one that is not caught there
    sys.exit(130)


def main() -> int:
    """Run one command; returns its exit code."""
    end_at_once_on_interrupt()
    gc.disable()  # modules that load leave no garbage; `cli.main` enables it before the work
    # To look for plugins, pydantic would read the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from dragoman import cli

    try:
        code = cli.main()
    finally:
        end_at_once_on_interrupt()  # while Python ends its threads and modules
    gc.disable()  # Python would look for garbage in all modules once more before it frees them
    return code


if __name__ == "__main__":
    sys.exit(main())
