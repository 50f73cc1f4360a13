from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zstandard

from dragoman.base.errors import CorpusError
from dragoman.corpus.pairs import LineReader

TEXT = "".join(f"Zeile {number} – größer\n" for number in range(50_000)).encode()
PACKINGS: list[Callable[[bytes], bytes]] = [
    bytes,
    gzip.compress,
    bz2.compress,
    lzma.compress,
    zstandard.compress,
]


def read_all(path: Path, max_lines: int) -> tuple[bytes, list[int], LineReader]:
    reader = LineReader(path)
    text, counts = b"", []
    while run := reader.take(max_lines):
        if not run[1]:
            break
        text += run[0]
        counts.append(run[1])
    return text, counts, reader


@pytest.mark.parametrize("pack", PACKINGS)
def test_packed_text_is_recognised_by_its_content_and_read_whole(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "text.without-a-telling-suffix"
    path.write_bytes(pack(TEXT))
    text, counts, reader = read_all(path, 7001)
    assert text == TEXT
    assert counts == [7001] * 7 + [993]
    facts = reader.facts()
    assert (facts.lines, facts.text_bytes) == (50_000, len(TEXT))
    assert facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("pack", PACKINGS)
def test_files_packed_one_after_the_other_are_one_text(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "text"
    path.write_bytes(pack(b"one\ntw") + pack(b"o\n") + pack(b"three"))
    assert read_all(path, 100)[0] == b"one\ntwo\nthree\n"


def test_traces_of_other_systems_are_counted_wherever_the_file_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "text"
    lines = [b"\xef\xbb\xbfone\r", b"two", b"\xef\xbb\xbfthree \r", b"f\rour", b"\r"]
    path.write_bytes(b"\n".join(lines) + b"\n")
    for at_once in (1, 2, 100):
        assert read_all(path, at_once)[2].facts().mended == {
            "byte order mark": 2,
            "CRLF line end": 3,
        }
    path.write_bytes(b"plain\n")
    assert read_all(path, 100)[2].facts().mended == {}


@pytest.mark.parametrize("pack", PACKINGS[1:])
@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_packed_file_that_is_cut_off_is_an_error(
    tmp_path: Path, pack: Callable[[bytes], bytes], keep: float
) -> None:
    path = tmp_path / "text.packed"
    packed = pack(TEXT)
    path.write_bytes(packed[: int(len(packed) * keep)])
    with pytest.raises(CorpusError, match=r"text\.packed.*ends too early.*fetch or pack it again"):
        read_all(path, 1000)


@pytest.mark.parametrize("pack", PACKINGS[1:])
def test_a_damaged_packed_file_is_an_error(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    packed = bytearray(pack(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "text").write_bytes(packed)
    with pytest.raises(CorpusError, match="damaged"):
        read_all(tmp_path / "text", 1000)


def test_the_last_line_needs_no_newline_and_empty_lines_count(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\n\nlast")
    assert read_all(tmp_path / "text", 2)[:2] == (b"\n\nlast\n", [2, 1])


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"")
    assert LineReader(tmp_path / "text").take(10) == (b"", 0)


def test_a_run_is_bounded_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    reader = LineReader(tmp_path / "text")
    runs = []
    while run := reader.take(1_000_000, max_bytes=300_000)[0]:
        runs.append(run)
    assert b"".join(runs) == TEXT
    assert all(run.endswith(b"\n") for run in runs)
    assert max(map(len, runs)) < 700_000


def test_a_file_without_lines_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"first\n" + b"x" * 3_000_000)
    reader = LineReader(tmp_path / "text")
    assert reader.take(1, max_bytes=1 << 20) == (b"first\n", 1)
    with pytest.raises(CorpusError, match="line 2 is longer than 1 MiB"):
        reader.take(1, max_bytes=1 << 20)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"absent\.en: cannot be read"):
        LineReader(tmp_path / "absent.en").take(1)


@pytest.mark.parametrize("pack", PACKINGS[1:])
def test_a_line_that_unpacks_to_gigabytes_is_refused_in_little_memory(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "bomb.en"
    path.write_bytes(b"".join([pack(b"short\n"), *[pack(b"x" * (64 << 20))] * 16]))
    assert path.stat().st_size < 2_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorpusError, match=r"bomb\.en: (line 2 is longer than 16 MiB|unpacks)"):
        read_all(path, 10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.system
@pytest.mark.parametrize("pack", PACKINGS)
def test_many_empty_lines_are_read_in_linear_time(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    noise = os.urandom(200_000).hex().encode()  # without it the packed file is refused
    (tmp_path / "bomb").write_bytes(pack(noise + b"\n" * 20_000_000))
    reader = LineReader(tmp_path / "bomb")
    began = time.process_time()
    counts = []
    while count := reader.take(32_768)[1]:
        counts.append(count)
    assert sum(counts) == 20_000_000
    assert time.process_time() - began < 5  # 0.2 s; quadratic, zstd takes 16


@pytest.mark.parametrize("pack", PACKINGS[1:])
def test_compression_bombs_are_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"\n" * 30_000_000))
    with pytest.raises(CorpusError, match="unpacks to more than 250 times its size"):
        read_all(path, 32_768)
    path.write_bytes(pack(b"the same line\n" * 140_000))  # small, and may be anything
    assert len(read_all(path, 1_000_000)[0]) == 14 * 140_000


@contextmanager
def pipe_with(content: bytes, path: Path) -> Iterator[None]:
    """A pipe into which another thread writes."""

    def write() -> None:
        with suppress(BrokenPipeError), path.open("wb") as pipe:
            pipe.write(content)

    os.mkfifo(path)
    writer = threading.Thread(target=write)
    writer.start()
    yield
    writer.join()


@pytest.mark.parametrize("pack", PACKINGS)
def test_a_pipe_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    with pipe_with(pack(TEXT * 3), tmp_path / "pipe"):
        assert read_all(tmp_path / "pipe", 32_768)[0] == TEXT * 3


@pytest.mark.parametrize("pack", PACKINGS[1:])
def test_a_pipe_is_measured_by_the_bytes_that_came_through(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    with (
        pipe_with(pack(b"\n" * 30_000_000), tmp_path / "pipe"),
        pytest.raises(CorpusError, match="unpacks to more than 250 times its size"),
    ):
        read_all(tmp_path / "pipe", 32_768)


def test_a_file_that_the_system_makes_has_no_size_and_is_read() -> None:
    path = Path("/proc/kallsyms")
    if not path.is_file() or len(path.read_bytes()) < 2 << 20:
        pytest.skip("this system shows no such file")
    assert path.stat().st_size == 0
    assert read_all(path, 32_768)[0]


@pytest.mark.parametrize("pack", PACKINGS[1:])
def test_thousands_of_packed_files_in_a_row_are_one_text(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "text").write_bytes(pack(b"a\n") * 20_000 + pack(b"") + pack(b"b"))
    assert read_all(tmp_path / "text", 100_000)[0] == b"a\n" * 20_000 + b"b\n"


@pytest.mark.parametrize("pack", PACKINGS[1:])
def test_garbage_after_a_packed_file_is_an_error(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "text").write_bytes(pack(TEXT) + b"and something else")
    with pytest.raises(CorpusError, match="damaged"):
        read_all(tmp_path / "text", 1000)
