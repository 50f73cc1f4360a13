"""The figures of the benchmarks: a line of JSON each, with the machine that gave it.

    benchmarks/results.py CLAIM CASE VALUE UNIT --command "benchmarks/..." [--low L --high H]
        [--at-least BAR] [--at-most BAR] [--note TEXT]

adds a figure that was measured on this machine, at this commit, today. `benchmarks/page.py` then
writes README.md anew. UNIT is one of those in `UNITS`; CLAIM is a name in claims.toml.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

HERE: Final = Path(__file__).resolve().parent
FILE: Final = HERE / "results.jsonl"
UNKNOWN: Final = "not recorded"

Unit = Literal[
    "x", "%", "BLEU", "BLEU difference", "chrF difference", "F1", "of", "s", "MB", "a second"
]
UNITS: Final[dict[Unit, str]] = {
    "x": "{:.2f}",
    "%": "{:g}%",
    "BLEU": "{:.1f}",
    "BLEU difference": "{:+.2f} BLEU",
    "chrF difference": "{:+.2f} chrF",
    "F1": "F1 {:.3f}",
    "of": "{:,.0f}",
    "s": "{:g} s",
    "MB": "{:,.0f} MB",
    "a second": "{:,.0f} a second",
}
"""How a number of each unit is written. "x" is how many times as much, "of" counts cases."""
INSTRUCTIONS: Final = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "bf16",
    "amx_bf16": "AMX",
}
"""Instruction sets that change the speed of a training, by the flag of /proc/cpuinfo."""
GENERATIONS: Final = {("25", "1"): "Zen 3", ("25", "17"): "Zen 4", ("26", "2"): "Zen 5"}
"""The generation of a server processor of AMD, by family and model of /proc/cpuinfo."""


class Result(BaseModel):
    """One figure; what nobody wrote down is "not recorded".

    value: the median if there are several rounds; low, high: the range over them.
    out_of: the number of cases, if the value counts some of them.
    at_least, at_most: the target, if there is one.
    instructions: the instruction sets of the processor that change its speed; "" for a GPU.
    page: whether README.md has the figure.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str
    case: str
    value: float
    unit: Unit
    low: float | None = None
    high: float | None = None
    out_of: int | None = None
    at_least: float | None = None
    at_most: float | None = None
    processor: str
    instructions: str
    cores: int | None = None
    commit: str
    date: str
    command: str
    note: str = ""
    page: bool = True

    @property
    def missed(self) -> bool:
        """Whether the value misses its target."""
        too_low = self.at_least is not None and self.value < self.at_least
        return too_low or (self.at_most is not None and self.value > self.at_most)

    @property
    def machine(self) -> tuple[str, str]:
        """What two figures of one machine have in common."""
        return self.processor, self.instructions

    @property
    def name(self) -> str:
        """A short name of the machine, such as "Zen 5"."""
        return self.processor.removeprefix("AMD EPYC, ").removeprefix("NVIDIA ").split(", ")[0]


def read() -> list[Result]:
    """All figures, oldest line first."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [Result.model_validate_json(line) for line in lines]


def record(
    claim: str, case: str, value: float, unit: Unit, *, command: str, **more: object
) -> None:
    """Add a figure that this machine has just given. more: further fields of `Result`."""
    processor, instructions = this_machine()
    result = Result.model_validate(
        {
            "claim": claim,
            "case": case,
            "value": value,
            "unit": unit,
            "processor": processor,
            "instructions": instructions,
            "cores": len(os.sched_getaffinity(0)),
            "commit": this_commit(),
            "date": datetime.now(UTC).date().isoformat(),
            "command": command,
            **more,
        }
    )
    with FILE.open("a", encoding="utf-8") as lines:
        lines.write(result.model_dump_json(exclude_defaults=True) + "\n")


def this_machine() -> tuple[str, str]:
    """The model of the processor and its instruction sets, as Linux names them."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition(":")
        facts.setdefault(name.strip(), text.strip())
    flags = facts.get("flags", "").split()
    sets = [name for flag, name in INSTRUCTIONS.items() if flag in flags]
    if "AVX-512" in sets:
        sets.remove("AVX2")
    kind = facts.get("cpu family", "?"), facts.get("model", "?")
    family = GENERATIONS.get(kind, "family {}, model {}".format(*kind))
    return f"{facts.get('model name', UNKNOWN)}, {family}", ", ".join(sets) or UNKNOWN


def this_commit() -> str:
    """The commit of this checkout; it must have no change that is not committed."""
    git = ["git", "-C", str(HERE)]
    changes = subprocess.run([*git, "status", "--porcelain", "--", "../src"], capture_output=True)
    if changes.returncode or changes.stdout:
        raise SystemExit("commit the changes of src first: a figure belongs to a commit")
    head = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, check=True)
    return head.stdout.decode().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("claim")
    parser.add_argument("case")
    parser.add_argument("value", type=float)
    parser.add_argument("unit", choices=UNITS)
    parser.add_argument("--command", required=True)
    parser.add_argument("--note", default="")
    for name in ("--low", "--high", "--at-least", "--at-most"):
        parser.add_argument(name, type=float)
    parser.add_argument("--out-of", type=int)
    record(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
