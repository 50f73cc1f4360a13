"""`dragoman translate`: a stream, a file, or line by line at a terminal.

A file that was broken off at any moment goes on where it stopped. The finished lines are in a
hidden draft beside the output, with a record of how far it is sound and a fingerprint of the input,
the model and the options. The draft takes the output's name when it is complete. It goes on only
between groups of lines that are searched together: in another group a line could get another score,
in its last digit, and the output would show the break. Only one process writes a draft: of two,
each would add its lines between those of the other.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from dragoman.base import units
from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.base.files import try_lock, whole_file
from dragoman.base.malloc import memory_errors_named
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
from dragoman.model.config import SearchConfig, check_beam_holds
from dragoman.recipe.recipe import check_sections
from dragoman.serve.translator import Opened, TextTranslator, Translation, open_translator

_EXPLAIN: Final = "?"
_STANDARD_INPUT: Final = "standard input"
TranslateLines = Callable[[Iterable[str], int], Iterator[list[str]]]
"""(lines, the number of the first) -> the output of each line with newlines, group by group."""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Lines that are done, and the bytes of input behind them of all its bytes."""

    lines: int
    done_bytes: int
    all_bytes: int


def translate(options: Namespace) -> int:
    """Translate lines of text; at a terminal each as it is typed."""
    if options.inspect and (options.input is not None or options.output is not None):
        raise ConfigError(
            "is for lines that come one by one",
            place="--inspect",
            remedy="leave out --input and --output: dragoman translate RUN -i < in.txt",
        )
    check_sections(options.overrides, ("search",))
    if isinstance(sys.stdout, io.TextIOWrapper):  # as what is read, whatever the locale says
        sys.stdout.reconfigure(encoding="utf-8")
    if options.output is not None:
        options.output = output_place(options.output, options.input)
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
        ) as opened,
    ):
        # Before a draft of earlier work gives way to what is then refused.
        check_beam_holds(options.n_best, opened.recipe.search)
        typed = options.input is None and options.output is None and sys.stdin.isatty()
        if options.inspect or typed:
            _converse(opened, options)
        elif options.output is None:
            _pipe(opened, options)
        elif options.input is None or is_device(options.output):
            _write_whole(opened, options)
        else:
            _translate_file(opened, options)
    return 0


def _pipe(opened: Opened, options: Namespace) -> None:
    with input_lines(options.input) as reader, write_errors_named("standard output"):
        try:
            for group in _written(opened, options, reader.text(), 1):
                sys.stdout.writelines(group)
            sys.stdout.flush()
        except OSError:  # what is left would be tried again at the end, and told once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def _write_whole(opened: Opened, options: Namespace) -> None:
    """To a device as it is, or from the standard input: an output that appears when complete."""
    output = options.output
    with (
        write_errors_named(str(output)),
        input_lines(options.input) as reader,
        output.open("wb") if is_device(output) else whole_file(output) as out,
    ):
        for group in _written(opened, options, reader.text(), 1):
            out.write("".join(group).encode())


def _translate_file(opened: Opened, options: Namespace) -> None:
    with _progress_bar() as show:
        done = translate_file(
            options.input,
            options.output,
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
    opened: Opened, options: Namespace, lines: Iterable[str], first: int
) -> Iterator[list[str]]:
    """What is written for each line, group by group."""
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


def _converse(opened: Opened, options: Namespace) -> None:
    """A line, its translation, and the time that it took; where the model looked, when asked."""
    if sys.stdin.isatty():
        print(f"a sentence a line; {_EXPLAIN} explains the last; Ctrl-D ends", file=sys.stderr)
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
                print(f"{one.score:8.4f}  {one.text}" if scored else one.text)
            if options.inspect:
                _show_attention(opened.translator, text, search)
            print(f"  {units.DURATION.text(spent_s)}", file=sys.stderr)
            sys.stdout.flush()


def _show_attention(translator: TextTranslator, text: str, search: SearchConfig) -> None:
    """The pieces of source and translation, and where the model looked for each."""
    engine = translator.engine
    if not isinstance(engine, CTranslate2Engine):
        print("  (attention needs the engine ctranslate2)", file=sys.stderr)
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for source in translator.encode([text], "line").rows:
        alignment = engine.align(source, engine.search([source], search)[0][0].ids)
        console.print(f"  source: {' '.join(alignment.source)}")
        for piece, weights in zip(alignment.target, alignment.weights, strict=True):
            order = sorted(range(len(weights)), key=lambda column: -weights[column])[:3]
            looked = "  ".join(f"{alignment.source[i]} {weights[i]:.0%}" for i in order)
            console.print(f"  {piece:>16}  {looked}")


