"""Directories to hosts and back, by rsync and by tar."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from dragoman.base.errors import DragomanError, MachineError
from dragoman.cluster import ssh
from dragoman.cluster.files import (
    code_digest,
    directories_with,
    discard_unless,
    fetch,
    files_below,
    read_code,
    send,
    send_code,
    size_bytes,
)
from dragoman.cluster.hosts import Host
from hosts_here import EITHER_WAY, needs_rsync, put_ssh
from processes import processes_in, wait_until

either_way = pytest.mark.parametrize("rsync", EITHER_WAY)
HOST = Host(address="a", name="alpha", slots=1, folder="its folder", silence_s=20)
FILES: dict[str, Path | bytes] = {"a": b"one", "b/c": b"two"}
LARGE = bytes(range(256)) * (1 << 14)

LINE = """\
import os, subprocess, sys, threading, time
there = subprocess.Popen(["sh", "-c", sys.argv[2]], stdin=subprocess.PIPE)
received = 0
def carry():
    global received
    while piece := os.read(0, 1 << 16):
        received += len(piece)
        there.stdin.write(piece)
        there.stdin.flush()
        time.sleep(float(sys.argv[1]))
    there.stdin.close()
threading.Thread(target=carry, daemon=True).start()
exit_code = there.wait()
open("received", "w").write(str(received))
os._exit(exit_code)
"""
"""A line to a host that carries 64 KiB between two pauses, and counts."""


@pytest.fixture(autouse=True)
def _forget_greetings() -> None:
    ssh._greeting.clear()
    ssh._answered.clear()


def arrived(homes: Path, place: str = "data/1") -> Path:
    return homes / "a" / "its folder" / place


@either_way
def test_a_directory_arrives_once(
    rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch, rsync=rsync)
    assert send(HOST, "data/1", FILES)
    there = arrived(tmp_path)
    assert {name: path.read_bytes() for name, path in files_below(there).items()} == FILES
    assert [path.name for path in there.parent.iterdir()] == ["1"]
    (there / "a").write_bytes(b"changed")
    assert not send(HOST, "data/1", FILES)
    assert (there / "a").read_bytes() == b"changed"


@either_way
def test_a_directory_comes_back(
    rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch, rsync=rsync)
    send(HOST, "data/1", {**FILES, "large": LARGE})
    here = tmp_path / "here"
    here.mkdir()
    fetch(HOST, "data/1", here)
    assert files_below(here).keys() == {"a", "b/c", "large"}
    assert (here / "large").read_bytes() == LARGE
    with pytest.raises(MachineError, match=r"^alpha: a co.*"):
        fetch(HOST, "data/2", here)


@needs_rsync
@pytest.mark.parametrize("greeting", ["Welcome!\n", "no line's end"])
def test_a_host_whose_login_shell_greets_gets_a_stream_of_tar(
    greeting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch, before='echo "$*" >> words')
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "greeting").write_text(greeting)
    assert send(HOST, "data/1", FILES)
    assert (arrived(tmp_path) / "b" / "c").read_bytes() == b"two"
    assert "rsync --server" not in (tmp_path / "a" / "words").read_text()


@either_way
def test_a_copy_that_breaks_off_leaves_nothing_of_that_name(
    rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "rsync" if rsync else "tar"
    taken = "head -c 10 > /dev/null" if rsync else f"echo {ssh.BEGIN}; head -c 100000 > /dev/null"
    breaks = f'case "$*" in *{program}\\ -*) {taken}; exit 255;; esac'
    put_ssh(tmp_path, monkeypatch, rsync=rsync, before=breaks)
    with pytest.raises(MachineError, match=r"^alpha: "):
        send(HOST, "data/1", {"large": LARGE})
    assert not arrived(tmp_path).exists()


@needs_rsync
def test_a_copy_goes_on_where_it_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(4 << 20)
    line = tmp_path / "line.py"
    line.write_text(LINE)

    def through(pause_s: float) -> str:
        command = f'exec "{sys.executable}" "{line}" {pause_s} "$*"'
        return f'case "$*" in *rsync\\ --server*) {command};; esac'

    put_ssh(tmp_path, monkeypatch, before=through(0.02))

    def cut() -> None:
        wait_until(lambda: copied() > 1 << 20, limit_s=60)
        for process in list(ssh._started):
            process.kill()

    def copied() -> int:
        drafts = arrived(tmp_path).parent.glob(".*/large")
        return max((path.stat().st_size for path in drafts), default=0)

    thread = threading.Thread(target=cut)
    thread.start()
    with pytest.raises(MachineError, match=r"^alpha: "):
        send(HOST, "data/1", {"large": content})
    thread.join()
    wait_until(lambda: processes_in(tmp_path / "a") == [], limit_s=20)
    assert 1 << 20 <= copied() < len(content)
    put_ssh(tmp_path, monkeypatch, before=through(0.0))
    assert send(HOST, "data/1", {"large": content})
    assert (arrived(tmp_path) / "large").read_bytes() == content
    assert int((tmp_path / "a" / "received").read_text()) < len(content) - (1 << 19)


@pytest.mark.system
@either_way
def test_a_host_that_stands_still_is_named(
    rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays connected: nothing but the clock tells it from one that is slow."""
    program = "rsync" if rsync else "tar"
    still = f'case "$*" in *{program}\\ -*) exec sleep 600;; esac'
    put_ssh(tmp_path, monkeypatch, rsync=rsync)
    send(HOST, "data/1", FILES)
    put_ssh(tmp_path, monkeypatch, rsync=rsync, before=still)
    host = HOST.model_copy(update={"silence_s": 1.0})
    with pytest.raises(MachineError, match=r"^alpha: nothing has passed for 1 s; see whether"):
        send(host, "data/2", {"large": LARGE})
    with pytest.raises(MachineError, match=r"^alpha: nothing has passed for 1 s; .* silence_s in"):
        fetch(host, "data/1", tmp_path)
    wait_until(lambda: processes_in(tmp_path / "a") == [], limit_s=20)


