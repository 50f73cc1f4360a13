from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import MachineError
from dragoman.base.files import (
    try_lock,
    unpack_tar,
    whole_directory,
    whole_file,
    write_whole,
)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def write_and_fail() -> None:
        with whole_file(path) as file:
            file.write(b"new")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(*, fail: bool) -> None:
        with whole_directory(tmp_path / "run") as draft:
            (draft / "recipe.toml").write_text("whole")
            assert not (tmp_path / "run").exists()
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(fail=True)
    assert list(tmp_path.iterdir()) == []
    fill(fail=False)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.toml")] == [
        Path("run/recipe.toml")
    ]


def test_one_holder_or_several_that_share(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as one, path.open("rb") as other:
        assert try_lock(one, shared=True)
        assert try_lock(other, shared=True)
        assert not try_lock(other)
    with path.open("rb") as one, path.open("rb") as other:
        assert try_lock(one)
        assert not try_lock(other, shared=True)


def test_a_draft_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"file.{os.uname().nodename}.{os.getpid()}.tmp").symlink_to(victim)
    write_whole(tmp_path / "file", "new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full.*free space"),
        (errno.EDQUOT, "disk is full.*free space"),
        (errno.EROFS, "cannot be written.*choose a directory"),
        (errno.EACCES, "permission denied.*choose a directory"),
        (errno.EIO, "Input/output error.*check the disk"),
    ],
)
def test_the_disk_s_troubles_are_one_line(number: int, words: str) -> None:
    with (
        pytest.raises(MachineError, match=f"/data/x: .*{words}") as error,
        disk_errors_named(Path("/data")),
    ):
        raise OSError(number, os.strerror(number), "/data/x")
    assert "\n" not in str(error.value)


def test_the_directory_is_named_if_the_system_names_no_file() -> None:
    with (
        pytest.raises(MachineError, match="/data: the disk is full"),
        disk_errors_named(Path("/data")),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("has_filters", [True, False])
def test_an_archive_stays_in_its_directory(
    has_filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_filters:  # as in Python before 3.11.4
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")

    def unpack(name: str, kind: bytes = tarfile.REGTYPE) -> Path:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, "/etc/passwd", 3 * (kind == b"0")
            entry.mode = 0o6755
            archive.addfile(entry, io.BytesIO(b"abc"))
        packed.seek(0)
        with tarfile.open(fileobj=packed, mode="r|") as archive:
            unpack_tar(archive, tmp_path)
        return tmp_path / name

    file = unpack("folder/file")
    assert file.read_bytes() == b"abc"
    assert file.stat().st_mode & 0o7777 == 0o755
    for name, kind in (("../out", b"0"), ("link", tarfile.SYMTYPE), ("pipe", tarfile.FIFOTYPE)):
        with pytest.raises(tarfile.TarError):
            unpack(name, kind)
    assert {path.name for path in tmp_path.rglob("*")} == {"folder", "file"}
