"""The program that test_launch.py starts: the launcher's caller, or one of its workers.

launched.py launch TASK     calls launch_workers, as run.py does, or as a host of several does if
                            OF_SEVERAL_HOSTS names a store; PLACE is its number, then the most and
                            the fewest hosts
-m launched TASK            a worker
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from dragoman.base.errors import ConfigError, DragomanError
from dragoman.distributed.launch import Share, introduce_worker, launch_workers, report_failure
from dragoman.distributed.rendezvous import StoreAddress


def meet() -> None:
    """Join the others, say so, and save when a signal comes."""
    from dragoman.distributed.world import join_world

    with join_world() as world:
        world.barrier()
        Path(f"met-{world.rank}").write_text(os.environ["OMP_NUM_THREADS"])
        save_at_a_signal()


def fail() -> None:
    """Rank 1 finds an error; rank 0 waits for it in vain."""
    if os.environ["RANK"] == "1":
        raise ConfigError("is not a number", place="recipe.toml", remedy="write a number")
    time.sleep(600)


def save_at_a_signal() -> None:
    """Work until a signal comes, take some time to save, and end in peace."""
    rank = os.environ["RANK"]
    signals = []
    signal.signal(signal.SIGTERM, lambda number, _frame: signals.append(number))
    Path(f"working-{rank}").touch()
    while not signals:
        time.sleep(0.05)
    time.sleep(0.5)
    Path(f"saved-{rank}").touch()


def hang() -> None:
    """Take no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(f"working-{os.environ['RANK']}").touch()
    time.sleep(600)


def stand_still() -> None:
    """Rank 1 is stopped, as by a debugger; rank 0 waits for it in vain."""
    Path(f"working-{os.environ['RANK']}").touch()
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def come_late() -> None:
    """Never get to the work."""
    time.sleep(600)


TASKS = {
    task.__name__: task for task in (meet, fail, save_at_a_signal, hang, stand_still, come_late)
}


def main() -> int:
    """Returns the exit code."""
    try:
        if sys.argv[1] == "launch":
            limit_s = 8.0 if sys.argv[2] == "stand_still" else 60.0
            store = os.environ.get("OF_SEVERAL_HOSTS")
            number, most, fewest = map(int, os.environ.get("PLACE", "0 1 0").split())
            share = store and Share(number, most, "lo", StoreAddress.parse(store), fewest=fewest)
            launch_workers(
                ["launched", sys.argv[2]],
                ranks=1 if fewest else 2,
                run_directory=Path.cwd(),
                hung_after_s=limit_s,
                share=share or None,
                on_loss=lambda loss: print(loss.problem, file=sys.stderr),
            )
        else:
            introduce_worker()
            TASKS[sys.argv[1]]()
    except DragomanError as error:
        report_failure(error)
        print(f"dragoman: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
