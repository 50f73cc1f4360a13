"""Standard output that takes nothing, Ctrl-C at any moment, and bugs: one line at most."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bad_input import complaint, write_good_folder
from dragoman.base.process import INTERNAL
from dragoman.cli import main, views
from dragoman.telemetry.session import read_session
from forked_command import execute
from processes import wait_until

DRAGOMAN = [sys.executable, "-m", "dragoman"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text and a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        write_good_folder()
        assert main(["run", "small.toml", "--ranks", "1", "--workers", "1"]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a copy of the folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return next(Path("runs").glob("small-*"))


@pytest.mark.parametrize(
    "words",
    [
        "run --recipes",
        "inspect RUN",
        "report RUN",
        "report --status RUN",
        "report --status RUN --json",
        "watch RUN --once",
        "run small.toml",
        "run small.toml --dry-run",
        "run small.toml --fresh --ranks 1",
        "prepare small.toml",
        "train RUN",
        "evaluate RUN",
        "export RUN --average 1",
        "export RUN",
        "translate RUN --input train.en",
        "plan small.toml --gpu v100 --link 1Gbit --hosts 2",
        "jobs slurm small.toml --folder /shared",
    ],
)
def test_an_output_without_room_is_one_line(words: str, run: Path) -> None:
    code, said = execute(words.replace("RUN", str(run)).split(), output="/dev/full")
    assert code == 1, said
    assert said.count("\n") == 1, said
    assert said.startswith("dragoman: standard output: "), said
    assert "; free " in said


PROGRESS_WITHOUT_ROOM = """
import sys
from pathlib import Path
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.process import prepare_streams, report
prepare_streams()
try:
    with disk_errors_named(Path("a.tsv")):
        print("read and clean: 1,000 pairs", flush=True)
except Exception as error:
    code = report(error)
sys.exit(code)
"""


def test_progress_of_work_on_a_disk_without_room_is_one_line() -> None:
    """Such work gives each full disk a name; what is left of the output must not be tried again."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRESS_WITHOUT_ROOM],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("dragoman: standard output: the disk is full")
    assert done.stderr.count("\n") == 1


def test_help_into_an_output_without_room_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*DRAGOMAN, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("dragoman: standard output: ")


@pytest.mark.parametrize("ranks", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_training_outlives_the_reader_of_its_output(
    ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `dragoman run small.toml | head -0`."""
    monkeypatch.chdir(tmp_path)
    write_good_folder()
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*DRAGOMAN, "run", "small.toml", "--workers", "1", "--ranks", ranks],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 0, done.stderr
    (run,) = Path("runs").iterdir()
    session = read_session(run)
    assert session is not None
    assert session.state == "finished"
    assert (run / "samples" / "test.de").is_file()
    if ranks == "1":  # with more, the rank that finds out writes its errors to the launch log
        assert done.stderr.count("\n") == 1, done.stderr
        assert "standard output is closed; the work goes on" in done.stderr


@pytest.mark.parametrize("after", ["moved", "removed"])
def test_a_run_that_is_gone_while_it_trains_is_one_line(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_good_folder()
    endless = [f"train.{key}=1000000" for key in ("max_steps", "validate_every_steps")]
    with subprocess.Popen(
        [*DRAGOMAN, "train", "small.toml", "--workers", "1", "--ranks", "1"]
        + [word for value in endless for word in ("--set", value)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as training:
        wait_until(lambda: any(Path("runs").glob("*/checkpoints/step-*")))
        if after == "moved":
            Path("runs").rename("moved")
        else:
            Path("runs").rename("doomed")
            shutil.rmtree("doomed")
        _, said = training.communicate(timeout=60)
    assert training.returncode == 1, said
    assert said.count("\n") == 1, said
    assert "moved or removed" in said


@pytest.mark.parametrize(
    "words", ["run --recipes", "train small.toml", "translate RUN --input train.en"]
)
def test_ctrl_c_at_any_moment_is_no_traceback(words: str, run: Path) -> None:
    """Also while the command line is read and torch is imported."""
    moments = [0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0]
    for moment in moments:
        with subprocess.Popen(
            [*DRAGOMAN, *words.replace("RUN", str(run)).split()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as started:
            time.sleep(moment)
            started.send_signal(signal.SIGINT)
            _, said = started.communicate(timeout=60)
        if "Traceback" in said and f"{Path(views.__file__).parents[1]}/__main__.py" not in said:
            continue  # Python had not come to our first line yet
        # A signal ended it before it could answer: 130 to a shell, as well.
        assert started.returncode in (130, -signal.SIGINT, 0), (moment, said)
        assert said.count("\n") <= 1, (moment, said)


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_bug_is_one_line_that_says_where_its_traceback_is(
    debug: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_recipes: object) -> None:
        raise LookupError("of a bug")

    monkeypatch.setattr(views, "show_recipes", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DRAGOMAN_DEBUG", debug)
    assert main(["run", "--recipes"]) == INTERNAL
    if debug:
        said = capsys.readouterr().err.splitlines()
        assert said[0].startswith("Traceback")
        assert "internal error: LookupError: of a bug" in said[-1]
        return
    line = complaint(capsys)
    assert "internal error: LookupError: of a bug" in line
    (file,) = tmp_path.iterdir()
    assert str(file) in line
    assert "in fail" in file.read_text()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("8192 requested and 4096 written"), "the disk is full"),  # as numpy says it
        (PermissionError(13, "Permission denied", "text.en"), "text.en: permission denied"),
        (MemoryError(), "memory ran out"),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates"), "0xff"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_system_error_is_named(
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_recipes: object) -> None:
        raise error

    monkeypatch.setattr(views, "show_recipes", fail)
    assert main(["run", "--recipes"]) == 1
    assert words in complaint(capsys)


def test_hints_can_be_pasted_into_a_shell(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    awkward = Path("a folder; with 'quotes'")
    awkward.mkdir()
    run.rename(awkward / run.name)
    capsys.readouterr()
    assert main(["train", "--stop", str(awkward / run.name)]) == 1
    hint = complaint(capsys).partition("; dragoman report --status ")[2]
    assert shlex.split(hint)[0] == str(awkward / run.name)
