"""The text of `dragoman translate`: a stream, a file, or line by line at a terminal.

A file that was broken off at any moment resumes (`base.line_files`), always at the beginning of a
group of lines that are searched together. In another group a line could get a score with another
last digit, and the output would show where it was broken off.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.files import whole_file
from dragoman.base.line_files import (
    input_lines,
    is_device,
    not_utf8,
    progress_bar,
    transform_file,
    write_errors_named,
)
from dragoman.base.printable import printable
from dragoman.base.terminal import open_console
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
from dragoman.inference.documents import DocumentFormat, read_document
from dragoman.inference.text import TextFormat
from dragoman.inference.translator import (
    Opened,
    TextTranslator,
    Translation,
)
from dragoman.model.config import SearchConfig

_EXPLAIN: Final = "?"


@dataclass(frozen=True, slots=True)
class Layout:
    """What is written for each line.

    text_format: of a line, see `TextTranslator.translate`. n_best: its translations.
    scores: whether a score stands before each. confidence: whether its colour and probability do.
    """

    text_format: TextFormat = "line"
    n_best: int = 1
    scores: bool = False
    confidence: bool = False

    @property
    def is_scored(self) -> bool:
        """Whether the search gives scores."""
        return self.scores or self.confidence or self.n_best > 1


def translate_document(
    opened: Opened, source: Path, output: Path | None, form: DocumentFormat
) -> None:
    """Translate a file as a whole: its text may span lines, and the rest of it stays.

    output: None: standard output.
    """
    with input_lines(source) as reader:
        content = b"".join(reader.raw())
    try:
        document = read_document(content, form, place=str(source))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise not_utf8(source, line=line, head=content) from error
    groups = opened.translator.stream(
        document.texts(), opened.recipe.search, text_format=document.text_format, scored=False
    )
    whole = document.put_together(best.text for group in groups for best, *_ in group)
    if remark := document.remark():
        print(f"{source}: {remark}", file=sys.stderr)
    if output is None:
        with write_errors_named("standard output"):
            if sys.stdout.isatty():
                print(printable(whole.decode()), end="", flush=True)
            else:
                sys.stdout.buffer.write(whole)
                sys.stdout.flush()
        return
    with (
        write_errors_named(str(output)),
        output.open("wb") if is_device(output) else whole_file(output) as out,
    ):
        out.write(whole)


def pipe(opened: Opened, source: Path | None, layout: Layout) -> None:
    """Translate a file or standard input to standard output."""
    with input_lines(source) as reader, write_errors_named("standard output"):
        try:
            for group in _written(opened, layout, reader.text(), 1):
                sys.stdout.writelines(map(_shown, group))
            sys.stdout.flush()
        except OSError:  # the rest would be tried again at the end, and reported twice
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def _shown(text: str) -> str:
    """The text as it is; on a terminal nothing in it, or in a stranger's vocabulary, can control
    the terminal."""
    return printable(text) if sys.stdout.isatty() else text


def write_whole_file(opened: Opened, source: Path | None, output: Path, layout: Layout) -> None:
    """Write to a device at once, or to a file that appears when it is complete."""
    with (
        write_errors_named(str(output)),
        input_lines(source) as reader,
        output.open("wb") if is_device(output) else whole_file(output) as out,
    ):
        for group in _written(opened, layout, reader.text(), 1):
            out.write("".join(group).encode())


def transform(opened: Opened, source: Path, output: Path, layout: Layout) -> None:
    """Translate a file into another; what a call that was broken off had finished is kept."""
    with progress_bar() as show:
        done = transform_file(
            source,
            output,
            lambda lines, first: _written(opened, layout, lines, first),
            identity={
                **opened.identity,
                "n_best": layout.n_best,
                "scores": layout.scores,
                "confidence": layout.confidence,
                "layout": layout.text_format,
            },
            progress=show,
        )
    if done:
        print(f"went on after line {done}", file=sys.stderr)


def _written(
    opened: Opened, layout: Layout, lines: Iterable[str], first: int
) -> Iterator[list[str]]:
    """The output for each line, group by group."""
    numbers = itertools.count(first)
    for group in opened.translator.stream(
        lines,
        opened.recipe.search,
        text_format=layout.text_format,
        num_hypotheses=layout.n_best,
        scored=layout.is_scored,
    ):
        yield [_lines_of(next(numbers), translations, layout) for translations in group]


def _lines_of(number: int, translations: list[Translation], layout: Layout) -> str:
    if layout.n_best > 1:
        return "".join(f"{number}\t{one.score:.4f}\t{one.text}\n" for one in translations)
    best = translations[0]
    line = f"{best.score:.4f}\t{best.text}\n" if layout.scores else f"{best.text}\n"
    if not layout.confidence:
        return line
    # A line that stays as it is, such as a number, is as right as it was.
    is_kept = best.confidence is None
    return f"green\t1.00\t{line}" if is_kept else f"{best.colour}\t{best.confidence:.2f}\t{line}"


def converse(opened: Opened, layout: Layout, *, inspect: bool) -> None:
    """A line, its translation and its time; on request, the attention of the model.

    inspect: show the attention after each line.
    """
    if sys.stdin.isatty():
        print(f"one sentence per line; {_EXPLAIN} explains the last; Ctrl-D ends", file=sys.stderr)
    search = opened.recipe.search
    before = ""
    with input_lines(None) as reader:
        for text in reader.text():
            if text.strip() == _EXPLAIN:
                _show_attention(opened.translator, before, search)
                continue
            before = text
            started = time.perf_counter()
            (found,) = opened.translator.translate(
                [text], search, text_format=layout.text_format, num_hypotheses=layout.n_best
            )
            spent_s = time.perf_counter() - started
            for one in found:
                sure = "" if one.confidence is None else f"{one.colour} {one.confidence:.2f}  "
                score = f"{one.score:8.4f}  " if layout.scores or layout.n_best > 1 else ""
                print(_shown(f"{sure if layout.confidence else ''}{score}{one.text}"))
            if inspect:
                _show_attention(opened.translator, text, search)
            print(f"  {units.DURATION.text(spent_s)}", file=sys.stderr)
            sys.stdout.flush()


def _show_attention(translator: TextTranslator, text: str, search: SearchConfig) -> None:
    """The pieces of source and translation, and the source pieces that the model attended to."""
    engine = translator.engine
    if not isinstance(engine, CTranslate2Engine):
        print("  (attention needs the engine ctranslate2)", file=sys.stderr)
        return
    console = open_console()
    for source in translator.encode([text], "line").rows:
        alignment = engine.align(source, engine.search([source], search)[0][0].ids)
        console.print(f"  source: {' '.join(alignment.source)}")
        for piece, weights in zip(alignment.target, alignment.weights, strict=True):
            order = sorted(range(len(weights)), key=lambda column: -weights[column])[:3]
            looked = "  ".join(f"{alignment.source[i]} {weights[i]:.0%}" for i in order)
            console.print(f"  {piece:>16}  {looked}")
