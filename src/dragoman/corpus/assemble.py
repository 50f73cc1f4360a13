"""Encoded parts -> the shards, rejected pairs and manifest of a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dragoman.base.files import file_sha256, write_whole
from dragoman.corpus.clean import BlockReport, run_path
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.encode import PartReport, count_side, part_path, read_rows
from dragoman.corpus.manifest import (
    FILE_NAME,
    FORMAT_VERSION,
    Manifest,
    OutputFile,
    SourceFile,
    SplitFacts,
    StageFacts,
    TextSize,
    digest_files,
)
from dragoman.corpus.rejected import REJECTED, join_rejected
from dragoman.corpus.shards import SIDES, SideSize, id_dtype, write_side
from dragoman.corpus.split import HELD_OUT_SPLITS, read_text
from dragoman.corpus.stages import open_encoders
from dragoman.corpus.subword import RowEncoder
from dragoman.corpus.workplace import Workplace


def write_result(place: Workplace, config: CorpusConfig, *, given: Sequence[str]) -> None:
    """Write what is still missing in the workplace's result, the manifest last.

    given: dev and test splits that were files, not held out.
    """
    encoders = open_encoders(place, config)
    clean, encoded = place.recall("clean"), place.recall("encode")
    parts = [PartReport.from_json(values) for values in encoded["parts"]]
    _write_parts(place, parts, encoders)
    stages = [StageFacts.model_validate(kept["facts"]) for kept in (clean, encoded)]
    splits = {"train": _split_facts(stages, parts)}
    sources = list(clean["sources"])
    for split in HELD_OUT_SPLITS:
        if pairs := read_text(place.result / split):
            report = _write_pairs(place.result / split, pairs, encoders)
            stage = _stage("hold_out", [report])
            if split in given:
                kept = place.recall(f"read_{split}")
                stage = StageFacts.model_validate(kept["facts"])
                sources += kept["sources"]
            splits[split] = _split_facts([stage], [report])
    files = _describe_files(place.result)
    _write_rejected(place, num_runs=len(clean["files"]), num_parts=len(parts), given=given)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        digest=digest_files(files),
        config=config,
        source_vocab_size=encoders[0].vocab_size,
        target_vocab_size=encoders[1].vocab_size,
        sources=tuple(SourceFile.model_validate(source) for source in sources),
        splits=splits,
        files=files,
    )
    write_whole(place.result / FILE_NAME, manifest.model_dump_json(indent=1))


def _write_parts(
    place: Workplace, reports: Sequence[PartReport], encoders: Sequence[RowEncoder]
) -> None:
    """Write the shards of the training split from its parts, in order."""
    directory = place.result / "train"
    directory.mkdir(exist_ok=True)
    num_rows = sum(report.pairs_out for report in reports)
    for side, encoder in zip(SIDES, encoders, strict=True):
        pieces = sum(getattr(report, side).pieces for report in reports)
        rows = (read_rows(place.parts, index, side) for index in range(len(reports)))
        size = SideSize(num_rows, pieces, id_dtype(encoder.vocab_size))
        write_side(directory, side, rows, size=size)


def _write_pairs(
    directory: Path, pairs: Sequence[tuple[str, str]], encoders: Sequence[RowEncoder]
) -> PartReport:
    """Write the shards of a dev or test split, all its pairs in their order."""
    counts = []
    for number, (side, encoder) in enumerate(zip(SIDES, encoders, strict=True)):
        texts = [pair[number] for pair in pairs]
        rows = encoder.encode(texts)
        size = SideSize(len(texts), len(rows.ids), rows.ids.dtype)
        write_side(directory, side, [rows], size=size)
        counts.append(count_side(texts, rows))
    return PartReport(len(pairs), len(pairs), {}, 0, *counts)


def _describe_files(result: Path) -> dict[str, OutputFile]:
    """Every file of models and splits; their digests are those of the corpus."""
    names = sorted(
        path.relative_to(result).as_posix()
        for path in result.rglob("*")
        if path.is_file() and path.name != FILE_NAME and path.parent.name != REJECTED
    )
    return {
        name: OutputFile(
            sha256=file_sha256(result / name), size_bytes=(result / name).stat().st_size
        )
        for name in names
    }


def _write_rejected(
    place: Workplace, *, num_runs: int, num_parts: int, given: Sequence[str]
) -> None:
    directory = place.result / REJECTED
    directory.mkdir(exist_ok=True)
    train = [run_path(place.runs, index) for index in range(num_runs)]
    train += [part_path(place.parts, index) for index in range(num_parts)]
    join_rejected(directory / "train.tsv.zst", [path.with_suffix(".rejected") for path in train])
    for split in given:
        join_rejected(directory / f"{split}.tsv.zst", [place.rejected(split)])


def clean_stage(reports: Sequence[BlockReport]) -> StageFacts:
    """The stage that normalises and filters."""
    return _stage("clean", reports)


def encode_stage(reports: Sequence[PartReport]) -> StageFacts:
    """The stage that drops duplicates, overlaps and pairs of too many pieces."""
    return _stage("encode", reports)


def _split_facts(stages: Sequence[StageFacts], reports: Sequence[PartReport]) -> SplitFacts:
    """What the manifest says of a split."""
    pairs = sum(report.pairs_out for report in reports)
    truncated = sum(report.truncated for report in reports)
    return SplitFacts(
        stages=tuple(stages),
        pairs=pairs,
        source_pieces=sum(report.source.pieces for report in reports),
        target_pieces=sum(report.target.pieces for report in reports),
        source_unknown_pieces=sum(report.source.unknown for report in reports),
        target_unknown_pieces=sum(report.target.unknown for report in reports),
        truncated=truncated,
        truncated_share=_share(truncated, pairs),
    )


def _stage(name: str, reports: Sequence[BlockReport] | Sequence[PartReport]) -> StageFacts:
    dropped = Counter[str]()
    for report in reports:
        dropped.update(report.dropped)
    pairs_in = sum(report.pairs_in for report in reports)
    return StageFacts(
        stage=name,
        pairs_in=pairs_in,
        pairs_out=sum(report.pairs_out for report in reports),
        dropped=dict(sorted(dropped.items())),
        dropped_share=_share(dropped.total(), pairs_in),
        source_text=TextSize.of(sum(report.source_bytes for report in reports)),
        target_text=TextSize.of(sum(report.target_bytes for report in reports)),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
