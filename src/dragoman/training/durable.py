"""Directories that appear on disk whole or not at all, with a digest of every file.

Directories of checkpoints are named by their step: step-0004000. They are sorted by number, as a
step may have eight digits.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from glob import escape
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.base.files import open_regular, read_regular

_PREFIX: Final = "step-"


def step_name(step: int) -> str:
    """The name of the checkpoint of this step."""
    return f"{_PREFIX}{step:07d}"


def step_number(name: str) -> int:
    """The step of the checkpoint of this name; -1 if the name is not a checkpoint's."""
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else -1


def step_directories(directory: Path) -> list[Path]:
    """The checkpoints in a directory, the newest last; none of them is checked."""
    found = (path for path in directory.glob(f"{_PREFIX}*") if step_number(path.name) >= 0)
    return sorted(found, key=lambda path: step_number(path.name))


DIGESTS_FILE: Final = "digests.json"
_LONGEST_LIST: Final = 1 << 20
"""Bytes of a list of digests: room for thousands of files."""
_LONGEST_NAME: Final = 255


def publish(directory: Path, fill: Callable[[Path], None]) -> int:
    """Make a directory: `fill` writes its files into the path it is given. Returns their size.

    Everything is on disk before the directory takes its name, so a crash at any moment leaves
    either all of it or a draft that `remove_drafts` removes. An older directory of the same name is
    replaced, and exists until then: `remove_drafts`, or the next `publish` of it, restores it if
    needed. A link to a directory stays a link. The umask decides who may read the files.

    Raises MachineError if the disk is full or cannot be written, or if the directory is moved
    meanwhile; no draft is left behind.
    """
    directory = Path(os.path.realpath(directory))
    # No other process writes to this draft, so files of two writers are never mixed.
    draft = _hidden(directory, f"{os.getpid()}.draft")
    older = _hidden(directory, "older")
    begun = False
    try:
        _restore(older, directory)
        _remove_abandoned(directory)
        draft.mkdir(parents=True)
        begun = True
        fill(draft)
        digests = {path.name: _digest(path) for path in sorted(draft.iterdir())}
        text = json.dumps(digests, indent=1)
        (draft / DIGESTS_FILE).write_text(text, encoding="utf-8")
        for path in draft.iterdir():
            path.chmod(
                (draft / DIGESTS_FILE).stat().st_mode
            )  # safetensors makes files only we can read
            _flush(path)
        _flush(draft)
        if directory.exists():
            shutil.rmtree(older, ignore_errors=True)
            directory.rename(older)
        draft.rename(directory)
        _flush(directory.parent)
        shutil.rmtree(older, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        if begun and not draft.exists():
            raise MachineError(
                "this directory was moved or removed while it was written",
                place=directory,
                remedy="if the directory above it was moved, run the command again with the new "
                "place",
            ) from error
        shutil.rmtree(draft, ignore_errors=True)
        raise MachineError(
            f"cannot be written: {getattr(error, 'strerror', None) or error}",
            place=directory,
            remedy="free disk space or make the directory writable, then run the same command "
            "again; everything complete is kept",
        ) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return sum(path.stat().st_size for path in directory.iterdir())


def discard(directory: Path) -> None:
    """Remove a directory; a crash on the way never leaves a part of it under its name."""
    doomed = _hidden(directory, "doomed")
    directory.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_drafts(parent: Path) -> None:
    """Remove the remains of a killed `publish` or `discard`, but nothing whole."""
    for path in parent.glob(".*.older"):
        _restore(path, parent / path.name.removeprefix(".").removesuffix(".older"))
        shutil.rmtree(path, ignore_errors=True)
    for kind in ("draft", "doomed"):
        for path in parent.glob(f".*.{kind}"):
            shutil.rmtree(path, ignore_errors=True)


def _restore(older: Path, replaced: Path) -> None:
    """Give a directory back its name if a killed `publish` has not replaced it."""
    if older.exists() and not replaced.exists():
        older.rename(replaced)


def _remove_abandoned(directory: Path) -> None:
    """Remove drafts of this directory from killed processes; not those of living ones."""
    for draft in directory.parent.glob(f".{escape(directory.name)}.*.draft"):
        pid = draft.name.split(".")[-2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
            shutil.rmtree(draft, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def verify(directory: Path, names: Iterable[str] | None = None) -> None:
    """Check files against their digests, all files or those named.

    Raises CheckpointError that names the first file which is missing, cut short or altered.
    """
    digests = read_digests(directory)
    for name in digests if names is None else names:
        path = directory / name
        try:
            found = _digest(path)
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from error
        expected = digests.get(name)
        if expected is None:
            raise _damaged(path, f"not in {DIGESTS_FILE}")
        if found["bytes"] != expected["bytes"]:
            raise _damaged(path, f"has {found['bytes']} bytes instead of {expected['bytes']}")
        if found != expected:
            raise _damaged(path, "its content has changed since it was written")


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        problem, place=path, remedy="use another checkpoint; this one is damaged"
    )


def read_digests(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 by file name; raises CheckpointError if they cannot be read."""
    path = directory / DIGESTS_FILE
    try:
        digests: dict[str, dict[str, Any]] = json.loads(read_regular(path, limit=_LONGEST_LIST))
        if all(_is_name(name) and _is_size(entry["bytes"]) for name, entry in digests.items()):
            return digests
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise _damaged(path, "is missing or torn")


def _is_name(name: str) -> bool:
    """Whether a file of the directory itself can be called that."""
    printable = name.isprintable() and len(name) <= _LONGEST_NAME
    return printable and name not in ("", ".", "..") and "/" not in name


def _is_size(size: object) -> bool:
    """Whether a file can have this many bytes."""
    return type(size) is int and 0 <= size < 2**63


def _digest(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": sha256, "bytes": file.tell()}


def _hidden(directory: Path, kind: str) -> Path:
    return directory.with_name(f".{directory.name}.{kind}")


def _flush(path: Path) -> None:
    """Wait until a file's content, or a directory's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
