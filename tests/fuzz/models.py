"""Recipes and models of other people, mutated at random, through dragoman's commands.

    PYTHONPATH=tests .venv/bin/python -m fuzz.models --minutes 10

Each example must end in time, with one line if it fails, with nothing written outside its
folder, in bounded memory and without a crash of the process. Hypothesis draws the examples; each
runs in a forked child, whose addresses, file sizes and time are limited. Some run in a new process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, Final

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dragoman.cli import main as dragoman
from dragoman.recipe.recipe import SHIPPED_RECIPES
from hostile import SMALL_RUN, change_header, redo_digests, whole_export

LIMIT_S: Final = 5.0
"""Seconds of processor time, which a busy machine does not lengthen."""
ADDRESSES: Final = 3 << 30
"""Beyond those that the parent has already: what an example may allocate."""
FILE_BYTES: Final = 1 << 26
RUN: Final = SMALL_RUN / "run"
ODD_NUMBERS: Final = (
    -1, 0, 1, 2, 63, 2**31 - 1, 2**31, 2**32, 2**62, 2**63, 10**30, 10**400, 0.5, -1e308, 1e308,
)  # fmt: skip
ODD_TEXTS: Final = (
    "", "a", "..", "../../x", "/dev/zero", "\0", "\x1b[2J", "<b>", "\n", "\u202e", "x" * 5000,
)  # fmt: skip
ODD_VALUES: Final[tuple[Any, ...]] = (
    *ODD_NUMBERS,
    *ODD_TEXTS,
    None,
    True,
    [],
    {},
    [[]],
    {"a": {"b": {"c": 1}}},
)


class BrokenPromiseError(Exception):
    """An example that broke a promise."""


def make_material(folder: Path) -> dict[str, Path]:
    """One whole model of each kind that a command takes; CTranslate2 reads its files unchecked."""
    return {
        "run": copytree(RUN, folder / "run"),
        "huggingface": copytree(whole_export(), folder / "huggingface"),
    }


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """Some bytes flipped, a part cut out, doubled or blown up."""
    if not content:
        return b"\0" * chance.randrange(100)
    changed, at = bytearray(content), chance.randrange(len(content))
    kind = chance.randrange(6)
    if kind < 2:
        for _ in range(1 + kind * 20):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    elif kind == 2:
        del changed[at : at + 1 + chance.randrange(200)]
    elif kind == 3:
        changed[at:at] = changed[at : at + chance.randrange(200)]
    elif kind == 4:
        changed[at:at] = chance.choice((b"[", b"{", b"a.", b" ", b"\xff", b"[[", b'"', b"9")) * (
            10 ** chance.randrange(1, 6)
        )
    else:
        del changed[at:]
    return bytes(changed)


def mutate_json(value: Any, chance: random.Random) -> Any:
    """The same structure with one odd value, or a key more or less, somewhere in it."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key, changed = chance.choice(sorted(value)), dict(value)
        kind = chance.randrange(8)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[str(chance.choice(ODD_TEXTS))] = chance.choice(ODD_VALUES)
        else:
            changed[key] = mutate_json(value[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        at, items = chance.randrange(len(value)), list(value)
        items[at] = mutate_json(items[at], chance)
        return items
    return chance.choice(ODD_VALUES)


def mutate_header(header: dict[str, Any], chance: random.Random) -> None:
    """The same in place; a header stays a table, other kinds are made of its bytes."""
    mutated = mutate_json(header, chance)
    header.clear()
    header.update(mutated if isinstance(mutated, dict) else {str(mutated): mutated})


def mutate_toml(text: str, chance: random.Random) -> str:
    """A line's value made odd, or the text itself."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    key, equals, _ = lines[at].partition("=")
    if equals and chance.random() < 0.8:
        odd = chance.choice(ODD_VALUES)
        spelt = json.dumps(odd).replace("null", "nan").replace('": ', '" = ')
        lines[at] = f"{key}= {spelt}"
        return "\n".join(lines)
    return mutate_bytes(text.encode(), chance).decode("utf-8", "replace")


def change_kind(file: Path, chance: random.Random) -> None:
    """Something else in the place of a file."""
    file.unlink()
    kind = chance.randrange(6)
    if kind == 0:
        os.mkfifo(file)
    elif kind == 1:
        file.symlink_to(chance.choice(("/dev/zero", "/dev/stdin", "/dev/tty", "/proc/kcore")))
    elif kind == 2:
        file.symlink_to(file.name)
    elif kind == 3:
        file.mkdir()
    elif kind == 4:
        file.symlink_to("../../../../../../etc/passwd")


def spoil(path: Path, chance: random.Random) -> None:
    """Change one to three files of a model, and its digests so that they say it is whole."""
    files = sorted(one for one in path.rglob("*") if one.is_file())
    for file in {chance.choice(files) for _ in range(chance.randrange(1, 4))}:
        kind = chance.randrange(10)
        if kind == 0:
            change_kind(file, chance)
        elif kind == 1 and file.suffix == ".safetensors":
            with contextlib.suppress(ValueError):
                change_header(file, lambda header: mutate_header(header, chance))
        elif kind < 7 and file.suffix == ".json":
            file.write_text(json.dumps(mutate_json(json.loads(file.read_bytes()), chance)))
        elif kind < 7 and file.suffix == ".toml":
            file.write_text(mutate_toml(file.read_text("utf-8"), chance))
        else:
            file.write_bytes(mutate_bytes(file.read_bytes(), chance))
    if chance.random() < 0.9:
        for folder in {file.parent for file in path.rglob("digests.json") if file.is_file()}:
            with contextlib.suppress(OSError):
                redo_digests(folder)


def example(kind: str, material: dict[str, Path], place: Path, seed: int) -> list[str]:
    """Prepare one example in a folder, and the command that meets it."""
    chance = random.Random(seed)
    if kind == "recipe":
        shipped = chance.choice(sorted(SHIPPED_RECIPES.glob("*.toml")))
        text = shipped.read_text("utf-8")
        for _ in range(chance.randrange(1, 4)):
            text = mutate_toml(text, chance)
        (place / "fuzzed.toml").write_text(text, "utf-8")
        return ["run", str(place / "fuzzed.toml"), "--dry-run"]
    path = copytree(material[kind], place / kind)
    spoil(path, chance)
    (place / "in").write_text("Click the table.\n")
    train = ["train", str(SMALL_RUN / "tiny.toml"), "--from", str(path), "--dry-run"]
    train += ["--prepared", str(place / "none"), "--runs", str(place / "runs")]
    translate = ["translate", str(path), "--input", str(place / "in"), "--threads", "1"]
    export = ["export", str(path), "--output", str(place / "exported")]
    commands = [translate, translate, ["inspect", str(path)]]
    commands += [export] if kind == "run" else [train]
    return chance.choice(commands)


def _called(arguments: list[str]) -> tuple[int, str]:
    """Exit code and errors of a command in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = dragoman(arguments)
    return code, errors.getvalue()


def _limit() -> None:
    """Limits of a child: addresses beyond those it has, sizes of files, no dump of a crash."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge(code: int, errors: str, place: Path, outside: Path) -> None:
    """Raises BrokenPromiseError if a command did not keep its promises."""
    if code < 0:
        raise BrokenPromiseError(f"killed by {signal.Signals(-code).name}")
    if "Traceback" in errors:
        raise BrokenPromiseError(errors)
    if code and errors.count("\n") != 1:
        raise BrokenPromiseError(
            f"exit code {code} with {errors.count(chr(10))} lines: {errors[:2000]}"
        )
    if "\x1b" in errors:
        raise BrokenPromiseError(f"an escape sequence: {errors!r}")
    strange = {one.name for one in outside.iterdir()} - {place.name}
    if strange:
        raise BrokenPromiseError(f"written outside: {sorted(strange)}")


def in_child(arguments: list[str], log: Path) -> tuple[int, str]:
    """Run a command in a fork of this process; raises BrokenPromiseError if it is slow."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            _limit()
            os.chdir(log.parent)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            code, errors = _called(arguments)
            log.write_bytes(errors.encode("utf-8", "replace"))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 2
            log.write_text("ended by argparse\n")
        except MemoryError:
            log.write_text("Traceback: memory ran out\n")
        except BaseException:
            log.write_bytes(traceback.format_exc().encode("utf-8", "replace"))
        finally:
            os._exit(code)
    ended = _wait(child)
    return ended, log.read_bytes().decode("utf-8", "replace") if log.exists() else ""


def _wait(child: int) -> int:
    """The exit code of a child, negative for a signal; raises BrokenPromiseError if it is slow."""
    started = time.monotonic()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if spent > LIMIT_S or time.monotonic() - started > 12 * LIMIT_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise BrokenPromiseError(f"still at work after {spent:.1f} s of processor time")
        time.sleep(0.002)


def in_process(arguments: list[str], place: Path) -> tuple[int, str]:
    """Run a command as a user does."""
    command = [sys.executable, "-m", "dragoman", *arguments]
    try:
        done = subprocess.run(
            command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=24 * LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BrokenPromiseError("a process does not end") from error
    return done.returncode, done.stderr.decode("utf-8", "replace")


def main() -> int:
    """Fuzz for some minutes and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of one example, to see it again")
    parser.add_argument("--kind", help="huggingface, run or recipe")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a fork has but one thread
    root = Path(tempfile.mkdtemp(prefix="dragoman-fuzz-"))
    (root / "material").mkdir()
    material = make_material(root / "material")
    kinds = [options.kind] if options.kind else ["recipe", *material]
    counts: Counter[str] = Counter()
    failures: list[str] = []
    slowest, deadline = 0.0, time.monotonic() + 60 * options.minutes
    outside = root / "examples"
    outside.mkdir()

    def one(kind: str, seed: int) -> None:
        nonlocal slowest
        place = outside / "example"
        rmtree(place, ignore_errors=True)
        place.mkdir()
        arguments = example(kind, material, place, seed)
        real, started = seed % 50 == 0, time.monotonic()
        try:
            code, errors = (
                in_process(arguments, place) if real else in_child(arguments, place / "log")
            )
            judge(code, errors, place, outside)
        except BrokenPromiseError as found:
            counts["failures"] += 1
            failures.append(f"--kind {kind} --seed {seed}: {arguments[0]}: {found}")
            print(failures[-1], flush=True)
            return
        slowest = max(slowest, time.monotonic() - started)
        counts[f"{kind}, {'accepted' if code == 0 else 'refused'}"] += 1
        counts["in a new process"] += real

    if options.seed is not None:
        one(kinds[0], options.seed)
        return len(failures)
    while time.monotonic() < deadline and len(failures) < 20:

        @settings(
            max_examples=100, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.sampled_from(kinds), st.integers(0, 2**31))
        def batch(kind: str, seed: int) -> None:
            if time.monotonic() < deadline and len(failures) < 20:
                one(kind, seed)

        batch()
    rmtree(root, ignore_errors=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8,}  {name}")
    print(f"{sum(counts.values()) - counts['in a new process']:8,}  examples in all")
    print(f"slowest of those that were well: {slowest:.1f} s by the clock")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
