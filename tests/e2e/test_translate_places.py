"""Where translations come from and go to: links, devices, pipes, streams that are closed."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bad_input import complaint
from dragoman.cli import main
from processes import wait_until
from served import served_bundle

LINES = "A man.\nTwo dogs run.\n"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text(LINES)
    return str(served_bundle())


@pytest.fixture
def expected(bundle: str) -> str:
    assert main(["translate", bundle, "--input", "in", "--output", "expected"]) == 0
    return Path("expected").read_text()


def names() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_a_link_stays_and_its_target_is_written(bundle: str, expected: str) -> None:
    Path("disk").mkdir()
    Path("out").symlink_to("disk/out")
    assert main(["translate", bundle, "--input", "in", "--output", "out"]) == 0
    assert Path("out").is_symlink()
    assert Path("disk/out").read_text() == expected
    assert names() == {"in", "expected", "out", "disk"}


def test_a_pipe_is_written_to_and_not_replaced(bundle: str, expected: str) -> None:
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()), daemon=True)
    reader.start()
    assert main(["translate", bundle, "--input", "in", "--output", "pipe"]) == 0
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    reader.join(60)
    assert read == [expected]
    assert names() == {"in", "expected", "pipe"}


def test_output_is_utf_8_in_every_locale(bundle: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "translate", bundle, "--format", "document"],
        input="é 1 — 2 ✓\n12 ✓\n".encode(),
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith("\n12 ✓\n".encode())


def test_two_pipes_into_one_file_are_each_whole(bundle: str, expected: str) -> None:
    command = [sys.executable, "-m", "dragoman", "translate", bundle, "--output", "out"]
    slow = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: slow.poll() is not None or any("out" in name for name in names()))
    subprocess.run(command, input="A man.\n", text=True, check=True)
    assert Path("out").read_text() == expected.split("\n")[0] + "\n"
    assert slow.communicate(LINES)[1] == ""
    assert slow.returncode == 0
    assert Path("out").read_text() == expected
    assert names() == {"in", "expected", "out"}


def test_the_standard_output_has_a_name(bundle: str, expected: str) -> None:
    before = os.lstat("/dev/stdout").st_ino
    command = [sys.executable, "-m", "dragoman", "translate", bundle, "--output", "/dev/stdout"]
    for source in (["--input", "in"], []):
        done = subprocess.run([*command, *source], input=LINES, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
    with Path("out").open("w") as out:
        subprocess.run([*command, "--input", "in"], stdout=out, check=True)
    assert Path("out").read_text() == expected
    assert os.lstat("/dev/stdout").st_ino == before


@pytest.mark.parametrize("name", ["in", "link", "hard"])
def test_the_input_is_not_overwritten(
    bundle: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("link").symlink_to("in")
    Path("hard").hardlink_to("in")
    assert main(["translate", bundle, "--input", "in", "--output", name]) == 2
    assert "is the input too" in complaint(capsys)
    assert Path("in").read_text() == LINES
    command = [sys.executable, "-m", "dragoman", "translate", bundle, "--output", name]
    with Path("in").open() as source:
        done = subprocess.run(command, stdin=source, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is the input too" in done.stderr
    assert Path("in").read_text() == LINES


def test_a_directory_is_refused_before_the_work(
    bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder").mkdir()
    assert main(["translate", bundle, "--input", "in", "--output", "folder"]) == 2
    assert "is a directory" in complaint(capsys)
    assert names() == {"in", "folder"}


@pytest.mark.parametrize("source", [["--input", "in"], []])
@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("missing/deep/out", "missing/deep: no such directory", "mkdir -p"),
        ("in/out", "in: is not a directory", "name a file elsewhere"),
        ("dangling", "missing: no such directory", "mkdir -p"),
    ],
)
def test_a_directory_that_is_not_there_is_named_before_the_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: list[str],
    name: str,
    problem: str,
    remedy: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text(LINES)
    Path("dangling").symlink_to("missing/out")
    # No model is looked for: it would be what is complained of.
    assert main(["translate", "no-model", *source, "--output", name]) == 2
    said = complaint(capsys)
    assert problem in said
    assert remedy in said
    assert names() == {"in", "dangling"}


def test_streams_that_are_closed(bundle: str, expected: str) -> None:
    def run(arguments: str) -> subprocess.CompletedProcess[str]:
        program = shlex.join([sys.executable, "-m", "dragoman", "translate", bundle])
        return subprocess.run(
            ["sh", "-c", f"exec {program} {arguments}"], capture_output=True, text=True
        )

    for arguments in ("<&-", "-i <&-", "--output out <&-"):
        done = run(arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("dragoman: standard input: cannot be read: ")
        assert done.stderr.count("\n") == 1
        assert names() == {"in", "expected"}
    assert run("--input in --output out <&- >&- 2>&-").returncode == 0
    assert Path("out").read_text() == expected
    done = run("<in >&-")
    assert (done.returncode, done.stderr) == (0, "")
