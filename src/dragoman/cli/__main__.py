"""`python -m dragoman.cli`."""

import sys

from dragoman.cli.command_line import main

sys.exit(main())
