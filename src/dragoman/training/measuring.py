"""Measures steps and the network in one process of a host: `python -m dragoman.training.measuring`.

PyTorch is imported once, which takes seconds. Commands are lines of JSON on standard input:

{"do": "steps"}                          prints the line of `step_rate`
{"do": "store", "address": ADDRESS}      opens the store in which all hosts meet; prints its port
{"do": "network", "environment": {...}}  the last command; prints the lines of `distributed.probe`
"""

from __future__ import annotations

import json
import os
import sys

from dragoman.base.memory import keep_freed_memory
from dragoman.distributed import probe
from dragoman.distributed.store import serve
from dragoman.distributed.world import join_world
from dragoman.training.step_rate import measure_steps


def main() -> int:
    """Run commands until the input ends."""
    keep_freed_memory()  # as in training
    stores = []  # each is open as long as it is referenced
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "steps":
            with join_world() as world:
                print(json.dumps(measure_steps(world)), flush=True)
        elif order["do"] == "store":
            stores.append(serve(order["address"]))
            print(stores[-1].port, flush=True)
        else:
            os.environ.update(order["environment"])
            return probe.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
