"""The first process of a lab host: buries the dead, and takes the host down with the test.

Its standard input is a pipe from the test. When that closes, be it because the test is over or
because it was killed, this process ends, and the kernel ends every other one of its namespace.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

# The terminal's Ctrl-C comes here too; the test decides when this host ends.
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    readable, _, _ = select.select([sys.stdin], [], [], 0.1)
    if readable and not os.read(sys.stdin.fileno(), 1):
        break
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
