"""Pairs per second of `prepare` and of SentencePiece encoding alone, on the same text in one run.

The text is the shared English-German mix, repeated with variations up to --pairs: every repetition
ends its lines with its number and puts another word first, and one line in five gets a word that
is not in the text, so that no pair is a duplicate and new words keep coming. Both sides of the
comparison use --workers cores:

  prepare        read, normalise, filter, deduplicate, shuffle, train the subword model, encode,
                 write shards, from start to published manifest
  SentencePiece  encode(list, num_threads=workers) of both sides with the model just trained;
                 reading the text is not counted

Memory is the proportional set size summed over all processes of `prepare`, sampled ten times a
second; disk is what lies in the directory, sampled once a second.

    python benchmarks/prepare.py --scratch /tmp/prepare --pairs 500000
"""

from __future__ import annotations

import argparse
import lzma
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import sentencepiece

from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare

SHARED = Path(
    os.environ.get("DRAGOMAN_SHARED", Path(__file__).resolve().parents[2] / "shared/data")
)
MISSPELT_SHARE = 5
RAW_BATCH = 50_000


@dataclass(frozen=True)
class Seconds:
    """Time on the wall and on all cores."""

    wall: float
    cpu: float

    @classmethod
    def now(cls, who: int) -> Seconds:
        used = resource.getrusage(who)
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


@dataclass
class Usage:
    """Highest values seen, in bytes."""

    memory: int = 0
    disk: int = 0


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    folder = options.scratch / f"text-{options.pairs}"
    build_text(folder, options.pairs)
    config = CorpusConfig(
        folder=str(folder),
        train=(TextFiles(source="train.en", target="train.de"),),
        valid=(
            TextFiles(
                source=str(SHARED / "wmt-news/newstest2013.en"),
                target=str(SHARED / "wmt-news/newstest2013.de"),
            ),
        ),
    )
    directory = options.scratch / "prepared"
    shutil.rmtree(directory, ignore_errors=True)
    ours, usage = _measured(config, directory, options.workers)
    raw = _raw_encoding(folder, directory, options.workers)
    _report(Manifest.load(directory), ours, raw, usage, options.pairs)


def _measured(config: CorpusConfig, directory: Path, workers: int) -> tuple[Seconds, Usage]:
    """The cost of prepare in a process of its own, with its workers."""
    process = multiprocessing.get_context("spawn").Process(
        target=_prepare, args=(config, directory, workers)
    )
    usage = Usage()
    began = Seconds.now(resource.RUSAGE_CHILDREN)
    process.start()
    tick = 0
    while process.is_alive():
        process.join(0.1)
        assert process.pid is not None
        usage.memory = max(usage.memory, sum(map(_pss_bytes, _family(process.pid))))
        if tick % 10 == 0:
            usage.disk = max(usage.disk, _disk_bytes(directory))
        tick += 1
    if process.exitcode:
        raise SystemExit("prepare failed")
    return Seconds.now(resource.RUSAGE_CHILDREN) - began, usage


def _prepare(config: CorpusConfig, directory: Path, workers: int) -> None:
    prepare(config, directory, workers=workers)


def _raw_encoding(folder: Path, directory: Path, workers: int) -> Seconds:
    """The cost of SentencePiece alone for both sides of the text."""
    total = Seconds(0.0, 0.0)
    for name, model in (("train.en", "source.model"), ("train.de", "target.model")):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / model))
        with (folder / name).open(encoding="utf-8") as lines:
            while batch := [line.rstrip("\n") for line in islice(lines, RAW_BATCH)]:
                began = Seconds.now(resource.RUSAGE_SELF)
                processor.encode(batch, num_threads=workers)
                total += Seconds.now(resource.RUSAGE_SELF) - began
    return total


def _report(manifest: Manifest, ours: Seconds, raw: Seconds, usage: Usage, pairs: int) -> None:
    kept = manifest.train
    stays = sum(file.size_bytes for file in manifest.files.values())
    text = sum(source.size_bytes for source in manifest.sources if source.split == "train")
    print(f"pairs                {pairs:>12,}   kept {kept.pairs:,}")
    print(f"text                 {text / 1e6:>12,.0f} MB")
    for name, taken in (("prepare", ours), ("SentencePiece alone", raw)):
        times = f"{taken.wall:.1f} s, {taken.cpu:.1f} s of CPU"
        print(f"{name:20} {pairs / taken.wall:>12,.0f} pairs/s   ({times})")
    print(f"ratio                {raw.wall / ours.wall:>12.2f}   (bar: 0.50)")
    print(f"ratio of CPU times   {raw.cpu / ours.cpu:>12.2f}")
    print(f"peak memory          {usage.memory / 2**20:>12,.0f} MiB   (bar: 1536)")
    print(f"peak disk            {usage.disk / 1e6:>12,.0f} MB")
    print(f"stays on disk        {stays / 1e6:>12,.0f} MB")


def build_text(folder: Path, pairs: int) -> None:
    """Write train.en and train.de of so many pairs, unless they are there."""
    if (folder / "whole").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for language in ("en", "de"):
        packed = (SHARED / f"ende-mixed/train.{language}.xz").read_bytes()
        lines = lzma.decompress(packed).decode().split("\n")[:-1]
        with (folder / f"train.{language}").open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(islice(_varied(lines), pairs))
    (folder / "whole").touch()


def _varied(lines: list[str]) -> Iterator[str]:
    yield from (f"{line}\n" for line in lines)
    repetition = 0
    while True:
        repetition += 1
        for number, line in enumerate(lines):
            words = line.split(" ")
            place = (number + repetition) % len(words)
            if (number + repetition) % MISSPELT_SHARE == 0:
                middle = len(words[place]) // 2
                swapped = words[place][middle:] + words[place][:middle]
                words[place] = f"{swapped}{chr(ord('a') + repetition % 26)}"
            else:
                words.insert(0, words.pop(place))
            yield " ".join([*words, str(repetition)]) + "\n"


def _family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def _disk_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True, help="folder for text and result")
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
