"""Text files -> a prepared corpus: the stages in order.

1 read      dev and test sets, whole
2 clean     training text: normalise, filter, sort into runs by a seeded hash
3 hold out  dev and test pairs, where none were given
4 learn     subword models, from a sample
5 encode    drop duplicates and overlaps; text to ids, in the order of the hash
6 write     shards, rejected pairs and manifest; publish

Every stage leaves whole files behind, so a preparation that was killed goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.files import disk_errors_named, write_whole
from dragoman.corpus.assemble import clean_stage, encode_stage, write_result
from dragoman.corpus.clean import BlockCleaner, BlockReport, refuse_malformed
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.dedup import HeldOutSides
from dragoman.corpus.encode import PartReport
from dragoman.corpus.manifest import Manifest, StageFacts
from dragoman.corpus.pairs import BlockReader
from dragoman.corpus.rejected import pack_rejected
from dragoman.corpus.shards import SIDES
from dragoman.corpus.sources import Sources
from dragoman.corpus.split import HELD_OUT_SPLITS, hold_out, read_split, read_text, write_text
from dragoman.corpus.stages import encode, learn_models, open_runs
from dragoman.corpus.workers import parallel_map
from dragoman.corpus.workplace import Workplace, sole_use
from dragoman.telemetry.events import CorpusDropped, CorpusPrepared, CorpusStage, EventWriter

Progress = Callable[[str, int, int | None], None]
"""Called with a stage, the pairs done in it so far, and how many there are where that is known."""


def prepare(
    config: CorpusConfig,
    directory: Path,
    *,
    workers: int,
    events: EventWriter | None = None,
    progress: Progress | None = None,
    vocabulary: tuple[bytes, bytes] | None = None,
) -> Manifest:
    """Make a directory of shards, subword models and a manifest from the text of a recipe.

    workers: processes that clean and encode; the result does not depend on their number.
    Where the directory already holds the corpus of this section and these files, nothing is done.
    A preparation that was interrupted goes on.
    vocabulary: SentencePiece models of source and target that are kept in place of learning some.
    Layout:
        manifest.json  source.model  target.model
        train/  valid/  test/        shards; valid and test also source.txt and target.txt
        rejected/<split>.tsv.zst     what was dropped and why
    Raises: ConfigError, CorpusError, MachineError; the directory then holds what it held before.
    """
    began = time.monotonic()
    with disk_errors_named(directory), sole_use(directory):
        sources = Sources(config, downloads=directory / "downloads")
        place = Workplace(directory)
        manifest = _whole_manifest(directory)
        if manifest is not None and sources.match(manifest):
            place.discard()
            return manifest
        place.begin(sources.plan())
        if not place.is_publishing():
            try:
                preparation = _Preparation(config, sources, place, workers, events, progress)
                preparation.run(vocabulary)
            except (ConfigError, CorpusError):
                place.discard()  # other text or settings will need other work
                raise
        place.publish()
        manifest = Manifest.load(directory)
        if events is not None:
            events.write(_prepared(manifest, seconds_s=time.monotonic() - began))
        return manifest


def _prepared(manifest: Manifest, *, seconds_s: float) -> CorpusPrepared:
    return CorpusPrepared(
        digest=manifest.digest, train_pairs=manifest.train.pairs, seconds_s=round(seconds_s, 3)
    )


def _whole_manifest(directory: Path) -> Manifest | None:
    """The manifest of the directory, where it can be read and all its files are there."""
    try:
        manifest = Manifest.load(directory)
    except CorpusError:
        return None
    paths = {directory / name: file for name, file in manifest.files.items()}
    whole = all(
        path.is_file() and path.stat().st_size == file.size_bytes for path, file in paths.items()
    )
    return manifest if whole else None


@dataclass(frozen=True, slots=True)
class _Preparation:
    """The stages. Each takes what those before it left in the workplace."""

    config: CorpusConfig
    sources: Sources
    place: Workplace
    workers: int
    events: EventWriter | None
    progress: Progress | None

    def run(self, vocabulary: tuple[bytes, bytes] | None) -> None:
        """Leave the whole corpus, its manifest included, as the result of the workplace."""
        for side, model in zip(SIDES, vocabulary or (), strict=False):
            write_whole(self.place.result / f"{side}.model", model)
        for split in self._given():
            self._stage(split, f"read_{split}", partial(self._read, split))
        self._stage("train", "clean", self._clean)
        self._stage("train", "hold_out", self._hold_out)
        self._advance("learn", 0, None)
        learn_models(self.place, self.config, workers=self.workers)
        self._stage("train", "encode", self._encode)
        self.place.once("runs_removed", self._remove_runs)
        write_result(self.place, self.config, given=self._given())

    def _given(self) -> list[str]:
        """The dev and test sets that are files."""
        return [split for split in HELD_OUT_SPLITS if self.sources.entries[split]]

    def _stage(self, split: str, name: str, make: Callable[[], dict[str, Any]]) -> None:
        began = time.monotonic()
        kept = self.place.once(name, make)
        if self.events is None or "facts" not in kept:
            return
        facts = StageFacts.model_validate(kept["facts"])
        self.events.write(
            CorpusStage(
                split=split,
                stage=facts.stage,
                pairs_in=facts.pairs_in,
                pairs_out=facts.pairs_out,
                seconds_s=round(time.monotonic() - began, 3),
            )
        )
        for reason, pairs in facts.dropped.items():
            self.events.write(CorpusDropped(split=split, reason=reason, pairs=pairs))

    def _read(self, split: str) -> dict[str, Any]:
        given = read_split(self.sources.entries[split], self.config)
        facts = _some_left(clean_stage(given.reports), place=f"corpus.{split}")
        write_text(self.place.result / split, given.pairs)
        write_whole(self.place.rejected(split), pack_rejected(given.rejected))
        return {
            "facts": facts.model_dump(),
            "sources": self.sources.describe(split, given.files),
        }

    def _clean(self) -> dict[str, Any]:
        reader = BlockReader(self.sources.entries["train"])
        task = partial(BlockCleaner, self.config, self.place.runs)
        reports: list[BlockReport] = []
        pairs = 0
        for report in refuse_malformed(parallel_map(task, reader, workers=self.workers)):
            reports.append(report)
            pairs += report.pairs_in
            self._advance("clean", pairs, None)
        return {
            "facts": _some_left(clean_stage(reports), place="corpus.train").model_dump(),
            "sources": self.sources.describe("train", reader.facts),
            "files": [report.file for report in reports],
        }

    def _hold_out(self) -> dict[str, Any]:
        given = HeldOutSides()
        for split in self._given():
            for source, target in read_text(self.place.result / split):
                given.add(source, target)
        sizes = {"valid": self.config.valid_pairs, "test": self.config.test_pairs}
        wanted = {split: size for split, size in sizes.items() if split not in self._given()}
        taken, keys = hold_out(open_runs(self.place), wanted, given)
        for split, pairs in taken.items():
            if pairs:
                write_text(self.place.result / split, pairs)
        return {"keys": keys.tolist()}

    def _encode(self) -> dict[str, Any]:
        total = open_runs(self.place).num_pairs
        reports: list[PartReport] = []
        pairs = 0
        for report in encode(self.place, self.config, workers=self.workers):
            reports.append(report)
            pairs += report.pairs_in
            self._advance("encode", pairs, total)
        facts = _some_left(encode_stage(reports), place="corpus.train")
        return {"facts": facts.model_dump(), "parts": [asdict(report) for report in reports]}

    def _remove_runs(self) -> None:
        """Give the disk back before the shards are written; rejected pairs stay."""
        for pattern in ("*.txt", "*.npy"):
            for path in self.place.runs.glob(pattern):
                path.unlink()

    def _advance(self, stage: str, pairs: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress(stage, pairs, total)


def _some_left(facts: StageFacts, *, place: str) -> StageFacts:
    if facts.pairs_out:
        return facts
    reasons = ", ".join(f"{reason} {pairs}" for reason, pairs in facts.dropped.items())
    raise CorpusError(
        f"of {facts.pairs_in} pairs none is left ({reasons})",
        place=place,
        remedy="look at the text, or loosen corpus.filters",
    )
