"""The heartbeat of each rank, written once a second beside the training, for other ranks to read.

From the process group, a rank that waits in a sum learns only that it waits. Here it reads which
ranks are missing, what they did last, and whether they still live.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self

from torch._C._distributed_c10d import Store

from dragoman.distributed.rendezvous import RENDEZVOUS_VARIABLE, StoreAddress, attempt
from dragoman.distributed.store import connect


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The report of one rank about itself.

    beat: grows each time.
    step: completed updates.
    doing: the phase of a step, "sync" while it waits for others, or its activity between steps.
    news: the lines of its events that rank 0 should write now.
    """

    host: str
    beat: int
    step: int
    doing: str
    news: tuple[str, ...] = ()

    def as_text(self) -> str:
        """The text that others read."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The heartbeat in a text."""
        values = json.loads(text)
        return cls(**values | {"news": tuple(values["news"])})


class Heartbeats(Protocol):
    """Ranks write and read heartbeats here. Raises OSError or RuntimeError if out of reach."""

    def write(self, rank: int, heartbeat: Heartbeat) -> None:
        """Replace the earlier heartbeat of this rank."""

    def read(self) -> Mapping[int, Heartbeat]:
        """The last heartbeat of every rank that has written one."""


class FolderHeartbeats:
    """For the processes of one machine: a file for each rank in the folder in which they meet."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix

    def write(self, rank: int, heartbeat: Heartbeat) -> None:
        """Replace the file of this rank."""
        draft = self._folder / f".{self._prefix}{rank}"
        draft.write_text(heartbeat.as_text(), encoding="utf-8")
        draft.rename(self._folder / f"{self._prefix}{rank}")

    def read(self) -> Mapping[int, Heartbeat]:
        """The files of all ranks."""
        found = {}
        for path in self._folder.glob(f"{self._prefix}*"):
            rank = int(path.name.removeprefix(self._prefix))
            with contextlib.suppress(FileNotFoundError):  # the folder is being removed
                found[rank] = Heartbeat.parse(path.read_text(encoding="utf-8"))
        return found


def news_in(folder: Path) -> list[str]:
    """The lines in the heartbeats of the ranks of this machine that rank 0 should write now."""
    heartbeats = FolderHeartbeats(folder, _name())
    return [line for _, one in sorted(heartbeats.read().items()) for line in one.news]


def _name() -> str:
    """The beginning of the name of each heartbeat."""
    return f"heartbeat-{attempt()}-"


class StoreHeartbeats:
    """For several machines: a key for each rank in the run's store, over its own connection."""

    def __init__(self, store: Store, world_size: int) -> None:
        self._store = store
        self._ranks = range(world_size)

    def write(self, rank: int, heartbeat: Heartbeat) -> None:
        """Replace the key of this rank."""
        self._store.set(str(rank), heartbeat.as_text())

    def read(self) -> Mapping[int, Heartbeat]:
        """The keys of all ranks."""
        keys = [str(rank) for rank in self._ranks]
        if not self._store.check(keys):  # some ranks have not begun
            keys = [key for key in keys if self._store.check([key])]
        texts = self._store.multi_get(keys) if keys else []
        pairs = zip(keys, texts, strict=True)
        return {int(key): Heartbeat.parse(text.decode()) for key, text in pairs}


def open_heartbeats(world_size: int) -> Heartbeats | None:
    """The heartbeats of this process's run; None for a rank that is alone."""
    if world_size == 1:
        return None
    name = _name()
    where = StoreAddress.of_this_process()
    if where is not None:
        return StoreHeartbeats(connect(where, prefix=name), world_size)
    meeting = os.environ.get(RENDEZVOUS_VARIABLE)
    return None if meeting is None else FolderHeartbeats(Path(meeting).resolve().parent, name)
