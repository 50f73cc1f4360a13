from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError, MachineError
from dragoman.corpus.workers import parallel_map
from processes import wait_until
from worker_tasks import die, refuse, square


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    results = parallel_map(square, iter(range(40)), workers=workers)
    assert list(results) == [number * number for number in range(40)]


def test_items_are_taken_only_as_fast_as_they_are_done() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    assert next(parallel_map(square, items(), workers=2)) == 0
    assert len(taken) < 10


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_task_keeps_its_words(workers: int) -> None:
    with pytest.raises(CorpusError) as error:
        list(parallel_map(refuse, range(10), workers=workers))
    assert str(error.value) == "here: is wrong; mend it"
    assert error.value.remedy == "mend it"


def test_a_killed_worker_is_an_error_with_a_remedy() -> None:
    with pytest.raises(MachineError, match=r"worker process was killed.*fewer workers"):
        list(parallel_map(die, range(10), workers=2))


SCRIPT = (
    "import sys\n"
    "from dragoman.corpus.workers import parallel_map\n"
    "from work import task\n"
    "list(parallel_map(task, range(4), workers=2))\n"
)
"""Without `if __name__ == "__main__"`: a worker that imported it would begin the work anew."""


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("def task(item):\n    return item\n")
    (tmp_path / "parent.py").write_text(SCRIPT.replace("list(", "print(*"))
    command = [sys.executable, str(tmp_path / "parent.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("0 1 2 3\n", "", 0)


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, pathlib, sys, time\n"
        "def task(item):\n"
        "    pathlib.Path(sys.argv[1], str(os.getpid())).touch()\n"
        "    time.sleep(60)\n"
    )
    (tmp_path / "parent.py").write_text(SCRIPT)
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(pids)])
    wait_until(lambda: len(list(pids.iterdir())) == 2)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(Path("/proc", pid.name).exists() for pid in pids.iterdir()))


def test_workers_that_are_still_starting_say_nothing_on_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import multiprocessing, os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1], str(os.getpid())).touch()\n"
        "if multiprocessing.current_process().name != 'MainProcess': time.sleep(1)\n"
        "def task(item):\n"
        "    return item\n"
    )
    (tmp_path / "parent.py").write_text(SCRIPT)
    pids = tmp_path / "pids"
    pids.mkdir()
    command = [sys.executable, str(tmp_path / "parent.py"), str(pids)]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(list(pids.iterdir())) == 3)
    os.killpg(parent.pid, signal.SIGINT)
    said = parent.communicate()[1]
    assert said.count("Traceback") == 1, said  # the parent's own
    assert said.rstrip().endswith("KeyboardInterrupt")