@contextmanager
def _progress_bar() -> Iterator[Callable[[FileProgress], None]]:
    """A bar on the standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns: list[Any] = [
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", lines=0)

        def show(progress: FileProgress) -> None:
            bar.update(
                task,
                completed=progress.done_bytes,
                total=progress.all_bytes,
                lines=progress.lines,
            )

        yield show


def output_place(output: Path, source: Path | None) -> Path:
    """Where the output goes: what a link points to, so that the link stays.

    source: the standard input where it is None.
    Raises ConfigError if that is a directory or in one that is not there, or is the input, whose
    text would be lost.
    """
    if is_device(output):
        return output
    output = Path(os.path.realpath(output))
    if output.is_dir():
        raise ConfigError("is a directory", place=output, remedy="name a file with --output")
    if not output.parent.is_dir():
        there = output.parent.exists()
        raise ConfigError(
            "is no directory" if there else "no such directory",
            place=output.parent,
            remedy="name a file elsewhere with --output"
            if there
            else "make it with mkdir -p, or name a file elsewhere with --output",
        )
    with suppress(OSError):  # what is not there is told of when it is opened
        given = os.fstat(0) if source is None else source.stat()
        if os.path.samestat(given, output.stat()):
            raise ConfigError(
                "is the input too, whose text would be lost",
                place=output,
                remedy="name another file with --output",
            )
    return output


def is_device(output: Path) -> bool:
    """Whether this is to be written to as it is, and never to be replaced: /dev/null, a pipe."""
    if output.exists() and not output.is_file() and not output.is_dir():
        return True
    named = output.readlink() if output.is_symlink() else output.absolute()
    return str(named).startswith(("/proc/", "/dev/fd/"))  # such as /dev/stdout


def translate_file(
    source: Path,
    output: Path,
    translate: TranslateLines,
    *,
    identity: dict[str, Any],
    progress: Callable[[FileProgress], None] = lambda _: None,
) -> int:
    """Translate every line of a file; returns how many an earlier attempt had done already.

    identity: what decides the output beside the input; another one starts anew.
    Raises CorpusError if the input is missing or not UTF-8, MachineError if the output
    cannot be written or another process writes it; what is done stays in the draft then.
    """
    try:
        status = source.stat()
    except OSError as error:
        raise CorpusError("no such file", place=source, remedy="check its name") from error
    draft = output.with_name(f".{output.name}.partial")
    record = output.with_name(f".{output.name}.partial.json")
    fresh = record.with_name(f"{record.name}.new")
    with input_lines(source) as reader, write_errors_named(str(output)):
        values = [str(source.resolve()), status.st_size, status.st_mtime_ns, identity]
        fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        with _locked_draft(draft, output) as out:
            done = _resume(out, record, fingerprint)
            lines = sum(1 for _ in itertools.islice(reader.raw(), done))
            for group in translate(reader.text(), done + 1):
                out.write("".join(group).encode())
                out.flush()
                os.fsync(out.fileno())
                lines += len(group)
                known = {"fingerprint": fingerprint, "lines": lines, "size_bytes": out.tell()}
                fresh.write_text(json.dumps(known), encoding="utf-8")
                fresh.replace(record)
                progress(FileProgress(lines, reader.bytes_read, status.st_size))
            draft.replace(output)
            for left in (record, fresh):
                left.unlink(missing_ok=True)
    return done


class InputReader:
    """Lines of a binary stream, ended by newlines alone, and how far it was read."""

    def __init__(self, stream: IO[bytes], *, name: str) -> None:
        self._stream = stream
        self._name = name
        self._number = 0
        self.bytes_read = 0

    def raw(self) -> Iterator[bytes]:
        """Lines as bytes; raises CorpusError if they cannot be read."""
        try:
            for line in self._stream:
                self._number += 1
                self.bytes_read += len(line)
                yield line
        except OSError as error:
            raise _unreadable(self._name, error) from error

    def text(self) -> Iterator[str]:
        """Lines as text without their ends; raises CorpusError that names one not in UTF-8."""
        for line in self.raw():
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise CorpusError(
                    "is not UTF-8",
                    place=f"{self._name}, line {self._number}",
                    remedy="convert it, for example with: iconv -f latin1 -t utf-8",
                ) from error


@contextmanager
def _locked_draft(draft: Path, output: Path) -> Iterator[IO[bytes]]:
    """The draft, to add to, kept from other processes; raises MachineError if one has it."""
    with draft.open("ab") as file:
        try:
            # The other may have finished since, and what was opened be its output.
            locked = try_lock(file) and os.path.samestat(os.fstat(file.fileno()), draft.stat())
        except FileNotFoundError:
            locked = False
        if not locked:
            raise MachineError(
                "another process translates into it",
                place=output,
                remedy="wait for it, or name another file with --output",
            )
        yield file


def _resume(draft: IO[bytes], record: Path, fingerprint: str) -> int:
    """Cut the draft to its sound part; the lines of input that it holds, none if it is unsound."""
    done, size_bytes = 0, 0
    try:
        known = json.loads(record.read_bytes())
        numbers = known["lines"], known["size_bytes"]
        sound = all(type(number) is int and number >= 0 for number in numbers)
        if sound and known["fingerprint"] == fingerprint and draft.tell() >= numbers[1]:
            done, size_bytes = numbers
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    if not done:  # else the draft of these options would be taken for that of the others
        record.unlink(missing_ok=True)
    draft.truncate(size_bytes)
    draft.seek(0, os.SEEK_END)
    return done


@contextmanager
def input_lines(path: Path | None) -> Iterator[InputReader]:
    """Lines of a file, or of the standard input; raises CorpusError if it cannot be opened."""
    name = _STANDARD_INPUT if path is None else str(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(
                open(0 if path is None else path, "rb", closefd=path is not None)
            )
        except OSError as error:
            raise _unreadable(name, error) from error
        yield InputReader(stream, name=name)


def _unreadable(name: str, error: OSError) -> CorpusError:
    remedy = "name text with --input, or send it there" if name == _STANDARD_INPUT else ""
    return CorpusError(
        f"cannot be read: {error.strerror}", place=name, remedy=remedy or "check its name"
    )


@contextmanager
def write_errors_named(place: str) -> Iterator[None]:
    """What cannot be written is a MachineError that names the place; a reader that has gone is not.

    Raises MachineError.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(
            f"cannot be written: {error.strerror}",
            place=place,
            remedy="free disk space or name another --output, then run the same command again",
        ) from error
