"""What `make dist` writes is the same each time, complete, and works without a checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def build(folder: Path) -> dict[str, str]:
    """SHA-256 of what is built, by name."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content and nothing else."""
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    (wheel,) = folder.glob("*.whl")
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel],
        check=True,
        capture_output=True,
    )
    return site


def test_two_builds_are_equal(tmp_path: Path) -> None:
    first = build(tmp_path / "first")
    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "whl"]
    assert build(tmp_path / "second") == first


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    build(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("dragoman/")}
    source = REPOSITORY / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert held == {name for name in files if "__pycache__" not in name}


def test_the_wheel_alone_trains_and_translates(installed: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def dragoman(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, installed / "bin" / "dragoman", *arguments],
            cwd=tmp_path,
            env=environment,
            input="Click the button.\n",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = subprocess.run(
        [sys.executable, "-c", "import dragoman; print(dragoman.__file__, dragoman.__version__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert Path(where[0]).is_relative_to(installed)
    assert dragoman("--version").split() == ["dragoman", where[1]]
    short = ("train.max_steps=4", "train.validate_at_start=false", "evaluate.bleu_pairs=20")
    options = [part for value in (*short, "search.beam_size=1") for part in ("--set", value)]
    dragoman("run", "demo", "--ranks", "1", *options)
    (run,) = (tmp_path / "runs").iterdir()
    dragoman("export", str(run), "--to", "ctranslate2")
    (bundle,) = (run / "export").iterdir()
    assert len(dragoman("translate", str(bundle)).splitlines()) == 1
