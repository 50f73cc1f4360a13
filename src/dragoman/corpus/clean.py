"""Blocks of raw lines -> normalised, filtered pairs, in sorted runs on disk.

Rejected pairs can be read afterwards: zstd-packed TSV, one file per split. Columns: filter, score,
file, line, source, target. zstd frames may follow each other in one file, so the parts that workers
write are joined as they are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.base.files import whole_file, write_whole
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.context import write_paragraphs
from dragoman.corpus.filters import (
    Columns,
    Filter,
    Rejection,
    Scores,
    column_filters,
    filters_of,
    reject,
)
from dragoman.corpus.normalize import normalize
from dragoman.corpus.pairs import BLOCK_LINES, Block
from dragoman.corpus.runs import (
    distinct_keys,
    near_key,
    numbered,
    pair_keys,
    repeated,
    run_name,
    write_run,
)
from dragoman.corpus.survey import FilterSurvey, write_surveys
from dragoman.corpus.tmx import DAMAGED

REJECTED = "rejected"
INVALID_UTF8 = "invalid_utf8"
COLUMNS = "columns"
NOT_A_NUMBER = "not_a_number"
DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near_duplicate"
_MALFORMED = {
    COLUMNS: (
        "has {:.0f} column(s) instead of 2",
        "give one sentence per line, in two files or in two columns with one tab between them; "
        "if a file has further columns, name one in scores",
    ),
    DAMAGED: ("", "export the translation memory again"),
    INVALID_UTF8: ("has {:.0f} byte(s) that are not UTF-8", "convert the text to UTF-8"),
    NOT_A_NUMBER: (
        "has text instead of a number in column {:.0f}",
        "write numbers such as 6.52, leave a cell empty if a pair has no score, or name another "
        "column in scores",
    ),
}
"""Filters of lines that are not pairs with scores, and the fault, with its score, and remedy."""
MAX_MALFORMED_SHARE: Final = 0.01
"""A file with a larger share of such lines is of another kind."""


class RejectedPair(NamedTuple):
    """A pair that is not in the split, the filter that dropped it, and that filter's score."""

    filter: str
    score: float
    file: str
    line: int
    source: str
    target: str


def pack_rejected(pairs: Iterable[RejectedPair]) -> bytes:
    """The pairs as one zstd frame of TSV lines; empty for no pairs."""
    lines = [
        f"{pair.filter}\t{pair.score:.6g}\t{_cell(pair.file)}\t{pair.line}\t"
        f"{_cell(pair.source)}\t{_cell(pair.target)}\n"
        for pair in pairs
    ]
    return zstandard.compress("".join(lines).encode(errors="replace"), level=1) if lines else b""


def join_rejected(path: Path, parts: Iterable[Path]) -> None:
    """Write one file with the column names and then all parts in order."""
    header = zstandard.compress(("\t".join(RejectedPair._fields) + "\n").encode())
    with whole_file(path) as file:
        file.write(header)
        for part in parts:
            file.write(part.read_bytes())


def read_rejected(path: Path) -> Iterator[RejectedPair]:
    """The pairs in a file that `join_rejected` wrote; raises OSError, ValueError or ZstdError."""
    with zstandard.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        next(lines)
        for line in lines:
            name, score, file, number, source, target = line.removesuffix("\n").split("\t")
            yield RejectedPair(name, float(score), file, int(number), source, target)


