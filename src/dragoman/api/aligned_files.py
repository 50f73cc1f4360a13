"""The folder that `align` makes: pairs, doubtful pairs, and a page with these side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dragoman.corpus.align_documents import DocumentPair, Scored

PAIRS: Final = "pairs.tsv"
DOUBTFUL: Final = "doubtful.tsv"
PAGE: Final = "doubtful.html"
_HEADER: Final = "source\ttarget\tscore\tdocument\n"
_BREAK: Final = "\t\t\t\n"
"""Between lines that are no neighbours in their document, so that no paragraph is made of them."""
_MOST_SHOWN: Final = 2_000
"""Rows of the page; the file has all."""


class Counts(NamedTuple):
    """Numbers of pairs, of doubtful ones, and of sentences that only one side has."""

    pairs: int
    doubtful: int
    unpaired: int


class _Row(NamedTuple):
    source: str
    target: str
    score: float

    def line(self, name: str) -> str:
        return f"{self.source}\t{self.target}\t{self.score:.3f}\t{name}\n"


def write_aligned(
    folder: Path,
    names: Sequence[tuple[str, str]],
    documents: Sequence[DocumentPair],
    aligned: Sequence[Sequence[Scored]],
    least_score: float,
) -> Counts:
    """Write the folder; it is whole or absent."""
    from dragoman.base.files import whole_directory
    from dragoman.base.printable import printable, printable_line
    from dragoman.reporting.document import Document, Paragraph, Section, Table

    pairs = doubtful = unpaired = 0
    sections: list[Section] = []
    with (
        whole_directory(folder) as draft,
        (draft / PAIRS).open("w", encoding="utf-8") as sure_file,
        (draft / DOUBTFUL).open("w", encoding="utf-8") as doubtful_file,
    ):
        sure_file.write(_HEADER)
        doubtful_file.write(_HEADER)
        for (name, other), document, beads in zip(names, documents, aligned, strict=True):
            title = printable_line(name if name == other else f"{name}, {other}")
            shown: list[tuple[str, str, str]] = []
            doubtful_before = doubtful
            is_broken = pairs > 0
            for row in _rows(document, beads):
                if row.score >= least_score and row.source and row.target:
                    sure_file.write((_BREAK if is_broken else "") + row.line(title))
                    is_broken = False
                    pairs += 1
                    continue
                doubtful_file.write(row.line(title))
                is_broken = pairs > 0
                if row.source and row.target:
                    doubtful += 1
                    shown.append((f"{row.score:.2f}", row.source, row.target))
                else:
                    unpaired += 1
            shown = shown[: max(0, _MOST_SHOWN - doubtful_before)]
            sections.append(Section(title, [Table(shown, ("score", "source", "target"))]))
        page = Document(
            "Doubtful pairs",
            [("pairs", f"{pairs:,}"), ("doubtful", f"{doubtful:,}"),
             ("sentences of one side alone", f"{unpaired:,}")],
            [
                Paragraph(
                    f"Scores below {least_score:g}, at most {_MOST_SHOWN:,} pairs. {DOUBTFUL} has "
                    "all of them, and the sentences of one side alone."
                ),
                *sections,
            ],
        )  # fmt: skip
        (draft / PAGE).write_text(printable(page.html()), encoding="utf-8")
    return Counts(pairs, doubtful, unpaired)


def _rows(document: DocumentPair, beads: Sequence[Scored]) -> Iterator[_Row]:
    for bead, score in beads:
        yield _Row(
            " ".join(document.sources[bead.source]), " ".join(document.targets[bead.target]), score
        )
