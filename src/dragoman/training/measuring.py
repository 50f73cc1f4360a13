"""Measures steps and the network in one process of a host: `python -m dragoman.training.measuring`.

PyTorch is imported once, which takes seconds. Commands are lines of JSON on standard input:

{"do": "steps"}    prints the line of `step_rate`
{"do": "network", "environment": {...}, "store": [ADDRESS, PORT] or null}
                   the last command; opens the store there, prints the lines of `distributed.probe`
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
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "steps":
            with join_world() as world:
                print(json.dumps(measure_steps(world)), flush=True)
        else:
            os.environ.update(order["environment"])
            if order["store"]:
                address, port = order["store"]
                _store = serve(address, port=port)  # open as long as it is referenced
            return probe.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