def _cell(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")


@dataclass(frozen=True, slots=True)
class BlockReport:
    """The result of cleaning one block. Bytes are those of the pairs that stay.

    file: the source file.
    malformed: file, fault and remedy of the first line that is not a pair; empty if there is none.
    entry: the number of the block's entry of text.
    """

    file: str
    pairs_in: int
    pairs_out: int
    dropped: dict[str, int]
    source_bytes: int
    target_bytes: int
    malformed: list[str]
    entry: int = 0


@dataclass(frozen=True, slots=True)
class CleanBlock:
    """The pairs of a block after normalisation and filters.

    sources, targets, lines: both sides of the pairs that passed, and their line numbers.
    rejected: the pairs that did not pass.
    surveys: the counts and examples of each filter.
    """

    file: str
    sources: list[str]
    targets: list[str]
    lines: NDArray[np.int64]
    rejected: list[RejectedPair]
    entry: int = 0
    surveys: list[FilterSurvey] = field(default_factory=list)

    def without(self, rejections: list[Rejection]) -> CleanBlock:
        """The block without the pairs of these rejections, which are added to `rejected`."""
        if not rejections:
            return self
        keep = np.ones(len(self.sources), dtype=np.bool_)
        keep[[rejection.row for rejection in rejections]] = False
        rejected = [
            RejectedPair(
                filter=name,
                score=score,
                file=file or self.file,
                line=int(self.lines[row]),
                source=self.sources[row],
                target=self.targets[row],
            )
            for row, name, score, file in rejections
        ]
        rows = np.flatnonzero(keep)
        return CleanBlock(
            self.file,
            [self.sources[row] for row in rows],
            [self.targets[row] for row in rows],
            self.lines[rows],
            self.rejected + rejected,
            self.entry,
            self.surveys,
        )

    def report(self) -> BlockReport:
        """The counts of this block."""
        problem = []
        for pair in self.rejected:
            if pair.filter in _MALFORMED:
                fault, remedy = _MALFORMED[pair.filter]
                said = f"line {pair.line} {fault.format(pair.score)}" if fault else pair.source
                problem = [pair.file, said, remedy]
                break
        return BlockReport(
            file=self.file,
            pairs_in=len(self.sources) + len(self.rejected),
            pairs_out=len(self.sources),
            dropped=dict(Counter(pair.filter for pair in self.rejected)),
            source_bytes=num_bytes(self.sources),
            target_bytes=num_bytes(self.targets),
            malformed=problem,
            entry=self.entry,
        )


class BlockCleaner:
    """The task of a worker: clean a block and write it as a run. Finished blocks are skipped."""

    def __init__(self, config: CorpusConfig, runs: Path) -> None:
        self._config = config
        self._runs = runs

    def __call__(self, block: Block) -> BlockReport:
        """Write the run, its rejected pairs and, last, its report."""
        path = self._runs / run_name(block.index)
        report_path = path.with_suffix(".json")
        if report_path.exists():
            return BlockReport(**json.loads(report_path.read_bytes()))
        cleaned = clean_block(block, self._config)
        filters = self._config.filters
        if self._config.context.sentences > 1:
            # Before a duplicate is dropped: it still stands between its neighbours.
            write_paragraphs(
                self._runs,
                block,
                (cleaned.sources, cleaned.targets),
                cleaned.lines,
                self._config.context,
                most_words=filters.max_words,
                seed=self._config.seed,
            )
        sides = cleaned.sources, cleaned.targets
        if filters.drop_near_duplicates:
            # Near-duplicates get equal keys, so they are treated as equal from here on.
            sides = [near_key(text) for text in sides[0]], [near_key(text) for text in sides[1]]
        keys = pair_keys(*sides, seed=self._config.seed)
        if filters.drop_duplicates or filters.drop_near_duplicates:
            again = repeated(keys)
            name = NEAR_DUPLICATE if filters.drop_near_duplicates else DUPLICATE
            cleaned = cleaned.without(
                [Rejection(int(row), name, 1.0) for row in np.flatnonzero(again)]
            )
            keys = keys[~again]
        else:
            keys = distinct_keys(keys, first_ordinal=block.index * BLOCK_LINES)
        pairs = [f"{s}\t{t}" for s, t in zip(cleaned.sources, cleaned.targets, strict=True)]
        write_run(path, keys, cleaned.lines, pairs, block=block.index)
        write_whole(path.with_suffix(".rejected"), pack_rejected(cleaned.rejected))
        write_surveys(path.with_suffix(".scores"), cleaned.surveys)
        report = cleaned.report()
        write_whole(report_path, json.dumps(asdict(report)))
        return report


def read_reports(runs: Path) -> list[BlockReport]:
    """The reports of all blocks that a folder of runs holds, in order."""
    return [BlockReport(**json.loads(path.read_bytes())) for path in numbered(runs, ".json")]


def clean_block(
    block: Block, config: CorpusConfig, *, filters: Sequence[Filter] | None = None
) -> CleanBlock:
    """Decode, normalise and filter the lines of a block, then put the tag before each source."""
    source_text, target_text, given_scores, malformed = _decode(block)
    sources = normalize(source_text, lowercase=config.lowercase).split("\n")
    targets = normalize(target_text, lowercase=config.lowercase).split("\n")
    whole = CleanBlock(
        file=block.entry.source.name,
        sources=sources,
        targets=targets,
        lines=np.arange(block.first_line, block.first_line + block.num_lines),
        rejected=[],
        entry=block.entry.number,
    )
    columns = Columns(sources, targets, languages=block.entry.direction, given_scores=given_scores)

    def survey(
        chosen: Filter,
        threshold: float,
        rows: NDArray[np.int64],
        scores: Scores,
        accepted: NDArray[np.bool_],
    ) -> None:
        seen = FilterSurvey(chosen.name, threshold, chosen.at_least)
        seen.see(
            scores,
            accepted,
            whole.lines[rows],
            lambda number: (whole.file, sources[rows[number]], targets[rows[number]]),
        )
        whole.surveys.append(seen)

    cleaned = whole.without(
        reject(
            columns,
            config.filters,
            malformed=malformed,
            filters=(*(filters or filters_of(config.filters)), *column_filters(block.entry.limits)),
            on_scores=survey,
        )
    )
    if not block.entry.tag:
        return cleaned
    return replace(cleaned, sources=[f"{block.entry.tag} {source}" for source in cleaned.sources])


def refuse_malformed(reports: Iterable[BlockReport]) -> Iterator[BlockReport]:
    """Yield the reports in order, as long as 99% of the lines of each file are pairs.

    Raises: CorpusError if over 1% of a file's lines so far are not UTF-8, not two columns, damaged
    units, or have text in place of a score: the file is of another kind, and dropping its lines
    would hide that.
    """
    lines, malformed = Counter[str](), Counter[str]()
    first: dict[str, list[str]] = {}
    for report in reports:
        lines[report.file] += report.pairs_in
        malformed[report.file] += sum(report.dropped.get(name, 0) for name in _MALFORMED)
        if report.malformed:
            first.setdefault(report.file, report.malformed)
        if malformed[report.file] > MAX_MALFORMED_SHARE * lines[report.file]:
            file, problem, remedy = first[report.file]
            raise CorpusError(problem, place=file, remedy=remedy)
        yield report


def num_bytes(texts: list[str]) -> int:
    """Bytes of the texts in UTF-8, with a newline after each."""
    return len("\n".join(texts).encode()) + (len(texts) > 0)


def _decode(block: Block) -> tuple[str, str, dict[int, Scores], list[Rejection]]:
    """Both sides as text of num_lines lines, scores by column, and the rows that are not pairs."""
    given_scores: dict[int, Scores] = {}
    source, malformed = _decode_lines(block.source, block.entry.source.name)
    if block.target is None or block.entry.target is None:
        columns = [limit.index for limit in block.entry.limits]
        source, target, given_scores, bad_rows = _split_columns(
            source, columns, block.entry.num_columns, block.entry.source.fault_of
        )
        if block.entry.reverse:
            source, target = target, source
    else:
        target, bad_rows = _decode_lines(block.target, block.entry.target.name)
    first_of_row = {rejection.row: rejection for rejection in reversed(malformed + bad_rows)}
    return source, target, given_scores, [first_of_row[row] for row in sorted(first_of_row)]


def _decode_lines(text: bytes, file: str) -> tuple[str, list[Rejection]]:
    """Text without its last newline, and the rows that are not UTF-8, scored by bad bytes."""
    try:
        return text[:-1].decode(), []
    except UnicodeDecodeError:
        pass
    lines = []
    rejections = []
    for row, line in enumerate(text[:-1].split(b"\n")):
        lines.append(line.decode(errors="replace"))
        bad_bytes = sum(
            "\udc80" <= character <= "\udcff" for character in line.decode(errors="surrogateescape")
        )
        if bad_bytes:
            rejections.append(Rejection(row, INVALID_UTF8, bad_bytes, file))
    return "\n".join(lines), rejections


def _split_columns(
    text: str, score_columns: Sequence[int], num_columns: int, fault_of: Callable[[str], str]
) -> tuple[str, str, dict[int, Scores], list[Rejection]]:
    """Source, target, scores by column, and the rows that do not have two columns, scored by
    their number of columns, or that have text in place of a score, scored by its column.

    If there are columns of scores, there may be further columns, too. A row with more columns than
    the first line has no scores: a tab in its text has shifted them, and cut the text.
    num_columns: the number of columns in the first line of the file.
    """
    sources, targets, rejections = [], [], []
    scores: dict[int, list[float]] = {column: [] for column in score_columns}
    for row, line in enumerate(text.split("\n")):
        source, *others = line.split("\t")
        if not others or (len(others) > 1 and not scores):
            name = COLUMNS if others else fault_of(line)
            rejections.append(Rejection(row, name, len(others) + 1))
        sources.append(source)
        targets.append(others[0] if scores and others else "\t".join(others))
        for column, values in scores.items():
            cell = others[column - 1] if column <= len(others) < num_columns else ""
            try:
                values.append(float(cell) if cell.strip() else np.nan)
            except ValueError:
                values.append(np.nan)
                rejections.append(Rejection(row, NOT_A_NUMBER, column + 1))
    given_scores = {column: np.array(values) for column, values in scores.items()}
    return "\n".join(sources), "\n".join(targets), given_scores, rejections
