"""Directories through the very program that a host runs, without the ssh between."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.cluster import unpack
from dragoman.cluster.copying import (
    Parcel,
    code_digest,
    code_parcel,
    directory_parcel,
    read_code,
    receive_command,
)
from dragoman.cluster.hosts import Host
from dragoman.cluster.ssh import BEGIN


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as packed:
        for member, content in members:
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def plain(name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def received(parcel: Parcel, stream: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run what the host would run, in this folder."""
    host = Host(address="here", name="here", slots=1, python=sys.executable, folder="there")
    program = Path(unpack.__file__).read_bytes()
    command = receive_command(host, parcel.place, str(len(parcel.files)))
    return subprocess.run(
        command, input=program + stream, cwd=folder, capture_output=True, check=False
    )


def test_a_directory_arrives_once(tmp_path: Path) -> None:
    parcel = Parcel("data/1", {"a": b"one", "b/c": b"two"})
    stream = archive(plain("a", b"one"), plain("b/c", b"two"))
    assert received(parcel, stream, tmp_path).stdout == b"want\ndone\n"
    assert (tmp_path / "there/data/1/b/c").read_bytes() == b"two"
    assert received(parcel, b"", tmp_path).stdout == b"have\n"


@pytest.mark.parametrize(
    "stream", [b"", archive(plain("a", b"one")), archive(plain("a", b"1"))[:512]]
)
def test_a_copy_that_is_cut_off_leaves_nothing(tmp_path: Path, stream: bytes) -> None:
    parcel = Parcel("data/1", {"a": b"one", "b": b"two"})
    assert received(parcel, stream, tmp_path).returncode != 0
    assert list((tmp_path / "there/data").iterdir()) == []


def test_a_host_without_room_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends while much is on its way; a broken pipe is not the end of our own output."""
    program = tmp_path / "ssh"
    program.write_text(
        f"#!/bin/sh\necho {BEGIN}; echo want\n"
        "head -c 4000 > /dev/null; echo 'No space left on device' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(MachineError, match=r"alpha: .*exit code 1: No space left on device"):
        Parcel("data/1", {"a": b"x" * (8 << 20)}).send(Host(address="a", name="alpha", slots=1))


def link() -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo("link")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member, b""


@pytest.mark.parametrize("member", [plain("../out", b"x"), plain("/tmp/out", b"x"), link()])
def test_names_that_lead_out_are_refused(
    tmp_path: Path, member: tuple[tarfile.TarInfo, bytes]
) -> None:
    with pytest.raises(ValueError, match="not a plain file"):
        unpack.unpack(io.BytesIO(archive(member)), tmp_path / "in")
    assert not (tmp_path / "out").exists()


def test_compiled_files_do_not_change_the_digest_of_the_code(tmp_path: Path) -> None:
    code = read_code()
    assert "cluster/copying.py" in code
    assert not [
        name for name in code if "__pycache__" in name or name.startswith("recipe/shipped/")
    ]
    package = tmp_path / "dragoman"
    for name, content in code_parcel(code).files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(content, bytes)
        path.write_bytes(content)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert code_digest(read_code(package)) == code_digest(code)
    (package / "units.py").write_text("")
    assert code_digest(read_code(package)) != code_digest(code)


def test_a_parcel_of_a_directory_holds_its_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"123")
    (tmp_path / "a").write_bytes(b"1")
    parcel = directory_parcel("data/1", tmp_path)
    assert list(parcel.files) == ["a", "b/c"]
    assert parcel.size_bytes == 4


@pytest.mark.parametrize("kept", [0, 100, 700, 5000])
def test_a_connection_that_breaks_is_no_archive(kept: int, tmp_path: Path) -> None:
    whole = archive(plain("weights", bytes(20_000)))
    with pytest.raises(EOFError, match="not whole"):
        unpack.unpack(io.BytesIO(whole[:kept]), tmp_path / "in")


def test_thousands_of_names_for_one_file_are_no_archive(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    block = header.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")
    stream = io.BytesIO(block * 3000 + archive(plain("a", b"")))
    with pytest.raises(EOFError, match="too many headers"):
        unpack.unpack(stream, tmp_path)


class _Endless(io.RawIOBase):
    """A header, and then zeros for as long as anybody reads."""

    def __init__(self, header: bytes) -> None:
        self._header = header
        self.largest = 0

    def read(self, size: int = -1) -> bytes:
        self.largest = max(self.largest, size)
        taken, self._header = self._header[:size], self._header[size:]
        return taken or bytes(min(size, 1 << 16))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_any_size_is_refused(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("p")
    header.type, header.size = kind, 100_000_000
    stream = _Endless(header.tobuf())
    with pytest.raises(ValueError, match="longer than 8 KiB"):
        unpack.unpack(stream, tmp_path)  # type: ignore[arg-type]
    assert stream.largest <= 1 << 20
