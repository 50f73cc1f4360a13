"""The loss of quality by strategy at equal tokens: BLEU on Multi30k test2016, several seeds.

    benchmarks/strategy_quality.py --multi30k DIR --work DIR [--seeds 1 2 3] [--replicas 2 4]

Every run is `dragoman train` of the shipped multi30k-tiny with a shorter schedule, fewer pieces and
pre-norm, which needs no long warm-up: the same batches in the same order for every strategy of a
seed, 1,500 of 16,384 cells, which is twenty minutes on two cores alone. Replicas share the machine,
each being a rank: this asks about quality, not speed. An update of `sync` is that of the global
batch on any number of ranks, so it is trained once for all; `diloco` is another program with each
number of replicas. `sync` and what `auto` takes, two and four replicas,
three seeds: nine runs, three hours. With `--gpu --jobs 9` they share one GPU (gpu/one_gpu.py) and
take minutes.

Stop it at any time: the same command goes on, runs from their checkpoints, and prints the table of
what is there. Results stay in benchmarks/strategy_quality.jsonl, a line a run. `--table` prints it
and trains nothing; `--seconds FILE` prints the loss against the wall clock too, with the seconds of
a step that `benchmarks/strategies.py --json FILE` has measured.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

from dragoman.telemetry.events import TestScored, read_events

AUTO: Final = "diloco H=3 F=3 tau=1"
"""The choice of `auto` if plain fp32 takes 16 x the compute."""
LONGER: Final = "diloco H=4 F=4 tau=1"
"""One step more, which would hide a somewhat slower link."""
SGD: Final = ["diloco.outer=sgd", "diloco.wire=bf16"]
STRATEGIES: Final[dict[str, list[str]]] = {
    "sync": ["strategy=sync"],
    AUTO: ["strategy=diloco", "diloco.every=3", "diloco.fragments=3", "diloco.delay=1"],
    LONGER: ["strategy=diloco", "diloco.every=4", "diloco.fragments=4", "diloco.delay=1"],
    "diloco sgd bf16 H=8 F=4 tau=1": [
        *("strategy=diloco", "diloco.every=8", "diloco.fragments=4", "diloco.delay=1", *SGD)
    ],
    "diloco sgd bf16 H=100 F=1": [
        *("strategy=diloco", "diloco.every=100", "diloco.fragments=1", "diloco.delay=0", *SGD)
    ],
}
ASKED: Final = ["sync", AUTO]
MEASURED: Final = {"plain": "sync", "sync": "sync", "auto": AUTO}
"""Whose curve of losses belongs to which line of benchmarks/strategies.py."""
ANY: Final = 0
"""Replicas of a strategy to which their number makes no difference."""
RANKS_OF_ANY: Final = 2
ONE_GPU: Final = Path(__file__).parent / "gpu/one_gpu.py"
SETTING: Final = [
    "corpus.subword.vocab_size=4000",
    # Four replicas of a batch of 4,096 would each learn from a thousand cells.
    "data.batch_tokens=16384",
    "data.accumulate=1",
    "schedule.kind=linear",
    "schedule.peak_learning_rate=5e-3",
    "model.norm=pre",
    "model.dropout=0.2",
    "train.precision={precision}",
    "train.validate_at_start=false",
    # An average of the weights takes the noise of the last steps out of the comparison.
    "train.ema_decay=0.995",
    "checkpoint.keep_last=1",
    "evaluate.bleu_pairs=0",
]
NUM_VALIDATIONS: Final = 10
T_95: Final = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a mean of so many, two-sided."""


@dataclass(frozen=True)
class Result:
    """One finished run; curve: steps, and the loss on the dev set after them.

    setting: what all runs of a comparison have in common. replicas: 0 if any number is the same.
    seconds_s: of the sitting in which it came to its end.
    """

    strategy: str
    replicas: int
    seed: int
    steps: int
    setting: str
    bleu: float
    bleu_low: float | None
    bleu_high: float | None
    signature: str
    curve: list[tuple[int, float]]
    seconds_s: float
    machine: str
    date: str


