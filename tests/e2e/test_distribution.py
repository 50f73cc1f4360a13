"""The files of `make dist` are the same each time, complete, and work without a checkout."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def build(folder: Path) -> dict[str, str]:
    """SHA-256 of what is built, by name."""
    for command in (("-m", "hatchling", "build", "-d"), ("tools/write_sbom.py",)):
        subprocess.run(
            [sys.executable, *command, folder], cwd=REPOSITORY, check=True, capture_output=True
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
    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "json", "whl"]
    assert build(tmp_path / "second") == first


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    build(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("dragoman/")}
    source = REPOSITORY / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert held == {name for name in files if "__pycache__" not in name}


def test_the_bill_of_materials_is_valid_and_names_the_dependencies(tmp_path: Path) -> None:
    digests = build(tmp_path)
    (file,) = tmp_path.glob("*.cdx.json")
    bill = json.loads(file.read_bytes())
    schemas = files("cyclonedx.schema") / "_res"

    def published(address: str) -> Any:
        return json.loads((schemas / address.rpartition("/")[2]).read_bytes())

    schema = published("bom-1.6.SNAPSHOT.schema.json")
    jsonschema_rs.validator_for(schema, retriever=published).validate(bill)
    assert "timestamp" not in bill["metadata"]
    listed = {
        one["url"]: one["hashes"] for one in bill["metadata"]["component"]["externalReferences"]
    }
    assert listed == {
        name: [{"alg": "SHA-256", "content": digest}]
        for name, digest in digests.items()
        if not name.endswith(".json")
    }
    scopes = {one["name"]: one["scope"] for one in bill["components"]}
    required = {name for name, scope in scopes.items() if scope == "required"}
    assert {"torch", "numpy", "sentencepiece", "typing-extensions"} <= required
    assert scopes["ctranslate2"] == scopes["transformers"] == "optional"
    assert not {"pytest", "mypy", "dragoman", "hatchling"} & scopes.keys()
    versions = {one["name"]: one.get("version") for one in bill["components"]}
    pinned = dict(
        line.split("==")
        for line in (REPOSITORY / "constraints.txt").read_text().split()
        if "==" in line
    )
    assert versions["sentencepiece"] == pinned["sentencepiece"]
    assert versions["torch"] == pinned["torch"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_empty_environment_with_the_wheel_alone_is_whole(tmp_path: Path) -> None:
    """As a user installs it: everything that it asks for is there, and nothing contradicts."""
    build(tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    environment = os.environ | {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    constraints = REPOSITORY / "constraints.txt"
    # First alone: the registry's own default of torch brings gigabytes for GPUs.
    for wanted in ("torch", wheel):
        done = run(python, "-m", "pip", "install", "-q", "-c", constraints, wanted)
        if "No matching distribution" in done.stderr or "Connection" in done.stderr:
            pytest.skip("no package registry can be reached")
        assert done.returncode == 0, done.stderr
    checked = run(python, "-m", "pip", "check")
    assert (checked.returncode, checked.stdout) == (0, "No broken requirements found.\n")
    dragoman = python.with_name("dragoman")
    short = ["--set", "train.max_steps=2", "--set", "train.validate_at_start=false"]
    short += ["--set", "evaluate.bleu_pairs=0", "--set", "corpus.test_pairs=0"]
    done = run(dragoman, "run", "demo", "--ranks", "1", *short, "--set", "corpus.test=[]")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    assert run(dragoman, "export", path).returncode == 0


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
    (exported,) = (run / "export").iterdir()
    assert len(dragoman("translate", str(exported)).splitlines()) == 1
