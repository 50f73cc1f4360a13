"""Archives of strangers: only the texts that were asked for are written, and within limits."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from dragoman.corpus import archives
from dragoman.corpus.archives import unpack_file, unpack_members
from dragoman.corpus.catalogue import Downloads

TEXT = "Grüße an alle\n".encode() * 1000
Member = tuple[str, bytes, str, bytes]
"""Name, kind of tar member, where a link leads, content."""


def tar(*members: Member, pack: Callable[[bytes], bytes] = gzip.compress) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(content)
            archive.addfile(info, io.BytesIO(content))
    return pack(packed.getvalue())


def plain(name: str, content: bytes = TEXT) -> Member:
    return name, tarfile.REGTYPE, "", content


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that archives try to reach, with one file."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    return folder


def unpack(archive: bytes, folder: Path, *patterns: str) -> list[Path]:
    home = folder / "downloads"
    home.mkdir(exist_ok=True)
    (home / "a.tgz").write_bytes(archive)
    into = home / "texts"
    into.mkdir(exist_ok=True)
    return unpack_members(home / "a.tgz", patterns or ("a.de",), into)


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


HOSTILE: dict[str, Callable[[Path], list[Member]]] = {
    "a file behind a symbolic link": lambda to: [
        ("d", tarfile.SYMTYPE, str(to), b""),
        plain("d/.bashrc", b"evil"),
    ],
    "a file behind a relative link": lambda to: [
        ("d", tarfile.SYMTYPE, f"../../{to.name}", b""),
        plain("d/.bashrc", b"evil"),
    ],
    "a hard link written through": lambda to: [
        ("d", tarfile.LNKTYPE, str(to / "precious"), b""),
        plain("d", b"evil"),
    ],
    "an absolute name": lambda to: [plain(f"{to}/.bashrc", b"evil")],
    "dots": lambda to: [plain(f"../../{to.name}/.bashrc", b"evil")],
    "devices": lambda _: [
        ("d", tarfile.CHRTYPE, "", b""),
        ("f", tarfile.FIFOTYPE, "", b""),
        ("b", tarfile.BLKTYPE, "", b""),
    ],
    "names of another kind": lambda _: [
        plain("C:\\Windows\\x", b"evil"),
        plain("a\nb\x1b[2J", b"evil"),
        plain("x" * 5000, b"evil"),
        plain("-rf", b"evil"),
    ],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_members_of_a_tar_are_never_written(
    name: str, tmp_path: Path, outside: Path
) -> None:
    archive = tar(*HOSTILE[name](outside), plain("./a.de"))
    (path,) = unpack(archive, tmp_path)
    assert path.read_bytes() == TEXT
    assert files_below(tmp_path) == {"outside/precious", "downloads/a.tgz", "downloads/texts/0.de"}
    assert (outside / "precious").read_text() == "mine"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_text_that_is_a_link_is_refused(kind: bytes, tmp_path: Path, outside: Path) -> None:
    with pytest.raises(ValueError, match=r"'a\.de' in it is not a plain file"):
        unpack(tar(("a.de", kind, str(outside / "precious"), b"")), tmp_path)
    assert files_below(tmp_path) == {"outside/precious", "downloads/a.tgz"}


def test_names_and_links_of_a_zip_are_never_followed(tmp_path: Path, outside: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../outside/.bashrc", "evil")
        archive.writestr(str(outside / ".bashrc"), "evil")
        link = zipfile.ZipInfo("d")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(outside))
        archive.writestr("d/.bashrc", "evil")
        archive.writestr("../../outside/x.de", TEXT)
    (path,) = unpack(packed.getvalue(), tmp_path, "*.de")
    assert path.read_bytes() == TEXT
    assert files_below(tmp_path) == {"outside/precious", "downloads/a.tgz", "downloads/texts/0.de"}


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_python_unpacks_without_a_bound_is_refused(
    packing: int, tmp_path: Path, outside: Path
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", packing) as archive:
        archive.writestr("a.de", bytes(1 << 20))
    with pytest.raises(ValueError, match=r"'a\.de' in it is not packed with deflate"):
        unpack(packed.getvalue(), tmp_path)
    assert files_below(tmp_path) == {"outside/precious", "downloads/a.tgz"}


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress]
)
def test_both_texts_come_in_the_order_of_the_patterns(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    other = b"Greetings\n" * 50_000
    members = [plain("r/x/b.en.gz", gzip.compress(other)), plain("r/a.de", b"old"), plain("r/a.de")]
    paths = unpack(tar(*members, pack=pack), tmp_path, "*/a.de", "*/*/b.en*")
    assert [path.read_bytes() for path in paths] == [TEXT, other]
    assert [path.name for path in paths] == ["0.de", "1.en"]


@pytest.mark.parametrize("names", [[], ["r/a.de", "s/a.de"]])
def test_a_pattern_must_fit_one_member(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{len(names)} files in it are called \*/a\.de"):
        unpack(tar(*map(plain, names)), tmp_path, "*/a.de")


def test_compression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED_BYTES", 1 << 20)
    bomb = lzma.compress(b"\n" * (20 << 20))
    with pytest.raises(ValueError, match=r"a\.tgz unpacks to more than 250 times its size"):
        unpack(tar(plain("a.de", bomb), pack=bytes), tmp_path)
    with pytest.raises(ValueError, match=r"a\.tgz unpacks to more than 250 times its size"):
        unpack(tar(plain("other", b"\n" * (20 << 20))), tmp_path)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"x" * (20 << 20)))
    with pytest.raises(ValueError, match=r"b\.gz unpacks to more than 250 times its size"):
        unpack_file(tmp_path / "b.gz", tmp_path)


def test_headers_that_lead_back_are_refused(tmp_path: Path) -> None:
    archive = bytearray(tar(plain("b", b""), plain("a.de"), pack=bytes))
    archive[124:136] = b"\xff" * 10 + b"\xf8\x00"  # a size of less than nothing, in base 256
    header = bytes(archive[:148]) + b" " * 8 + bytes(archive[156:512])
    archive[148:156] = b"%06o\x00 " % sum(header)
    with pytest.raises((ValueError, tarfile.TarError)):
        unpack(bytes(archive), tmp_path)


def test_a_folder_that_a_killed_run_left_is_no_way_out(tmp_path: Path, outside: Path) -> None:
    """The folder of texts is made anew, so no link can lie in it."""
    (tmp_path / "a.tgz.unpacked").symlink_to(outside)
    with pytest.raises(OSError):  # noqa: PT011  (what rmtree says of a link)
        Downloads(tmp_path).unpack_folder(tmp_path / "a.tgz")
    assert files_below(outside) == {"precious"}


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    archive = tar(("long", kind, "", b"9 k=abcd\n" * 100_000), plain("a.de"))
    with pytest.raises(ValueError, match="a header in it is longer than 64 KiB"):
        unpack(archive, tmp_path)


@pytest.mark.parametrize("name", ["a.de", "other"])
def test_an_endless_member_ends_at_once(tmp_path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = 1 << 80
    header = info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(ValueError, match="unpacks to more than"):
        unpack(header + TEXT, tmp_path)
