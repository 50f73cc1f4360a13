"""The program on a host for `dragoman watch --hosts`: sends the records of a run as they grow.

    python -c 'exec(...)' PLACE...

It sends the run in the first place that holds one; there may be none yet. It reads one line of
JSON, the number of bytes that the reader has of each file, and writes frames: a line of JSON, then
as many bytes as that line says. It ends when its input ends. Only the standard library is used.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any

_LOOK_EVERY_S = 0.5
_AT_ONCE_BYTES = 1 << 20
_WHOLE = ("manifest.json", "recipe.toml")


def find_run(places: list[Path]) -> Path | None:
    """The first place that holds a run; None if there is none."""
    for place in places:
        if (place / "recipe.toml").is_file() or (place / "events").is_dir():
            return place
    return None


class Sender:
    """Sends the bytes that the reader lacks. had: how many it has of each file."""

    def __init__(self, places: list[Path], had: dict[str, int]) -> None:
        self._places = places
        self._had = had
        self._sent_run: bool | None = None

    def send(self) -> None:
        """Send all that was added since the last call, then whether there is a run, if new."""
        run = find_run(self._places)
        names = [] if run is None else [name for name in _WHOLE if (run / name).is_file()]
        if run is not None:
            names += sorted(f"events/{path.name}" for path in run.glob("events/*.jsonl"))
            for name in names:
                self._send_file(run / name, name)
        if self._sent_run != (run is not None):
            self._sent_run = run is not None
            _frame({"found": self._sent_run}, b"")

    def _send_file(self, path: Path, name: str) -> None:
        try:
            # A pipe in this place would block when it is opened.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                state = os.fstat(descriptor)
                if not stat.S_ISREG(state.st_mode):
                    return
                size = state.st_size
                had = self._had.get(name, 0)
                anew = size < had or (name in _WHOLE and size != had)
                file.seek(0 if anew else had)
                while content := file.read(size if name in _WHOLE else _AT_ONCE_BYTES):
                    at = file.tell() - len(content)
                    _frame({"file": name, "at": at, "anew": anew}, content)
                    anew = False
                self._had[name] = file.tell()
        except FileNotFoundError:  # moved away meanwhile
            self._had.pop(name, None)


def _frame(values: dict[str, Any], content: bytes) -> None:
    header = json.dumps({**values, "bytes": len(content)}).encode() + b"\n"
    sys.stdout.buffer.write(header + content)
    sys.stdout.buffer.flush()


def main() -> None:
    """Send until the reader is gone."""
    sender = Sender([Path(text) for text in sys.argv[1:]], json.loads(sys.stdin.buffer.readline()))
    while True:
        sender.send()
        if select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
            return


if __name__ == "__main__":
    main()
