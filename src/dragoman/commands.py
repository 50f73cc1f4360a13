"""What each command does: options in, a call of run.py, a few lines out."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dragoman import console
from dragoman.corpus.manifest import Manifest
from dragoman.errors import CorpusError, MachineError
from dragoman.recipe import list_recipes, load_recipe
from dragoman.run_directory import RunDirectory

if TYPE_CHECKING:
    from dragoman.model.config import SearchConfig
    from dragoman.translation import TranslationModel

_DEFAULT_AVERAGE = 5


def recipes(_options: Namespace) -> int:
    """List the shipped recipes."""
    console.print_recipes(list_recipes())
    return 0


def run(options: Namespace) -> int:
    """Prepare, train, evaluate and show some translations; or say what it will take."""
    recipe = load_recipe(options.recipe, options.overrides)
    if options.dry_run:
        console.print_dry_run(recipe, world_size=options.ranks or 1)
        return 0
    from dragoman.run import run as run_all
    from dragoman.summary import print_summary

    directory = run_all(
        recipe,
        runs=options.runs,
        prepared=options.prepared,
        workers=options.workers,
        ranks=options.ranks,
        fresh=options.fresh,
    )
    print_summary(directory)
    return 0


def plan(options: Namespace) -> int:
    """What a run will take on given hosts and links."""
    from dragoman.cluster.plan_command import PlanRequest, plan_recipe
    from dragoman.cluster.plan_view import plan_as_json, print_plan

    request = PlanRequest(
        link=options.link,
        hosts=options.hosts,
        ranks=options.ranks,
        gpu=options.gpu,
        compute=options.compute,
        price=options.price,
    )
    planned = plan_recipe(load_recipe(options.recipe, options.overrides), request)
    if options.json:
        print(plan_as_json(planned))
    else:
        print_plan(planned, console.open_console())
    return 0


def prepare(options: Namespace) -> int:
    """Text files -> shards."""
    from dragoman.run import prepare as prepare_shards

    recipe = load_recipe(options.recipe, options.overrides)
    directory = prepare_shards(recipe, directory=options.prepared, workers=options.workers)
    console.print_prepared(Manifest.load(directory), directory)
    return 0


def evaluate(options: Namespace) -> int:
    """Translate a test set and score it."""
    from dragoman.run import evaluate as evaluate_run

    evaluate_run(
        RunDirectory.open(options.run),
        checkpoint=options.checkpoint,
        source=options.source,
        reference=options.reference,
        ranks=options.ranks,
        overrides=options.overrides,
    )
    return 0


def translate(options: Namespace) -> int:
    """Translate lines of text; at a terminal each as it is typed."""
    from dragoman.distributed.world import join_world
    from dragoman.translation import TranslationModel

    run = RunDirectory.open(options.run)
    search = load_recipe(run.recipe_file, options.overrides).search
    with _opened(options.input) as lines, _written(options.output) as out, join_world() as world:
        model = TranslationModel.load(run, options.checkpoint.split(","), world)
        if lines.isatty():
            print("a sentence a line; Ctrl-D ends", file=sys.stderr)
        for text in _translations(model, lines, search, num_hypotheses=options.n_best):
            print(text, file=out, flush=lines.isatty())
    return 0


def average(options: Namespace) -> int:
    """Average checkpoints into one model."""
    from dragoman.train.average import average_checkpoints
    from dragoman.train.checkpoint import CheckpointStore

    run = RunDirectory.open(options.run)
    store = CheckpointStore(run.checkpoints, run.recipe().checkpoint)
    if options.best:
        paths = store.best(options.best)
    else:
        paths = store.last(options.last or _DEFAULT_AVERAGE)
    output = options.output or run.checkpoints / "average"
    average_checkpoints(paths, output)
    print(f"average of {', '.join(path.name for path in paths)}: {output}")
    return 0


def inspect(options: Namespace) -> int:
    """Every file with its purpose and size."""
    console.print_inventory(options.path)
    return 0


def _translations(
    model: TranslationModel, lines: TextIO, search: SearchConfig, *, num_hypotheses: int
) -> Iterator[str]:
    """What is printed, a line each: translations, or `line TAB score TAB translation`."""
    texts = _without_newlines(lines)
    if num_hypotheses > 1:
        for number, line in enumerate(texts, 1):
            found = model.alternatives(line, search, num_hypotheses=num_hypotheses)
            yield from (f"{number}\t{score:.4f}\t{text}" for score, text in found)
    elif lines.isatty():
        for line in texts:
            yield from model.translate([line], search)
    else:
        yield from model.translate_stream(texts, search)


def _without_newlines(lines: TextIO) -> Iterator[str]:
    """Lines as they come in; an error names the line that is not UTF-8."""
    number = 0
    try:
        for line in lines:
            number += 1
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CorpusError(
            "is not UTF-8",
            place=f"{lines.name}, about line {number + 1}",
            remedy="convert it, for example with: iconv -f latin1 -t utf-8",
        ) from error


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """The input as UTF-8 text; only a newline ends a line."""
    try:
        descriptor = sys.stdin.fileno() if path is None else path
        with open(descriptor, encoding="utf-8", newline="\n", closefd=path is not None) as lines:
            yield lines
    except FileNotFoundError as error:
        raise CorpusError("no such file", place=str(path), remedy="check its name") from error


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO]:
    """The output; a file appears under its name only when it is complete."""
    if path is None:
        yield sys.stdout
        return
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as out:
            yield out
        draft.replace(path)
    except OSError as error:
        raise MachineError(
            f"cannot be written: {error.strerror}",
            place=path,
            remedy="free disk space, or name another --output",
        ) from error
    finally:
        draft.unlink(missing_ok=True)
