"""The output of commands: tables on a terminal, the same as plain unbroken lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dragoman.base import units
from dragoman.base.errors import CheckpointError
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console, plain_table
from dragoman.corpus.clean import REJECTED
from dragoman.corpus.context import CONTEXT
from dragoman.corpus.filters import key_of
from dragoman.corpus.manifest import FILE_NAME as MANIFEST
from dragoman.corpus.manifest import Manifest, TextSize
from dragoman.recipe.estimate import strategy_numbers
from dragoman.recipe.recipe import load_recipe
from dragoman.reporting.cleaning import PAGE as CLEANING_PAGE
from dragoman.telemetry.events import RunStarted, event_file, read_events
from dragoman.training.inventory import DiskForecast, Inventory, forecast_disk


def print_prepared(directory: Path) -> None:
    """Print pairs read and kept, and the reasons for dropping pairs, split by split."""
    console, manifest = open_console(), Manifest.load(directory)
    console.print(Text(str(directory), style="bold"), soft_wrap=True)
    console.print("", _splits(manifest), "")
    dropped = _dropped(manifest)
    if dropped.row_count:
        console.print(dropped)
        console.print(f"dropped pairs: {directory / REJECTED}", soft_wrap=True, style="dim")
    if (page := directory / REJECTED / CLEANING_PAGE).exists():
        console.print(f"scores and thresholds of the filters: {page}", soft_wrap=True, style="dim")
    copies = dict(manifest.train.copies)
    if paragraphs := copies.pop(CONTEXT, 0):
        console.print(f"paragraphs, by corpus.context: {units.COUNT.text(paragraphs)}")
    if copies:
        counts = (f"{name} {units.COUNT.text(pairs)}" for name, pairs in copies.items())
        console.print(f"changed copies, by corpus.augment: {', '.join(counts)}")
    for source in manifest.sources:
        for trace, count in source.mended.items():
            console.print(f"{source.name}: {units.COUNT.text(count)} x {trace} taken out")
        for region, count in source.regions.items():
            line = f"{source.name}: {units.COUNT.text(count)} x {region}, which was missing"
            console.print(Text(printable_line(line)), soft_wrap=True)
    vocabulary = units.COUNT.text(manifest.source_vocab_size)
    if manifest.target_vocab_size != manifest.source_vocab_size:
        vocabulary += f" and {units.COUNT.text(manifest.target_vocab_size)}"
    kind = manifest.config.subword.kind
    model = f"{'joint' if manifest.config.subword.joint else 'separate'} {kind}"
    console.print(f"{model} pieces: {vocabulary}; digest {manifest.digest[:12]}", style="dim")


def print_inventory(inventory: Inventory) -> None:
    """Print the files of a run, a checkpoint or prepared shards, their sizes and, for a run, the
    most disk that it can take."""
    console = open_console()
    console.print(Text(printable_line(str(inventory.root)), style="bold"), soft_wrap=True)
    console.print(_files(inventory), "", facts_table(_parts(inventory)))


def _files(inventory: Inventory) -> Table:
    table = plain_table("file", right=("size",))
    table.add_column("purpose")
    folder = Path()
    for entry in sorted(inventory.entries, key=lambda entry: (entry.path.parent, entry.path)):
        if entry.path.parent != folder:
            folder = entry.path.parent
            table.add_row(Text(printable_line(f"{folder}/"), style="cyan"))
        name = entry.path.name if folder == Path() else f"  {entry.path.name}"
        table.add_row(printable_line(name), units.SIZE.text(entry.size_bytes), entry.purpose)
    return table


def _parts(inventory: Inventory) -> Iterable[tuple[str, RenderableType]]:
    for part, size_bytes in inventory.bytes_by_part().items():
        yield part, _both_sizes(size_bytes)
    yield "all files", _both_sizes(inventory.size_bytes)
    if inventory.inference_bytes():
        yield "to translate with", _both_sizes(inventory.inference_bytes())
    recipe_file, manifest_file = (inventory.root / name for name in ("recipe.toml", MANIFEST))
    if recipe_file.is_file() and manifest_file.is_file():
        recipe, manifest = load_recipe(recipe_file, is_recorded=True), Manifest.load(inventory.root)
        try:
            num_parameters = recipe.model.num_parameters(
                source_vocab_size=manifest.source_vocab_size,
                target_vocab_size=manifest.target_vocab_size,
            )
        except ValueError as error:
            raise CheckpointError(
                f"describes no model: {error}", place=recipe_file, remedy="restore the run's files"
            ) from error
        ranks = _ranks(inventory.root)
        _, saved = strategy_numbers(recipe.distributed, ranks)
        most = forecast_disk(
            num_parameters,
            train=recipe.train,
            checkpoint=recipe.checkpoint,
            world_size=ranks,
            strategy_tensors=saved,
        )
        yield "this run, at most", most_disk(most)


def _both_sizes(size_bytes: int) -> str:
    return f"{units.SIZE.text(size_bytes)} ({units.BINARY_SIZE.text(size_bytes)})"


def _splits(manifest: Manifest) -> Table:
    table = plain_table("split", right=("read", "kept", "dropped", "cut short", "source", "target"))
    for name, split in manifest.splits.items():
        text = split.stages[-1]
        table.add_row(
            name,
            units.COUNT.text(split.pairs_in),
            units.COUNT.text(split.kept),
            _share(split.pairs_in - split.kept, split.pairs_in),
            _share(split.truncated, split.pairs),
            _side(text.source_text, split.source_pieces),
            _side(text.target_text, split.target_pieces),
        )
    return table


def _side(text: TextSize, pieces: int) -> str:
    size, binary = units.SIZE.text(text.num_bytes), units.BINARY_SIZE.text(text.num_bytes)
    return f"{size}\n({binary})\n{units.SHORT_COUNT.text(pieces)} pieces"


def _dropped(manifest: Manifest) -> Table:
    table = plain_table("dropped from", "because", "key", right=("pairs", "share"))
    for name, split in manifest.splits.items():
        for reason, pairs in sorted(split.dropped.items(), key=lambda item: (-item[1], item[0])):
            share = _share(pairs, split.pairs_in)
            key = key_of(reason).removeprefix("corpus.")
            table.add_row(name, reason.replace("_", " "), key, units.COUNT.text(pairs), share)
    return table


def _share(part: int, whole: int) -> str:
    return units.SHARE.text(part / whole) if whole else units.SHARE.text(0.0)


def most_disk(most: DiskForecast) -> str:
    """The most disk of a run in words."""
    checkpoint = units.SIZE.text(most.checkpoint_bytes)
    return (
        f"{units.SIZE.text(most.size_bytes)} for {most.num_checkpoints} checkpoints "
        f"of {checkpoint} and the records"
    )


def facts_table(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    return table


def _ranks(run: Path) -> int:
    """How many ranks trained a run last; 1 if it has not started."""
    log = event_file(run / "events")
    events = read_events(log) if log.is_file() else ()
    starts = [one.payload["world_size"] for one in events if one.kind == RunStarted.kind]
    return (starts or [1])[-1] or 1
