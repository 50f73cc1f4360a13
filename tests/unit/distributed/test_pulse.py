"""Signs of life: who gives them, and who has been silent for how long."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from dragoman.distributed.pulse import PULSE_EVERY_S, Pulses, beat
from processes import wait_until


def test_silence_is_counted_by_rank_until_the_next_beat(tmp_path: Path) -> None:
    pulses = Pulses(tmp_path)
    assert pulses.look() == {}
    moments = iter(range(10**9, 10**10, 1000))

    def touch(rank: int) -> None:
        beat_ns = next(moments)
        (tmp_path / f"pulse-{rank}").touch()
        os.utime(tmp_path / f"pulse-{rank}", ns=(beat_ns, beat_ns))

    (tmp_path / "launch.log").touch()
    touch(0)
    touch(12)
    assert pulses.look() == {0: 0.0, 12: 0.0}
    touch(12)
    assert pulses.look() == {0: PULSE_EVERY_S, 12: 0.0}
    assert pulses.look() == {0: 2 * PULSE_EVERY_S, 12: PULSE_EVERY_S}
    touch(0)
    assert pulses.look() == {0: 0.0, 12: 2 * PULSE_EVERY_S}


def test_a_process_beats_from_the_first_moment_until_the_folder_goes(tmp_path: Path) -> None:
    folder = tmp_path / "pulses"
    folder.mkdir()
    others = {*threading.enumerate()}
    beat(folder, rank=3)
    pulse = folder / "pulse-3"
    assert [*folder.iterdir()] == [pulse]
    (thread,) = {*threading.enumerate()} - others
    for _ in range(2):
        time.sleep(0.2)
        os.utime(pulse, ns=(0, 0))
        wait_until(lambda: pulse.stat().st_mtime_ns > 0, limit_s=10 * PULSE_EVERY_S)
    shutil.rmtree(folder)
    thread.join(10 * PULSE_EVERY_S)
    assert not thread.is_alive()


def test_a_process_ends_though_it_beats(tmp_path: Path) -> None:
    program = "import sys, pathlib; from dragoman.distributed import pulse\n"
    program += "pulse.beat(pathlib.Path(sys.argv[1]), rank=0)"
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, timeout=30)
    assert (tmp_path / "pulse-0").exists()
