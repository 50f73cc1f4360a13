"""Hostile texts and archives through `dragoman prepare`, for as long as you like.

    PYTHONPATH=tests .venv/bin/python -m fuzz.corpora --minutes 10 [--seed 1] [--keep FOLDER]

Each case is a text file or an archive of a named corpus, made at random: odd encodings, hostile
names and links, endless lines, bombs, broken compression. It is prepared in this process, some in
processes of their own. A case fails if anything but one line of error or a corpus comes of it, if
it takes over 5 s of processor time, or if a file appears outside its folder. The inputs of failed
cases are kept. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import bz2
import gc
import gzip
import io
import json
import logging
import lzma
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import zstandard

from dragoman.base.errors import DragomanError
from dragoman.corpus.catalogue import Downloads
from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.corpus.prepare import prepare
from parallel_text import sentences

_LONGEST_S: Final = 5.0
_BYTES_PER_S: Final = 2_000_000
"""The lowest rate of prepare: millions of lines take time, but never more than this."""
_BOMB_BYTES: Final = 32 << 20
_PROCESS_SHARE: Final = 0.05
_SOURCES, _TARGETS = sentences(300)
_PACKS: Final[tuple[Callable[[bytes], bytes], ...]] = (
    bytes,
    gzip.compress,
    lambda content: bz2.compress(content),
    lambda content: lzma.compress(content, preset=0),
    zstandard.compress,
)
_ENCODINGS: Final = ("utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "utf-7", "cp1252")
_UNITS: Final = (
    *("a", ".", ". ", " ", "\t", "\r", "\x00", "\x1b[2J", "\ufeff", "\u200b", "\u2028", "\x85"),
    *("\u0301\u0327", "\u0344", "\u0f71\u0f72", "\U0001e944\U0001d165", "\u1100\u1161", "字", "▁"),
    *("<a b='", "&#0", "&nbsp", "\u202e", "Σ", "İ", "\U0010ffff", "\ue000", "'\"", "((", "-"),
)
_KINDS: Final = (
    *(tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE),
    *(tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, b"Z"),
)
_RECIPE: Final = """
name = "fuzz"
[corpus]
train = [{source = "a.en", target = "a.de"}]
valid_pairs = 5
test_pairs = 5
[corpus.subword]
vocab_size = 120
"""


class _TooSlowError(BaseException):
    """Not an Exception, so that nobody takes it for bad input."""


class _Log(logging.Handler):
    """Holds what was logged, which a user would see beside the one line of error."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class _Case:
    """One hostile input in a folder of its own."""

    def __init__(self, chosen: random.Random, folder: Path, outside: Path, entry: _Entry) -> None:
        self._chosen = chosen
        self.folder = folder
        self._outside = outside
        self.is_archive = chosen.random() < 0.5
        self.limit_s = _LONGEST_S
        files = TextFiles(source="a.en", target="a.de")
        if self.is_archive:
            entry.put(self._archive(), folder / "out" / "downloads" / "archives")
            files = TextFiles(mtdata=entry.did)
        else:
            for name, lines in (("a.en", _SOURCES), ("a.de", _TARGETS)):
                hostile = chosen.random() < 0.7
                content = self._text(lines, hostile=hostile)
                (folder / name).write_bytes(self._packed(content) if hostile else content)
        self.config = CorpusConfig(
            folder=str(folder),
            source_language="en",
            target_language="de",
            train=(files,),
            valid_pairs=5,
            test_pairs=5,
            lowercase=chosen.random() < 0.3,
            subword=SubwordConfig(
                vocab_size=120, kind="unigram" if chosen.random() < 0.1 else "bpe"
            ),
        )

    def _text(self, lines: list[str], *, hostile: bool) -> bytes:
        chosen = self._chosen
        lines = list(lines)
        encoding = "utf-8"
        if hostile:
            for _ in range(chosen.choice((0, 1, 3))):
                unit = chosen.choice(_UNITS)
                line = unit * (chosen.choice((1, 31, 2_000, 200_000)) // len(unit) + 1)
                lines.insert(chosen.randrange(len(lines)), line)
            if chosen.random() < 0.15:
                del lines[chosen.randrange(len(lines)) :]
            if chosen.random() < 0.2:
                encoding = chosen.choice(_ENCODINGS)
        content = (
            chosen.choice(("\n", "\n", "\n", "\r\n", "\r"))
            .join(lines)
            .encode(encoding, errors="replace")
        )
        if hostile and chosen.random() < 0.1:
            content += chosen.choice((b"\n", b"x", b"\n\n\t")) * chosen.choice((10, 6 << 20))
        self.limit_s += len(content) / _BYTES_PER_S
        return self._damaged(content) if hostile and chosen.random() < 0.1 else content

    def _packed(self, content: bytes) -> bytes:
        """Packed once or in parts, a bomb behind it, and damaged, each by chance."""
        chosen = self._chosen
        pack = chosen.choice(_PACKS)
        cut = chosen.randrange(len(content) + 1) if chosen.random() < 0.3 else len(content)
        packed = pack(content[:cut]) + (pack(content[cut:]) if cut < len(content) else b"")
        if chosen.random() < 0.1:
            packed += pack(chosen.choice((b"\n", b"x", b"\x00")) * _BOMB_BYTES)
            self.limit_s += _BOMB_BYTES / _BYTES_PER_S
        if chosen.random() < 0.05:
            packed += pack(b"") * 20_000
        return self._damaged(packed) if chosen.random() < 0.2 else packed

    def _damaged(self, content: bytes) -> bytes:
        """Some bytes changed, cut off, doubled or added."""
        chosen = self._chosen
        broken = bytearray(content or b"\x00")
        how = chosen.randrange(4)
        place = chosen.randrange(min(len(broken), chosen.choice((600, len(broken)))))
        if how == 0:
            for _ in range(chosen.choice((1, 10, 100))):
                broken[chosen.randrange(len(broken))] = chosen.randrange(256)
        elif how == 1:
            del broken[place:]
        elif how == 2:
            broken[place : place + 8] = chosen.randbytes(chosen.choice((8, 100)))
        else:
            broken += chosen.randbytes(chosen.choice((1, 1000)))
        return bytes(broken)

    def _hostile_name(self) -> str:
        up = "../" * self._chosen.randrange(1, 9)
        return self._chosen.choice(
            (
                *(f"{self._outside}/evil", f"{up}{self._outside.name}/evil", f"{up}evil", "/evil"),
                *("d/evil", "a/../../evil", "x" * 3000, "a\nb", "C:\\evil", "-rf", "a.en/x"),
                *("\udcff\udc80", "a\x00b", "./././a.de", "", ".", "..", "ａ.en", "a.EN", "*"),
            )
        )

    def _archive(self) -> bytes:
        chosen = self._chosen
        wanted = [
            (name, self._text(lines, hostile=chosen.random() < 0.3))
            for name, lines in (("a.en", _SOURCES), ("a.de", _TARGETS))
        ]
        members = [("hostile", b"evil")] * chosen.randrange(6) + wanted
        chosen.shuffle(members)
        archive = self._tar(members) if chosen.random() < 0.7 else self._zip(members)
        return self._damaged(archive) if chosen.random() < 0.2 else archive

    def _tar(self, members: list[tuple[str, bytes]]) -> bytes:
        chosen = self._chosen
        packed = io.BytesIO()
        form = chosen.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
        with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
            for name, content in members:
                info = tarfile.TarInfo(name)
                if name == "hostile":
                    info.name = chosen.choice((self._hostile_name(), "d"))
                    info.type = chosen.choice(_KINDS)
                    info.linkname = chosen.choice((str(self._outside), "..", "d", "a.en"))
                elif chosen.random() < 0.03:
                    info.type = chosen.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, b"S"))
                    info.linkname = chosen.choice((str(self._outside / "precious"), "a.de"))
                info.size = len(content)
                try:
                    archive.addfile(info, io.BytesIO(content))
                except (ValueError, UnicodeError):
                    continue  # a name that this form cannot hold
        content = packed.getvalue()
        if chosen.random() < 0.1:
            content = self._damaged(content)
        return chosen.choice(_PACKS)(content)

    def _zip(self, members: list[tuple[str, bytes]]) -> bytes:
        chosen = self._chosen
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, content in members:
                info = zipfile.ZipInfo(self._hostile_name() if name == "hostile" else name)
                info.external_attr = chosen.choice((0o100644, 0o120777, 0o040755)) << 16
                info.compress_type = chosen.choice(
                    (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
                )
                try:
                    archive.writestr(info, content)
                except (ValueError, UnicodeError):
                    continue
        return packed.getvalue()


class _Entry:
    """A corpus in mtdata's index whose archive is there already, so that nothing is fetched."""

    did = "Local-fuzz-1-deu-eng"
    _url = "http://127.0.0.1:1/fuzz.tgz"

    def __init__(self, folder: Path) -> None:
        from mtdata import __version__

        line = {
            "did": self.did,
            "url": self._url,
            "filename": "fuzz.tgz",
            "ext": "tgz",
            "in_paths": ["a.de", "a.en"],
            "in_ext": "txt",
        }
        (folder / f"dragoman.index.{__version__}.jsonl").write_text(f"{json.dumps(line)}\n")
        os.environ["MTDATA"] = str(folder)

    def put(self, archive: bytes, root: Path) -> None:
        """Lay the archive where a download would."""
        path = Downloads(root).place(self._url, "fuzz.tgz")
        path.parent.mkdir(parents=True)
        path.write_bytes(archive)


def _outcome(case: _Case, *, in_process: bool) -> tuple[str, str]:
    """("corpus" | "error" | "FAILED", what was said)."""
    if in_process:
        try:
            prepare(case.config, case.folder / "out", workers=1)
        except DragomanError as error:
            said = str(error)
            return ("error" if said.isprintable() else "FAILED"), said
        except (Exception, _TooSlowError):
            return "FAILED", traceback.format_exc()
        return "corpus", ""
    (case.folder / "fuzz.toml").write_text(_RECIPE, encoding="utf-8")
    command = [sys.executable, "-m", "dragoman", "prepare", str(case.folder / "fuzz.toml")]
    done = subprocess.run(
        [*command, "--prepared", str(case.folder / "out"), "--workers", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stderr.strip()
    if done.returncode == 0:
        return "corpus", ""
    one_line = said.startswith("dragoman: ") and said.isprintable()
    return ("error" if one_line else "FAILED"), said


def _too_slow(_: int, frame: FrameType | None) -> None:
    raise _TooSlowError(f"took too much processor time, now in {frame}")


def _below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def main(arguments: list[str]) -> int:
    """Try cases until the time is over; prints what came of them."""
    parser = argparse.ArgumentParser(
        prog="fuzz.corpora", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGPROF, _too_slow)
    warnings.filterwarnings("ignore", module="zipfile")  # of names that are there twice
    log = _Log()
    logging.getLogger().addHandler(log)
    counts, said_of = Counter[str](), Counter[str]()
    slowest = 0.0
    root = Path(tempfile.mkdtemp(prefix="dragoman-fuzz-"))
    entry = _Entry(Path(tempfile.mkdtemp(prefix="dragoman-fuzz-index-")))
    outside = root / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    end, number = time.monotonic() + 60 * options.minutes, 0
    while time.monotonic() < end:
        number += 1
        folder = root / "a" / "b" / "case"
        folder.mkdir(parents=True)
        chosen = random.Random(f"{options.seed} {number}")
        case = _Case(chosen, folder, outside, entry)
        shutil.copytree(folder, root / "input")
        in_process = case.is_archive or chosen.random() > _PROCESS_SHARE
        before = _below(root) - _below(folder)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, case.limit_s)
        try:
            outcome, said = _outcome(case, in_process=in_process)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - began)
        shutil.rmtree(folder)
        gc.collect()
        if log.said:
            outcome, said = "FAILED", f"logged: {log.said}"
            log.said = []
        strangers = _below(root) - before
        if strangers or (outside / "precious").read_text() != "mine" or Path("/evil").exists():
            outcome, said = "FAILED", f"written outside: {sorted(map(str, strangers))}"
        counts[f"{'archive' if case.is_archive else 'text'}, {outcome}"] += 1
        counts["in processes of their own"] += not in_process
        if outcome == "FAILED":
            kept = options.keep / f"{options.seed}-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(root / "input", kept)
            print(f"FAILED, kept in {kept}:\n{said}", flush=True)
        said_of[said.rpartition(": ")[2][:60]] += outcome == "error"
        shutil.rmtree(root / "input")
    shutil.rmtree(root)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{number} cases, slowest {slowest:.1f} s of processor time, at most {memory} MiB")
    for name, count in sorted(counts.items()):
        print(f"{count:7} {name}")
    print(f"{len(+said_of):7} different endings of errors")
    return int(any("FAILED" in name and count for name, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
