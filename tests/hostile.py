"""Exports that somebody has made to do harm, from one that is whole."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dragoman.distributed.world import join_world
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.recipe.run_directory import RunDirectory
from own_folder import own_folder

SMALL_RUN = Path(__file__).parent / "golden" / "small_run"
"""A run of a small recipe, its text and its shards; see the README.md in it."""


@cache
def whole_export() -> Path:
    """The model of that run in Hugging Face form."""
    folder = own_folder("whole-export")
    pairs = (SMALL_RUN / "valid.tsv").read_text("utf-8").splitlines()
    (folder / "sentences").write_text(
        "".join(f"{pair.split(chr(9))[0]}\n" for pair in pairs), "utf-8"
    )
    request = Request(
        to="huggingface",
        checkpoint=str(SMALL_RUN / "run" / "checkpoints" / "step-0000200"),
        output=folder / "export",
        sentences=folder / "sentences",
    )
    with join_world() as world:
        return export(RunDirectory.open(SMALL_RUN / "run"), request, world).path


def redo_digests(directory: Path) -> None:
    """Write new digests, as whoever changes a file would; only regular files have one."""
    digests = {
        file.name: {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bytes": file.stat().st_size,
        }
        for file in directory.iterdir()
        if file.is_file() and file.name != "digests.json"
    }
    (directory / "digests.json").write_text(json.dumps(digests))


def change_header(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the JSON before the tensors of a safetensors file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def change_weights(file: Path, value: float, name: str | None = None) -> None:
    """Fill one tensor of fp32, or all, with a value."""
    content = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    for tensor, entry in header.items():
        if tensor != "__metadata__" and name in (None, tensor):
            start, end = entry["data_offsets"]
            filled = struct.pack("<f", value) * ((end - start) // 4)
            content[8 + length + start : 8 + length + end] = filled
    file.write_bytes(bytes(content))


def redo_vocabularies(directory: Path) -> None:
    """Write new digests of vocabularies, then of all files, as whoever changes one would."""
    digests = {
        name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
        for name in ("source.model", "target.model")
    }
    info = json.loads((directory / "bundle.json").read_bytes()) | {"vocabularies": digests}
    (directory / "bundle.json").write_text(json.dumps(info))
    redo_digests(directory)
