"""The folder in which a corpus is being made, so that work can go on after a kill.

It is inside the directory of the corpus and is removed when the corpus is whole. A file in it is
whole or absent; existing files need not be made again, as long as the plan is the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import remove_tree, try_lock, write_whole
from dragoman.corpus.manifest import FILE_NAME

_FOLDER = ".unfinished"
FAILED = "failed-preparation"
_OF_FAILURE = ("train.tsv.zst", "filters.json", "filters.html")
_RETIRED = "retired"
_REPLACED = ("train", "valid", "test", "rejected")
"""Folders of a corpus, which a new one replaces."""


class Workplace:
    """Paths of the unfinished corpus.

    plan: the digest of the work. runs: the cleaned training text. parts: its encoded ranges.
    lexical: tables of pieces that translate each other. result: the files to publish. failed:
    outside the folder, the rejected pairs of a corpus of which no pair was left.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / _FOLDER
        self.plan = self.root / "plan"
        self.runs = self.root / "runs"
        self.parts = self.root / "parts"
        self.lexical = self.root / "lexical"
        self.result = self.root / "result"
        self.failed = directory / FAILED

    def rejected(self, split: str) -> Path:
        """The rejected pairs of a dev or test set."""
        return self.root / f"{split}.rejected"

    def begin(self, digest: str) -> None:
        """Keep the files of the work with this digest; remove those of other work.

        Raises ConfigError if a folder that a corpus would replace belongs to none.
        """
        taken = [name for name in _REPLACED if (self.directory / name).exists()]
        if taken and not (self.directory / FILE_NAME).exists() and not self.root.exists():
            raise ConfigError(
                f"{taken[0]} is there already and belongs to no prepared corpus",
                place=self.directory,
                remedy="choose another directory",
            )
        self.forget_failure()
        if not self.plan.exists() or self.plan.read_text() != digest:
            remove_tree(self.root)
        for folder in (self.runs, self.parts, self.result):
            folder.mkdir(parents=True, exist_ok=True)
        for torn in self.root.rglob("*.tmp"):
            torn.unlink()
        write_whole(self.plan, digest)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of make(), called once for this work; the result must survive JSON."""
        path = self.root / f"{name}.json"
        if not path.exists():
            write_whole(path, json.dumps(make()))
        return self.recall(name)

    def recall(self, name: str) -> Any:
        """The result that was kept under a name."""
        return json.loads((self.root / f"{name}.json").read_bytes())

    def is_publishing(self) -> bool:
        """Whether the result is whole and parts of it may have left the workplace already."""
        return (self.root / f"{_RETIRED}.json").exists()

    def publish(self) -> None:
        """Replace the corpus in the directory with the result; the manifest comes last."""
        self.once(_RETIRED, self._retire)
        names = sorted(path.name for path in self.result.iterdir())
        for name in sorted(names, key=lambda name: name == FILE_NAME):
            (self.result / name).replace(self.directory / name)
        self.discard()

    def discard(self) -> None:
        """Remove the workplace."""
        remove_tree(self.root)

    def forget_failure(self) -> None:
        """Remove the rejected pairs of a failed preparation, and nothing else from their folder."""
        for name in _OF_FAILURE:
            (self.failed / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.failed.rmdir()

    def _retire(self) -> None:
        (self.directory / FILE_NAME).unlink(missing_ok=True)
        for name in _REPLACED:
            remove_tree(self.directory / name)


class OccupiedError(MachineError):
    """Another process prepares a corpus in the same directory."""


@contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Make the directory and keep other preparations out of it.

    Raises: OccupiedError if another process prepares a corpus there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        if not try_lock(handle):
            raise OccupiedError(
                "another process prepares a corpus here",
                place=directory,
                remedy="wait for it, or choose another directory",
            )
        yield
    finally:
        os.close(handle)
        with suppress(OSError):
            directory.rmdir()  # only if it is empty: nothing was made