def main() -> None:
    options = _options()
    setting = " ".join(_setting(options))
    if not options.table:
        options.work.mkdir(parents=True, exist_ok=True)
        prepared = _prepare(options)
        machine = _machine(options)
        done = {
            (r.strategy, r.replicas, r.seed, r.steps, r.setting)
            for r in _results(options)
            if r.machine == machine
        }
        with ThreadPoolExecutor(options.jobs) as jobs:
            running = [
                jobs.submit(_run, options, prepared, name, replicas, seed)
                for seed, name, replicas in _wanted(options)
                if (name, replicas, seed, options.steps, setting) not in done
            ]
            try:
                for finished in as_completed(running):
                    if finished.exception() is None:
                        _keep(finished.result(), options)
            except KeyboardInterrupt:  # otherwise the next would be begun
                jobs.shutdown(wait=False, cancel_futures=True)
                raise
        for finished in running:
            finished.result()  # raises what went wrong, once the other runs are kept
    found = [r for r in _results(options) if (r.steps, r.setting) == (options.steps, setting)]
    # Others draw other dropout: runs of two machines are not the same run with another strategy.
    for machine in sorted({one.machine for one in found}):
        there = [one for one in found if one.machine == machine]
        print(f"{machine}:\n\n{table(there)}\n")
        if options.seconds:
            rows = json.loads(options.seconds.read_text(encoding="utf-8"))
            print(f"{against_the_clock(there, rows)}\n")


def _keep(result: Result, options: argparse.Namespace) -> None:
    with options.results.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(result)) + "\n")
    run = f"{result.strategy}, {result.replicas or 'any'} replicas, seed {result.seed}"
    print(f"{run}: {result.bleu:.2f}, {result.seconds_s / 60:.0f} min", flush=True)


def _wanted(options: argparse.Namespace) -> Iterator[tuple[int, str, int]]:
    """Seed by seed, so that there is something to compare as early as possible."""
    for seed, name in product(options.seeds, options.strategies):
        for replicas in options.replicas if name.startswith("diloco") else [ANY]:
            yield seed, name, replicas


def table(results: list[Result]) -> str:
    """Means over seeds, and differences from `sync` of the same seed."""
    lines = ["| replicas | strategy | seeds | BLEU | against sync (95%) | dev loss |"]
    lines.append("|---:|---|---:|---:|---:|---:|")
    synced = {one.seed: one for one in results if one.strategy == "sync"}
    for replicas, name in product(sorted({one.replicas for one in results}), STRATEGIES):
        runs = [one for one in results if (one.strategy, one.replicas) == (name, replicas)]
        if not runs:
            continue
        gains = [one.bleu - synced[one.seed].bleu for one in runs if one.seed in synced]
        bleu = statistics.mean(one.bleu for one in runs)
        loss = statistics.mean(one.curve[-1][1] for one in runs)
        against = "" if name == "sync" else _interval(gains)
        count = replicas or "any"
        lines.append(f"| {count} | {name} | {len(runs)} | {bleu:.2f} | {against} | {loss:.3f} |")
    return "\n".join(lines)


