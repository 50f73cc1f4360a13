"""`dragoman translate`: a stream, a file, or line by line at a terminal.

A file that was broken off at any moment is continued where it stopped (`base.line_files`), but only
between groups of lines that are searched together: in another group a line could get another score
in its last digit, and the output would show the break.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.base.files import whole_file
from dragoman.base.line_files import (
    input_lines,
    is_device,
    output_place,
    progress_bar,
    transform_file,
    write_errors_named,
)
from dragoman.base.memory import memory_errors_named
from dragoman.base.printable import printable
from dragoman.base.terminal import open_console
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
from dragoman.formats.kinds import Quantization
from dragoman.model.config import SearchConfig, check_beam_holds
from dragoman.recipe.recipe import check_sections
from dragoman.serve.text import TextFormat
from dragoman.serve.translator import (
    EngineName,
    Opened,
    TextTranslator,
    Translation,
    open_translator,
)

_EXPLAIN: Final = "?"


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """The options of the command.

    run: a run or an export.
    checkpoint: names with commas between them.
    input, output: files; None: the standard streams.
    n_best: translations of each line. scores: print them with their scores.
    format: "line", "document" or "markup", see `TextTranslator.translate`.
    inspect: translate line by line, and show what the model attends to.
    target_language, engine, quantization, threads, batch_cells, overrides: as for
        `open_translator`.
    """

    run: Path
    checkpoint: str
    overrides: Sequence[str]
    target_language: str
    input: Path | None
    output: Path | None
    n_best: int
    scores: bool
    format: TextFormat
    engine: EngineName
    quantization: Quantization | None
    threads: int | None
    batch_cells: int | None
    inspect: bool


def translate(options: TranslateOptions) -> int:
    """Translate lines of text; at a terminal each as it is typed."""
    if options.inspect and (options.input is not None or options.output is not None):
        raise ConfigError(
            "is for lines that come one by one",
            place="--inspect",
            remedy="leave out --input and --output: dragoman translate RUN -i < in.txt",
        )
    check_sections(options.overrides, ("search",))
    if isinstance(sys.stdout, io.TextIOWrapper):  # like the input, whatever the locale
        sys.stdout.reconfigure(encoding="utf-8")
    if options.output is not None:
        options = replace(options, output=output_place(options.output, options.input))
    with (
        memory_errors_named("lower --batch-cells"),
        open_translator(
            options.run,
            checkpoints=options.checkpoint.split(","),
            overrides=options.overrides,
            engine=options.engine,
            threads=options.threads,
            batch_cells=options.batch_cells,
            quantization=options.quantization,
            target=options.target_language,
        ) as opened,
    ):
        # Before a command that is then refused replaces the draft of earlier work.
        check_beam_holds(options.n_best, opened.recipe.search)
        typed = options.input is None and options.output is None and sys.stdin.isatty()
        if options.inspect or typed:
            _converse(opened, options)
        elif options.output is None:
            _pipe(opened, options)
        elif options.input is None or is_device(options.output):
            _write_whole(opened, options, options.output)
        else:
            _translate_file(opened, options, options.input, options.output)
    return 0


def _pipe(opened: Opened, options: TranslateOptions) -> None:
    with input_lines(options.input) as reader, write_errors_named("standard output"):
        try:
            for group in _written(opened, options, reader.text(), 1):
                sys.stdout.writelines(map(_shown, group))
            sys.stdout.flush()
        except OSError:  # the rest would be tried again at the end, and reported twice
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def _shown(text: str) -> str:
    """The text as it is; on a terminal nothing in it, or in a stranger's vocabulary, can control
    the terminal."""
    return printable(text) if sys.stdout.isatty() else text


def _write_whole(opened: Opened, options: TranslateOptions, output: Path) -> None:
    """Write to a device at once, or to a file that appears when it is complete."""
    with (
        write_errors_named(str(output)),
        input_lines(options.input) as reader,
        output.open("wb") if is_device(output) else whole_file(output) as out,
    ):
        for group in _written(opened, options, reader.text(), 1):
            out.write("".join(group).encode())


def _translate_file(opened: Opened, options: TranslateOptions, source: Path, output: Path) -> None:
    with progress_bar() as show:
        done = transform_file(
            source,
            output,
            lambda lines, first: _written(opened, options, lines, first),
            identity={
                **opened.identity,
                "n_best": options.n_best,
                "scores": options.scores,
                "layout": options.format,
            },
            progress=show,
        )
    if done:
        print(f"went on after line {done}", file=sys.stderr)


def _written(
    opened: Opened, options: TranslateOptions, lines: Iterable[str], first: int
) -> Iterator[list[str]]:
    """The output for each line, group by group."""
    numbers = itertools.count(first)
    for group in opened.translator.stream(
        lines,
        opened.recipe.search,
        text_format=options.format,
        num_hypotheses=options.n_best,
        scored=options.scores or options.n_best > 1,
    ):
        yield [
            _lines_of(
                next(numbers), translations, numbered=options.n_best > 1, scores=options.scores
            )
            for translations in group
        ]


def _lines_of(number: int, translations: list[Translation], *, numbered: bool, scores: bool) -> str:
    if numbered:
        return "".join(f"{number}\t{one.score:.4f}\t{one.text}\n" for one in translations)
    best = translations[0]
    return f"{best.score:.4f}\t{best.text}\n" if scores else f"{best.text}\n"


def _converse(opened: Opened, options: TranslateOptions) -> None:
    """A line, its translation and its time; on request, the attention of the model."""
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
                [text], search, text_format=options.format, num_hypotheses=options.n_best
            )
            spent_s = time.perf_counter() - started
            scored = options.scores or options.n_best > 1
            for one in found:
                print(_shown(f"{one.score:8.4f}  {one.text}" if scored else one.text))
            if options.inspect:
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
