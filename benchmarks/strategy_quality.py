"""What strategies cost in quality at equal tokens: BLEU on Multi30k test2016, seeds x strategies.

    benchmarks/strategy_quality.py --multi30k DIR --work DIR [--seeds 1 2 3] [--replicas 2 4]

Every run is `dragoman train` of the shipped multi30k-tiny with a shorter schedule: the same batches
in the same order for every strategy of a seed. Replicas share this machine, each rank being one:
this asks about quality, not speed. Half an hour a run on two cores; minutes where a GPU is shared.
Stop it at any time: the same command goes on, runs from their checkpoints, and prints the table of
what is there. `--table` prints it and trains nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Final

from dragoman.telemetry.events import TestScored, read_events

STRATEGIES: Final[dict[str, list[str]]] = {
    "sync": ["strategy=sync"],
    "accum K=4": ["strategy=accum", "accum.every=4"],
    "diloco H=52 F=4 tau=6": [
        *("strategy=diloco", "diloco.every=52", "diloco.fragments=4", "diloco.delay=6")
    ],
    "diloco H=100 F=1": [
        *("strategy=diloco", "diloco.every=100", "diloco.fragments=1", "diloco.delay=0")
    ],
    "powersgd r=4": ["strategy=powersgd"],
}
T_95: Final = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a mean of so many, two-sided."""


@dataclass(frozen=True)
class Result:
    """One finished run."""

    strategy: str
    replicas: int
    seed: int
    steps: int
    bleu: float
    bleu_low: float | None
    bleu_high: float | None
    signature: str
    dev_loss: float


def main() -> None:
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    file = options.work / "results.jsonl"
    if not options.table:
        prepared = _prepare(options)
        # Seed by seed, so that there is something to compare as early as possible.
        for seed, replicas, name in product(options.seeds, options.replicas, options.strategies):
            done = {(r.strategy, r.replicas, r.seed, r.steps) for r in _results(file)}
            if (name, replicas, seed, options.steps) not in done:
                result = _run(options, prepared, name, replicas, seed)
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(asdict(result)) + "\n")
                print(f"{name}, {replicas} replicas, seed {seed}: {result.bleu:.2f}", flush=True)
    print(table([result for result in _results(file) if result.steps == options.steps]))


def table(results: list[Result]) -> str:
    """Means over seeds, and differences from `sync` of the same seed and replicas."""
    lines = ["| replicas | strategy | seeds | BLEU | against sync (95%) | dev loss |"]
    lines.append("|---:|---|---:|---:|---:|---:|")
    by_key = {(one.strategy, one.replicas, one.seed): one for one in results}
    for replicas, name in product(sorted({one.replicas for one in results}), STRATEGIES):
        runs = [one for one in results if (one.strategy, one.replicas) == (name, replicas)]
        if not runs:
            continue
        pairs = [(one, by_key.get(("sync", replicas, one.seed))) for one in runs]
        gains = [one.bleu - other.bleu for one, other in pairs if other is not None]
        bleu = statistics.mean(one.bleu for one in runs)
        loss = statistics.mean(one.dev_loss for one in runs)
        against = "" if name == "sync" else _interval(gains)
        lines.append(f"| {replicas} | {name} | {len(runs)} | {bleu:.2f} | {against} | {loss:.3f} |")
    return "\n".join(lines)


def _interval(gains: list[float]) -> str:
    if not gains:
        return "not measured"
    mean = statistics.mean(gains)
    if len(gains) not in T_95:
        return f"{mean:+.2f}"
    half = T_95[len(gains)] * statistics.stdev(gains) / math.sqrt(len(gains))
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def _run(
    options: argparse.Namespace, prepared: Path, name: str, replicas: int, seed: int
) -> Result:
    runs = options.work / "runs" / f"{name.replace(' ', '-').replace('=', '')}-{replicas}-{seed}"
    overrides = [f"distributed.{setting}" for setting in STRATEGIES[name]]
    overrides += [f"train.seed={seed}", *_common(options)]
    _dragoman(
        *("train", "multi30k-tiny", "--prepared", str(prepared), "--runs", str(runs)),
        *("--ranks", str(replicas), *_flags(overrides)),
    )
    run = max(path.parent for path in runs.glob("*/recipe.toml"))
    _dragoman("evaluate", str(run), "--checkpoint", "last")
    events = [*read_events(run / "events" / "rank-0000.jsonl")]
    scored = [event for event in events if event.kind == TestScored.kind][-1].payload
    losses = [event.payload["dev_loss"] for event in events if event.kind == "validated"]
    return Result(
        strategy=name,
        replicas=replicas,
        seed=seed,
        steps=options.steps,
        bleu=scored["bleu"],
        bleu_low=scored["bleu_low"],
        bleu_high=scored["bleu_high"],
        signature=scored["bleu_signature"],
        dev_loss=losses[-1],
    )


def _prepare(options: argparse.Namespace) -> Path:
    prepared: Path = options.work / "prepared"
    flags = _flags([f"corpus.folder={options.multi30k.resolve()}"])
    _dragoman("prepare", "multi30k-tiny", "--prepared", str(prepared), *flags)
    return prepared


def _common(options: argparse.Namespace) -> list[str]:
    return [
        f"corpus.folder={options.multi30k.resolve()}",
        f"train.max_steps={options.steps}",
        f"schedule.warmup_steps={options.steps // 5}",
        f"train.validate_every_steps={max(1, options.steps // 5)}",
        "train.validate_at_start=false",
        # An average of the weights takes the noise of the last steps out of the comparison.
        "train.ema_decay=0.995",
        f"checkpoint.every_steps={max(1, options.steps // 10)}",
        "checkpoint.keep_last=1",
        "evaluate.bleu_pairs=0",
    ]


def _flags(overrides: list[str]) -> list[str]:
    return [flag for override in overrides for flag in ("--set", override)]


def _results(file: Path) -> Iterator[Result]:
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            yield Result(**json.loads(line))


def _dragoman(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dragoman.cli", *arguments], check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--work", type=Path, required=True, help="runs and results are kept here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--steps", type=int, default=2500, help="of 4,096 cells (default: 2500)")
    parser.add_argument("--table", action="store_true", help="of the results so far; no training")
    return parser.parse_args()


if __name__ == "__main__":
    main()