def against_the_clock(results: list[Result], rows: Sequence[dict[str, Any]]) -> str:
    """Dev loss of each strategy after the same time, by steps measured on two hosts.

    T is the time in which a network that costs nothing would let all steps be made.
    """
    times = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0)
    lines = ["| port | strategy | s/step | " + " | ".join(f"{t:g} T" for t in times) + " |"]
    lines.append("|---|---|---:|" + "---:|" * len(times))
    num_hosts = 2
    for row in (row for row in rows if row["hosts"] == num_hosts):
        name = MEASURED.get(row["name"].split()[0].rstrip(":"))
        curves = [
            dict(one.curve)
            for one in results
            if one.strategy == name and one.replicas in (ANY, num_hosts)
        ]
        if not curves:
            continue
        steps = sorted(curves[0])
        mean = [(step, statistics.mean(curve[step] for curve in curves)) for step in steps]
        cells = []
        for share in times:
            step = share * steps[-1] * row["compute_s"] / row["step_s"]
            cells.append(_loss_at(mean, step))
        lines.append(
            f"| {row['rate']} | {row['name']} | {row['step_s']:.3f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _loss_at(curve: list[tuple[int, float]], step: float) -> str:
    """Between two validations on the line between them; the last one after the end."""
    if step < curve[0][0]:
        return "not yet"
    for (left, high), (right, low) in pairwise(curve):
        if step <= right:
            return f"{high + (low - high) * (step - left) / (right - left):.3f}"
    return f"{curve[-1][1]:.3f}"


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
    folder = f"{name.replace(' ', '-').replace('=', '')}-{replicas}-{seed}-{options.steps}"
    runs = options.work / "runs" / folder
    overrides = [f"distributed.{setting}" for setting in STRATEGIES[name]]
    overrides += [f"train.seed={seed}", *_common(options)]
    ranks_of_any = 1 if options.gpu else RANKS_OF_ANY
    ranks = str(replicas or ranks_of_any)
    dragoman = [str(ONE_GPU)] if options.gpu else ["-m", "dragoman"]
    started = time.monotonic()
    _call(
        *(*dragoman, "train", "multi30k-tiny", "--prepared", str(prepared), "--runs", str(runs)),
        *("--ranks", ranks, *_flags(overrides)),
    )
    run = max(path.parent for path in runs.glob("*/recipe.toml"))
    _call(*dragoman, "evaluate", str(run), "--checkpoint", "last", "--ranks", str(ranks_of_any))
    events = [*read_events(run / "events" / "log.jsonl")]
    scored = [event for event in events if event.kind == TestScored.kind][-1].payload
    # A run that went on from a checkpoint may have measured a step twice.
    curve = {e.step or 0: e.payload["dev_loss"] for e in events if e.kind == "validated"}
    return Result(
        strategy=name,
        replicas=replicas,
        seed=seed,
        steps=options.steps,
        setting=" ".join(_setting(options)),
        bleu=scored["bleu"],
        bleu_low=scored["bleu_low"],
        bleu_high=scored["bleu_high"],
        signature=scored["bleu_signature"],
        curve=sorted(curve.items()),
        seconds_s=round(time.monotonic() - started, 1),
        machine=_machine(options),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def _machine(options: argparse.Namespace) -> str:
    if options.gpu:
        import torch

        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def _prepare(options: argparse.Namespace) -> Path:
    prepared: Path = options.work / "prepared"
    flags = _flags([f"corpus.folder={options.multi30k.resolve()}", SETTING[0]])
    _call("-m", "dragoman", "prepare", "multi30k-tiny", "--prepared", str(prepared), *flags)
    return prepared


def _common(options: argparse.Namespace) -> list[str]:
    return [
        f"corpus.folder={options.multi30k.resolve()}",
        f"train.max_steps={options.steps}",
        f"schedule.warmup_steps={options.steps // 10}",
        f"train.validate_every_steps={max(1, options.steps // NUM_VALIDATIONS)}",
        f"checkpoint.every_steps={max(1, options.steps // NUM_VALIDATIONS)}",
        *_setting(options),
    ]


def _setting(options: argparse.Namespace) -> list[str]:
    return [one.format(precision=options.precision) for one in SETTING]


def _flags(overrides: list[str]) -> list[str]:
    return [flag for override in overrides for flag in ("--set", override)]


def _results(options: argparse.Namespace) -> Iterator[Result]:
    if options.results.is_file():
        for line in options.results.read_text(encoding="utf-8").splitlines():
            yield Result(**json.loads(line))


def _call(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, help="the folder of train.en, test2016.de ...")
    parser.add_argument("--work", type=Path, help="where runs are kept")
    here = Path(__file__).with_suffix(".jsonl")
    parser.add_argument("--results", type=Path, default=here, help=f"default: {here.name}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategies", nargs="+", default=ASKED, choices=STRATEGIES)
    parser.add_argument("--steps", type=int, default=1500, help="of 16,384 cells (default: 1500)")
    parser.add_argument(
        "--precision",
        default="bf16",
        choices=["bf16", "fp32"],
        help="fp32: for a CPU without instructions for bf16 (default: bf16)",
    )
    parser.add_argument("--gpu", action="store_true", help="all ranks of all runs share one")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--table", action="store_true", help="of the results so far; no training")
    parser.add_argument("--seconds", type=Path, help="what benchmarks/strategies.py --json wrote")
    options = parser.parse_args()
    if not options.table and not (options.multi30k and options.work):
        parser.error("--multi30k and --work are needed to train; --table does without")
    return options


if __name__ == "__main__":
    main()
