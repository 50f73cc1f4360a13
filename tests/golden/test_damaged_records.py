"""Real records, damaged at random, are reported on and watched without a traceback."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report, as_json, as_markdown
from dragoman.telemetry.host import HourlyPrice
from dragoman.watch.live import open_run
from dragoman.watch.screen import screen
from dragoman.watch.server import live
from dragoman.watch.status import print_status, read_status

RECORDED = Path(__file__).with_name("recorded")
RUNS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())
DAMAGES_A_RUN = 17
PRICE = HourlyPrice(amount=3.0, currency="USD")
WRONG: tuple[Any, ...] = (
    None,
    True,
    "",
    "x",
    "1e3",
    -1,
    0,
    1e300,
    -1e18,
    0.1,
    [],
    [1],
    {},
    {"a": 1},
    2**80,
)


def _cut(data: bytes, chance: random.Random) -> bytes:
    """A power failure in the middle of a line."""
    return data[: chance.randrange(len(data))]


def _lose(data: bytes, chance: random.Random) -> bytes:
    """A block of the disk is missing."""
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.randrange(1, 5000) :]


def _overwrite(data: bytes, chance: random.Random) -> bytes:
    """Blocks hold zeros, or bytes of another file."""
    at, length = chance.randrange(len(data)), chance.randrange(1, 600)
    filler = bytes(length) if chance.random() < 0.5 else chance.randbytes(length)
    return data[:at] + filler + data[at + length :]


def _flip(data: bytes, chance: random.Random) -> bytes:
    """Single bytes are wrong."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 30)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _repeat(data: bytes, chance: random.Random) -> bytes:
    """Lines were written twice, or by two writers."""
    lines = data.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    return b"".join(lines + lines[at : at + chance.randrange(1, 40)])


def _shuffle(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    chance.shuffle(lines)
    return b"".join(lines)


def _edited(change: Callable[[dict[str, Any]], None], data: bytes) -> bytes:
    values = [json.loads(line) for line in data.splitlines()]
    for one in values:
        change(one)
    return b"".join(json.dumps(one).encode() + b"\n" for one in values)


def _mistype(data: bytes, chance: random.Random) -> bytes:
    """Values that no version of ours writes."""

    def change(values: dict[str, Any]) -> None:
        if chance.random() < 0.3:
            values[chance.choice(sorted(values))] = chance.choice(WRONG)

    return _edited(change, data)


def _age(data: bytes, chance: random.Random) -> bytes:
    """An older or a newer schema: keys that are not there, and others that are."""
    keys = {key for line in data.splitlines() for key in json.loads(line)} - {"v", "kind", "time"}
    gone = chance.sample(sorted(keys), min(12, len(keys)))
    version = chance.choice((0, 2, 99))

    def change(values: dict[str, Any]) -> None:
        for key in gone:
            values.pop(key, None)
        values |= {"v": version, "of_another_version": 1}

    return _edited(change, data)


def _set_clock(data: bytes, chance: random.Random) -> bytes:
    """The clock was set in the middle, or the machine was restarted."""
    jump_s, key = chance.choice((-7200, -1, 300, 1e9)), chance.choice(("time", "mono_s"))
    left = chance.randrange(50)

    def change(values: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        values[key] += jump_s if left < 0 else 0

    return _edited(change, data)


DAMAGES = (_cut, _lose, _overwrite, _flip, _repeat, _shuffle, _mistype, _age, _set_clock)


def _damage(run: Path, chance: random.Random) -> str:
    """Damage some of the files; says how."""
    done = []
    for path in sorted(run.glob("events/*.jsonl")):
        if chance.random() < 0.1:
            path.unlink()
            done.append(f"{path.name} removed")
        elif chance.random() < 0.8:
            damage = chance.choice(DAMAGES)
            path.write_bytes(damage(path.read_bytes(), chance))
            done.append(f"{path.name} {damage.__name__}")
    recipe = run / "recipe.toml"
    if recipe.is_file() and chance.random() < 0.3:
        recipe.write_bytes(_flip(recipe.read_bytes(), chance))
        done.append("recipe.toml _flip")
    return ", ".join(done)


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


def _check_texts(facts: Facts) -> None:
    report = Report.of(facts)
    values = json.loads(as_json(report), parse_constant=_no_constant)
    assert len(values["answers"]) == 12
    for verdict in (*report.answers, *report.ailments):
        for text in (verdict.says, *(row.text for row in verdict.evidence)):
            assert text
            assert not {"None", "nan", "inf"} & set(text.replace("%", " ").split()), text
    assert as_markdown(report)


def test_the_damages_are_many() -> None:
    assert len(RUNS) * DAMAGES_A_RUN >= 300


@pytest.mark.parametrize("name", RUNS)
def test_a_damaged_record_is_reported_and_watched(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    for number in range(DAMAGES_A_RUN):
        run = tmp_path / str(number)
        shutil.copytree(RECORDED / name, run)
        how = _damage(run, chance)
        try:
            if any(run.glob("events/rank-*")) or (run / "recipe.toml").is_file():
                facts = read_facts(run, price=PRICE)
                _check_texts(facts)
                Report.of(facts).write(run / "report")
            watched = open_run(run, price=PRICE)
            watched.look()
            print_status([read_status(run)], Console(file=StringIO()))
            assert screen(watched.now(), width=80, height=24)
            assert live(watched.now())
            watched.close()
        except Exception as error:
            raise AssertionError(f"damage {number} of {name}: {how}") from error
