"""The purpose and size of each file of a run, and the disk that a run will need.

Free of torch: listing files needs no model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, Literal, NamedTuple

from dragoman.base.errors import CheckpointError
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.durable import step_number

Part = Literal["weights", "optimizer", "state", "vocabulary", "text", "record", "export"]

_EXPORT_FILE: Final = "bundle.json"
"""It lies in every export."""
_EVENT_BYTES: Final = 900
"""A TrainInterval as a line of JSON; it outweighs all other events."""
_TENSORBOARD_BYTES: Final = 600
"""The size of an interval in TensorBoard's file."""


class _Purpose(NamedTuple):
    pattern: str
    part: Part
    purpose: str


_PURPOSES: Final = tuple(
    _Purpose(*row)
    for row in (
        ("*updated.safetensors", "state", "the weights without their moving average: to go on"),
        ("*model.safetensors", "weights", "the weights that translate, as transformers names them"),
        ("*config.json", "weights", "what transformers needs to know of the model"),
        ("*vocab.json", "vocabulary", "the ids of the pieces, for transformers"),
        ("*.spm", "vocabulary", "a subword model for transformers"),
        ("*optimizer.safetensors", "optimizer", "Adam's two moments of each weight: to go on"),
        ("*strategy.safetensors", "state", "the state of the strategy of several ranks"),
        ("*replica.safetensors", "state", "its state on one rank alone"),
        ("*/state.json", "state", "step, best scores, patience, loss scale: to go on exactly"),
        ("*digests.json", "state", "size and SHA-256 of the other files: to notice damage"),
        ("*provenance.json", "state", "which checkpoints these weights are the mean of"),
        ("*source.model", "vocabulary", "subword model of the source language"),
        ("*target.model", "vocabulary", "subword model of the target language"),
        ("*recipe.toml", "record", "the resolved recipe: every setting of the run"),
        ("*corpus.json", "record", "where the shards lie, and their digest"),
        ("*manifest.json", "record", "sources, counts and digests of the shards"),
        ("*origin.json", "record", "the model that the run's first weights came from"),
        ("*session.json", "record", "who trains the run now, or how the last training ended"),
        ("*session.lock", "record", "locked while a process trains the run"),
        ("*hosts.json", "record", "the hosts it was last trained on: for resume"),
        ("*budget.json", "record", "the budget, and when it was done"),
        ("*confidence.json", "record", "how likely a translation is right, by its score"),
        ("*log.jsonl", "record", "the events of the run, one per line"),
        ("*prepare.jsonl", "record", "the events of the preparation"),
        ("*tfevents*", "record", "the events for TensorBoard"),
        ("*logs/*", "record", "output of the worker processes"),
        ("*samples/*", "record", "translations made by the run"),
        ("*report/report.html", "record", "answers about the run, as a page: dragoman report"),
        ("*report/report.md", "record", "the same as text"),
        ("*report/report.json", "record", "the same for programs"),
        ("*_ids.npy", "text", "subword ids of one side, end to end"),
        ("*_offsets.npy", "text", "where each sentence begins"),
        ("*_lengths.npy", "text", "how long each sentence is"),
        ("*/entries.npy", "text", "which entry of the recipe each pair is from"),
        ("*/directions.txt", "text", "the languages of each pair"),
        ("*/source.txt", "text", "normalised source text"),
        ("*/target.txt", "text", "normalised reference text"),
        ("*rejected/*", "record", "pairs that were dropped, by which filter and why"),
        ("*.draft/*", "state", "half-written by a killed process; removed at the next start"),
        ("*.older/*", "state", "replaced as a process was killed; removed at the next start"),
        ("*.doomed/*", "state", "half-removed by a killed process; removed at the next start"),
    )
)


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """One file; its path is relative to the directory that was looked at."""

    path: Path
    part: Part
    purpose: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every file of a directory."""

    root: Path
    entries: tuple[InventoryEntry, ...]

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(entry.size_bytes for entry in self.entries)

    def bytes_by_part(self) -> dict[Part, int]:
        """Bytes by the purpose of the files; purposes without a file are left out."""
        sizes: dict[Part, int] = {}
        for entry in self.entries:
            sizes[entry.part] = sizes.get(entry.part, 0) + entry.size_bytes
        return sizes

    def inference_bytes(self) -> int:
        """Bytes needed to translate: one set of weights and the vocabularies.

        The weights are those of the newest checkpoint; 0 without a checkpoint.
        """
        own = [entry for entry in self.entries if entry.part != "export"]
        weights = [entry for entry in own if entry.path.name == "model.safetensors"]
        if not weights:
            return 0
        newest = max(weights, key=lambda entry: step_number(entry.path.parent.name))
        vocabularies = (e for e in own if e.path.name in ("source.model", "target.model"))
        return newest.size_bytes + sum(entry.size_bytes for entry in vocabularies)


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Bytes of disk that a run will need at most.

    num_checkpoints: those that are kept, and the one being written beside them.
    """

    checkpoint_bytes: int
    num_checkpoints: int
    record_bytes: int

    @property
    def size_bytes(self) -> int:
        """All together."""
        return self.checkpoint_bytes * self.num_checkpoints + self.record_bytes


def take_inventory(root: Path) -> Inventory:
    """Every file of a run, a checkpoint or prepared shards, in the order of their paths.

    The run may be training meanwhile. Raises CheckpointError if there is no such directory.
    """
    if not root.is_dir():
        raise CheckpointError(
            "is a file, not a directory" if root.exists() else "no such directory",
            place=root,
            remedy="name a run, a checkpoint or prepared shards",
        )
    paths = sorted(Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    exports = {path.parent for path in paths if path.name == _EXPORT_FILE}
    entries = (_entry(root, path, is_export=path.parent in exports) for path in paths)
    return Inventory(root, tuple(entry for entry in entries if entry is not None))


def forecast_disk(
    num_parameters: int,
    *,
    train: TrainConfig,
    checkpoint: CheckpointConfig,
    world_size: int = 1,
    strategy_tensors: int = 0,
) -> DiskForecast:
    """The most disk that a run takes under its keep policy, by arithmetic alone.

    A checkpoint holds the weights, two moments of each and their moving average, if any, in fp32.
    The best by dev loss and the best by BLEU may be different ones.

    strategy_tensors: further state that ranks save, in tensors as large as the weights.
    """
    tensors = 3 + (train.ema_decay > 0) + strategy_tensors
    intervals = train.max_steps // train.log_every_steps + 1
    return DiskForecast(
        checkpoint_bytes=num_parameters * 4 * tensors,
        num_checkpoints=checkpoint.keep_last + 2 * checkpoint.keep_best + 1,
        record_bytes=intervals * (world_size * _EVENT_BYTES + _TENSORBOARD_BYTES),
    )


def _entry(root: Path, path: Path, *, is_export: bool) -> InventoryEntry | None:
    """None if the file has gone meanwhile, as old checkpoints do, or is a broken link."""
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return None
    relative = path.relative_to(root)
    if is_export:
        return InventoryEntry(relative, "export", "part of an export: a model to use", size_bytes)
    # With the root's own name, so that patterns match even if the root is a checkpoint itself.
    part, purpose = _purpose(f"{root.resolve().name}/{relative}")
    return InventoryEntry(relative, part, purpose, size_bytes)


def _purpose(path: str) -> tuple[Part, str]:
    for known in reversed(_PURPOSES):
        if fnmatch(path, known.pattern):
            return known.part, known.purpose
    return "record", "not written by dragoman"