@pytest.mark.system
def test_a_slow_host_that_goes_on_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = (
        'case "$*" in *tar\\ -*) sh -c "$*" > all; for n in 0 1 2 3 4 5 6 7 8 9; do '
        "tail -c +$((n * 10240 + 1)) all | head -c 10240; sleep 0.3; done; exit;; esac"
    )
    put_ssh(tmp_path, monkeypatch, rsync=False)
    send(HOST, "data/1", {"some": LARGE[:90_000]})
    put_ssh(tmp_path, monkeypatch, rsync=False, before=slow)
    here = tmp_path / "here"
    here.mkdir()
    fetch(HOST.model_copy(update={"silence_s": 1.5}), "data/1", here)
    assert (here / "some").read_bytes() == LARGE[:90_000]


@either_way
def test_a_host_without_room_is_one_error(
    rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while much is on its way; a broken pipe is not the end of our own output."""
    put_ssh(tmp_path, monkeypatch, rsync=rsync, before="ulimit -f 1000; trap '' XFSZ")
    with pytest.raises(MachineError, match=r"alpha: .*(File too large|Wrote only)"):
        send(HOST, "data/1", {"large": LARGE})
    assert not arrived(tmp_path).exists()


@pytest.mark.parametrize("rsync", EITHER_WAY)
def test_a_full_disk_here_is_not_called_the_host_s(
    rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch, rsync=rsync)
    send(HOST, "data/1", {"large": LARGE})
    here = tmp_path / "here"
    here.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        with pytest.raises((DragomanError, OSError)) as caught:
            fetch(HOST, "data/1", here)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(here) in str(caught.value) or isinstance(caught.value, OSError)
    assert "alpha" not in str(caught.value)


@either_way
def test_a_copy_can_be_ended(rsync: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "rsync" if rsync else "tar"
    still = f'case "$*" in *{program}\\ -*) touch begun; exec sleep 600;; esac'
    put_ssh(tmp_path, monkeypatch, rsync=rsync, before=still)
    errors: list[MachineError] = []

    def copy() -> None:
        try:
            send(HOST, "data/1", {"large": LARGE})
        except MachineError as error:
            errors.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    wait_until((tmp_path / "a" / "begun").exists, limit_s=60)
    ssh.hang_up()
    thread.join(20)
    assert [error.place for error in errors] == ["alpha"]
    wait_until(lambda: processes_in(tmp_path / "a") == [], limit_s=20)


def test_a_directory_whose_files_have_other_digests_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch, rsync=False)
    files: dict[str, Path | bytes] = {"a": b"one", "b b": b"two"}
    digests = {"a": hashlib.sha256(b"one").hexdigest(), "b b": hashlib.sha256(b"two").hexdigest()}
    send(HOST, "data/1", files)
    discard_unless(HOST, "data/1", digests)
    discard_unless(HOST, "data/2", digests)
    assert arrived(tmp_path).is_dir()
    for other in (digests | {"a": digests["b b"]}, {"a": digests["a"]}, digests | {"c": "0"}):
        send(HOST, "data/1", files)
        discard_unless(HOST, "data/1", other)
        assert list(arrived(tmp_path).parent.iterdir()) == []


def test_directories_with_a_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ssh(tmp_path, monkeypatch, rsync=False)
    send(HOST, "data/1", {"x/mark": b"", "y y/z/mark": b"", "other": b""})
    assert directories_with(HOST, "data/1", "mark") == ["x", "y y/z"]
    assert directories_with(HOST, "data/2", "mark") == []


def test_compiled_files_do_not_change_the_digest_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ssh(tmp_path, monkeypatch)
    code = read_code()
    assert "cluster/files.py" in code
    assert not [
        name for name in code if "__pycache__" in name or name.startswith("recipe/shipped/")
    ]
    assert send_code(HOST, code)
    package = next(arrived(tmp_path, "code").iterdir()) / "dragoman"
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert code_digest(read_code(package)) == code_digest(code)
    (package / "units.py").write_text("")
    assert code_digest(read_code(package)) != code_digest(code)


def test_the_files_of_a_directory_have_a_size(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"123")
    (tmp_path / "a").write_bytes(b"1")
    assert list(files_below(tmp_path)) == ["a", "b/c"]
    assert size_bytes(files_below(tmp_path)) == 4
