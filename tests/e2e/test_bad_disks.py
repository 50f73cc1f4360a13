"""A disk that fills up at any moment of any command: one line, and the same command goes on later.

The disk is a small file system of its own, as only root can make it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bad_input import SENTENCES, write_good_folder
from dragoman.cli import main
from foreign_models import marian_folder
from forked_command import execute
from parallel_text import write_lines

_DISK_BYTES = 40_000_000
_STEP_BYTES = 4096
_ALL_SIZES = range(0, 400_000, _STEP_BYTES)
_FEW_SIZES = (0, 4096, 8 * 4096, 20 * 4096)


@dataclass(frozen=True)
class Command:
    """A command that writes to the disk.

    words: {run} is a trained run there. says_there: whether its standard output is on the disk too.
    """

    name: str
    words: tuple[str, ...]
    says_there: bool = False

    def execute(self) -> tuple[int, str]:
        """Exit code and errors; a model that has hardly learnt may be warned of."""
        output = "disk/standard-output" if self.says_there else os.devnull
        code, said = execute(self.words, output=output)
        lines = said.splitlines(keepends=True)
        return code, "".join(line for line in lines if not line.startswith("warning: "))


PLACES = ("--prepared", "disk/prepared", "--workers", "1")
COMMANDS = [
    Command("run", ("run", "small.toml", "--ranks", "1", "--runs", "disk/runs", *PLACES)),
    Command(
        "run, output",
        ("run", "small.toml", "--ranks", "1", "--runs", "disk/runs", *PLACES),
        says_there=True,
    ),
    Command("prepare", ("prepare", "small.toml", *PLACES)),
    Command("train", ("train", "disk/begun")),
    Command("train, output", ("train", "disk/begun"), says_there=True),
    Command("report", ("report", "disk/trained"), says_there=True),
    Command("export", ("export", "disk/trained"), says_there=True),
    Command(
        "translate",
        ("translate", "disk/trained", "--input", "train.en", "--output", "disk/out"),
        says_there=True,
    ),
]
LATER = [
    *(
        Command(
            f"export, {kind}",
            ("export", "disk/trained", "--to", kind, *(("--licence", "MIT") * (kind == "argos"))),
        )
        for kind in ("ctranslate2", "onnx", "argos")
    ),
    Command(
        "synthesize",
        ("synthesize", "disk/trained", "--input", "train.en", "--output", "disk/made.tsv"),
        says_there=True,
    ),
    Command(
        "score",
        ("score", "disk/trained", "pairs.tsv", "--output", "disk/scored.tsv"),
        says_there=True,
    ),
    Command(
        "compare",
        ("compare", "disk/trained", "disk/trained", "--test", "train.en,train.de"),
        says_there=True,
    ),
    Command("distill", ("distill", "disk/trained", "small.toml", "--runs", "disk/runs")),
    Command("import", ("import", "opus", "--to", "disk/imported"), says_there=True),
]
"""Left out: web, whose runtime comes over the network; build, which needs a mirror and a minute."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, shards and a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        write_good_folder()
        assert main(["run", "small.toml", "--ranks", "1", "--workers", "1"]) == 0
    return folder


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another tool."""
    return marian_folder(tmp_path_factory.mktemp("opus"))


@pytest.fixture
def disk(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk beside the text, in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_good_folder()
    write_lines(tmp_path / "pairs.tsv", ["\t".join(pair) for pair in SENTENCES])
    (tmp_path / "distilled").symlink_to(tmp_path / "disk")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "dragoman-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root and the right to mount a small file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def furnish(disk: Path, trained: Path) -> None:
    """Put a finished run on the disk, and one that was only begun."""
    for entry in disk.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (run,) = (trained / "runs").iterdir()
    shutil.copytree(run, disk / "trained")
    shutil.rmtree(disk / "trained" / "checkpoints" / "step-0000001", ignore_errors=True)
    shutil.copytree(run, disk / "begun", ignore=shutil.ignore_patterns("step-*", "samples", "log*"))


def fill(disk: Path, free_bytes: int) -> Path:
    """A file that leaves so much room on the disk."""
    filler = disk / "filler"
    state = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize - free_bytes)
    state = os.statvfs(disk)
    assert abs(state.f_bavail * state.f_frsize - free_bytes) < _STEP_BYTES
    return filler


def check_every_size(
    command: Command, sizes: Iterator[int], disk: Path, trained: Path
) -> Counter[str]:
    """How many sizes were too small, and how many were enough."""
    ends: Counter[str] = Counter()
    for free_bytes in sizes:
        furnish(disk, trained)
        filler = fill(disk, free_bytes)
        code, said = command.execute()
        where = f"{command.name} with {free_bytes} bytes free: exit code {code}: {said}"
        if code == 0:
            ends["enough"] += 1
            assert said == "", where
            continue
        ends["too small"] += 1
        assert code == 1, where
        assert said.count("\n") == 1, where
        assert said.startswith("dragoman: "), where
        assert "; " in said, where
        filler.unlink()
        code, said = command.execute()
        assert (code, said) == (0, ""), f"once there was room again, after {where}: {said}"
    return ends


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_disk_with_little_room_is_one_line(command: Command, disk: Path, trained: Path) -> None:
    ends = check_every_size(command, iter(_FEW_SIZES), disk, trained)
    assert ends["too small"] > 0


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [LATER[0], *(pytest.param(command, marks=pytest.mark.slow) for command in LATER[1:])],
    ids=lambda command: command.name,
)
def test_a_disk_with_little_room_is_one_line_for_other_commands(
    command: Command, disk: Path, trained: Path, opus: Path
) -> None:
    Path("opus").symlink_to(opus)
    ends = check_every_size(command, iter(_FEW_SIZES), disk, trained)
    assert ends["too small"] > 0


@pytest.mark.parametrize("free_bytes", [4096, pytest.param(57_344, marks=pytest.mark.slow)])
def test_ranks_whose_temporary_files_are_on_the_full_disk(
    free_bytes: int, disk: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks meet, and tell why they ended, in TMPDIR: mostly the disk of the runs as well."""
    furnish(disk, trained)
    (disk / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(disk / "tmp"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "dragoman", "train", "disk/begun", "--ranks", "2"]
    filler = fill(disk, free_bytes)
    full = subprocess.run(command, capture_output=True, text=True)
    assert full.returncode == 1, full.stderr
    assert full.stderr.count("\n") == 1, full.stderr
    assert "space" in full.stderr
    filler.unlink()
    again = subprocess.run(command, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", COMMANDS + LATER, ids=lambda command: command.name)
def test_every_amount_of_room_is_enough_or_one_line(
    command: Command, disk: Path, trained: Path, opus: Path
) -> None:
    Path("opus").symlink_to(opus)
    ends = check_every_size(command, iter(_ALL_SIZES), disk, trained)
    print(f"{command.name}: {dict(ends)}")
    assert ends["too small"] > 0
