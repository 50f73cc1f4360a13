"""COMET (Rei et al. 2020): a neural model's rating of translations, made in a process of its own.

unbabel-comet needs older packages than dragoman, and its checkpoints are pickles, which can run any
code. So a Python that has it loads them; it is given text and returns numbers. Nothing is
downloaded.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import file_sha256

_PROGRAM: Final = Path(__file__).with_name("comet_process.py")
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_DIGITS: Final = 8


@contextmanager
def open_comet(python: Path, checkpoint: Path, *, threads: int | None = None) -> Iterator[Comet]:
    """A process with a loaded checkpoint, which ends with the context.

    python: a Python that has unbabel-comet. checkpoint: a file such as `checkpoints/model.ckpt`,
        with `hparams.yaml` in the folder above its own.
    threads: CPU threads; None: as many as PyTorch takes.
    Raises ConfigError if one of the two is not there, MachineError if the checkpoint cannot be
    loaded.
    """
    program = shutil.which(python)
    if program is None:
        raise ConfigError(
            "no such program", place=python, remedy="name a Python that has unbabel-comet"
        )
    if not checkpoint.is_file():
        raise ConfigError(
            "no such file", place=checkpoint, remedy="name a COMET checkpoint, model.ckpt"
        )
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [program, "-I", str(_PROGRAM), str(checkpoint.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | _OFFLINE,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield Comet(process, errors, checkpoint, threads)
        finally:
            process.kill()
            process.communicate()  # closes its input without an error if it was not read


class Comet:
    """A running process; see `open_comet`.

    signature: the beginning of the checkpoint's SHA-256 and the version of unbabel-comet.
    needs_references: whether it compares with references; if not, it rates a translation by its
        source alone (quality estimation).
    """

    def __init__(
        self,
        process: subprocess.Popen[str],
        errors: IO[bytes],
        checkpoint: Path,
        threads: int | None,
    ) -> None:
        self._process = process
        self._errors = errors
        self._checkpoint = checkpoint
        self._threads = threads
        loaded = self._answer()
        self.needs_references: bool = loaded["needs_references"]
        digest = file_sha256(checkpoint)[:_DIGITS]
        self.signature = f"COMET|checkpoint:{digest}|unbabel-comet:{loaded['version']}"

    def scores(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str] = ()
    ) -> list[float]:
        """The rating of each translation, mostly 0 to 1; raises MachineError if COMET fails.

        references: not used if the checkpoint needs none.
        """
        sides = [sources, translations, *([references] if self.needs_references else [])]
        rows = list(zip(*sides, strict=True))
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"rows": rows, "threads": self._threads}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed() from error
        found = [float(score) for score in self._answer()["scores"]]
        if len(found) != len(rows) or not all(map(math.isfinite, found)):
            raise MachineError(
                "returned something other than a number for each sentence",
                place=self._checkpoint,
                remedy="look at the checkpoint",
            )
        return found

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self) -> MachineError:
        """An error with the last line that the process wrote to its standard error."""
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return MachineError(
            f"COMET failed: {last}",
            place=self._checkpoint,
            remedy="load it by hand in the same Python, with comet.load_from_checkpoint",
        )
