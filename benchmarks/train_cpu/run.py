"""Training speed on a CPU: ours beside the peers, interleaved round by round in one run.

    PEERS_HOME=... benchmarks/train_cpu/run.py --peers ../shared/peers [--sizes small base]
        [--rounds 5] [--names eole fairseq hf] [--window 60] [--warm 10] [--dropout same]
        [--malloc both] [--auto] [--record]

Every side trains the same model on the same encoded Multi30k text with batches of about 4,096
target tokens; tokens are counted from the batches themselves, without padding. In each round every
side runs once, alone, after a measurement of this machine's matrix rate. Printed: real target
tokens a second, the ratio ours / peer of each round and their median, peak memory, seconds from
the start of the process to the first update, and our share of the matrix rate.

Two things were not the same for all, and can be chosen:
  --malloc: ours keeps freed memory and limits oneDNN's caches (`dragoman.base.memory`).
    `ours` leaves the peers as they are, `all` gives them the same settings, `both` runs each of
    them both ways; the name of a peer with our settings ends in +malloc.
  --dropout: Eole has dropout of 0.1 in attention and feed-forward, too, which the others lack and
    which Eole cannot leave out alone. `same` gives it to all, ours included; `as-is` does not.
A window that holds fewer than ten steps is marked: its rate is that of a few batches.
`--auto` adds ours with train.precision = "auto"; else, and for all ratios to peers, it is fp32.
`--record` adds the ratio to the fastest peer with our settings to results.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from dragoman.base.memory import keep_freed_memory
from dragoman.model.config import ModelConfig
from dragoman.model.products import project
from dragoman.recipe.estimate import training_flop

SIZES = {"small": (256, 4, 1024, 3), "base": (512, 8, 2048, 6)}
OURS = "dragoman"
AUTO = "dragoman+auto"
WITH_MALLOC = "+malloc"
OUR_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}
"""The settings of keep_freed_memory, as glibc and oneDNN read them from the environment."""
WINDOW_S = {"small": 20.0, "base": 60.0}
FEWEST_STEPS = 10
EOLES_DROPOUT = {
    "run_peer.sh": [
        (
            "--dropout 0.1 --share-all",
            "--dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1 --share-all",
        )
    ],
    "drive_hf.py": [
        ("attention_dropout=0.0", "attention_dropout=0.1"),
        ("activation_dropout=0.0", "activation_dropout=0.1"),
    ],
}
"""Replacements in the files of the peers' folder, so that all have the dropout of Eole."""
HERE = Path(__file__).resolve().parent


def main() -> None:
    options = _options()
    if options.dropout == "same":
        options.peers = _with_dropout(options.peers)
    variants = {"ours": [""], "all": [WITH_MALLOC], "both": ["", WITH_MALLOC]}[options.malloc]
    options.names = [name + variant for name in options.names for variant in variants]
    keep_freed_memory()  # the matrix rate is that of products, not of new memory
    for size in options.sizes:
        rounds = [_round(number, size, options) for number in range(options.rounds)]
        if options.auto:
            _report_auto(size, rounds)
        ratios = _report(size, rounds, options.names)
        if options.record:
            subprocess.run(
                [
                    *(sys.executable, str(HERE.parent / "results.py"), "train_cpu"),
                    *(f"{size} model / fastest other tool", f"{statistics.median(ratios):.3f}"),
                    *("x", f"--low={min(ratios):.3f}", f"--high={max(ratios):.3f}"),
                    f"--command=benchmarks/train_cpu/run.py {shlex.join(sys.argv[1:])}",
                ],
                check=True,
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=Path, required=True, help="folder of run_peer.sh")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--names", nargs="*", default=["eole", "fairseq", "hf"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=float, default=10, help="seconds thrown away")
    parser.add_argument("--window", type=float, help="seconds of a measurement (small 20, base 60)")
    parser.add_argument("--malloc", choices=["ours", "all", "both"], default="both")
    parser.add_argument("--dropout", choices=["as-is", "same"], default="same")
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.record and (
        not options.names or options.malloc == "ours" or options.dropout != "same"
    ):
        parser.error(
            "--record needs peers, and the same settings for all: --malloc both, --dropout same"
        )
    return options


def _with_dropout(peers: Path) -> Path:
    """A copy of the peers' folder in which all of them have the dropout of Eole."""
    copy = Path(os.environ["PEERS_HOME"]) / "peers-with-dropout"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(peers, copy, copy_function=shutil.copy)
    for name, changes in EOLES_DROPOUT.items():
        file = copy / name
        text = file.read_text(encoding="utf-8")
        for old, new in changes:
            if old not in text:
                sys.exit(f"{peers / name}: {old!r} is not in it, so that dropout cannot be set")
            text = text.replace(old, new)
        file.chmod(0o755)
        file.write_text(text, encoding="utf-8")
    return copy


def _round(number: int, size: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each side once; the order turns round by round."""
    names = [OURS, *([AUTO] if options.auto else ()), *options.names]
    turned = names[number % len(names) :] + names[: number % len(names)]
    results: dict[str, dict[str, Any]] = {}
    for name in turned:
        matrix = _matrix_gflop_s()
        results[name] = _train(name, size, options) | {"matrix_gflop_s": matrix}
        print(
            f"{size} round {number + 1} {name:14} {results[name]['trg_tok_s']:7.0f} tokens/s  "
            f"matrix {matrix:4.0f} GFLOP/s  memory {results[name]['peak_rss_mb']} MB  "
            f"{results[name]['steps']} steps"
            + (" (few)" if results[name]["steps"] < FEWEST_STEPS * options.windows else ""),
            flush=True,
        )
    return results


def _train(name: str, size: str, options: argparse.Namespace) -> dict[str, Any]:
    home = Path(os.environ["PEERS_HOME"])
    usual = {key: text for key, text in os.environ.items() if key not in OUR_MALLOC}
    environment = usual | {
        "PEER_WARM": str(options.warm),
        "PEER_WINDOW": str(options.window or WINDOW_S[size]),
        "PEER_WINDOWS": str(options.windows),
        "OMP_NUM_THREADS": "2",
    }
    if name not in (OURS, AUTO):
        if name.endswith(WITH_MALLOC):
            environment |= OUR_MALLOC
        command = [str(options.peers / "run_peer.sh"), name.removesuffix(WITH_MALLOC), size]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))
    out = home / "work" / f"{OURS}-{size}.json"
    out.parent.mkdir(exist_ok=True)
    environment |= {
        "PEER_OUT": str(out),
        "PEER_NAME": OURS,
        "PEER_SIZE": size,
        "PYTHONPATH": str(options.peers),
        "PEER_T0": str(time.time()),
    }
    numbers = [str(number) for number in SIZES[size]]
    numbers.append("0.1" if options.dropout == "same" else "0")
    numbers.append("auto" if name == AUTO else "fp32")
    subprocess.run(
        [sys.executable, str(HERE / "ours.py"), str(home / "data"), *numbers],
        env=environment,
        capture_output=True,
        check=True,
    )
    return dict(json.loads(out.read_text()))


def _matrix_gflop_s() -> float:
    """GFLOP/s of an fp32 product of a feed-forward layer's shape, on all threads.

    By the faster of PyTorch's two libraries, which is the one that our side trains with.
    """
    left, right, out = torch.randn(4096, 512), torch.randn(2048, 512), torch.empty(4096, 2048)
    rates = []
    for _ in range(12):
        start = time.perf_counter()
        project(left, right, memory_NO=out)
        rates.append(2 * 4096 * 512 * 2048 / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates[2:])


def _report_auto(size: str, rounds: list[dict[str, dict[str, Any]]]) -> None:
    ratios = [results[AUTO]["trg_tok_s"] / results[OURS]["trg_tok_s"] for results in rounds]
    print(
        f"\n{size}: auto / fp32 {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), memory "
        f"{max(results[AUTO]['peak_rss_mb'] for results in rounds)} MB"
    )


def _report(size: str, rounds: list[dict[str, dict[str, Any]]], names: list[str]) -> list[float]:
    """Print the figures of a size; returns the ratios to the fastest peer of each round."""
    print(f"\n{size}: median of {len(rounds)} rounds")
    for name in [OURS, *names]:
        runs = [results[name] for results in rounds]
        speed = statistics.median(run["trg_tok_s"] for run in runs)
        ratios = [r[OURS]["trg_tok_s"] / r[name]["trg_tok_s"] for r in rounds]
        print(
            f"{name:14} {speed:7.0f} target tokens/s  ours / this: "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})  "
            f"memory {max(run['peak_rss_mb'] for run in runs)} MB  "
            f"start to first step {statistics.median(run['startup_s'] for run in runs):.1f} s"
        )
    if not names:
        return []
    fastest = [max(r[name]["trg_tok_s"] for name in names) for r in rounds]
    ratios = [r[OURS]["trg_tok_s"] / f for r, f in zip(rounds, fastest, strict=True)]
    shares = [_useful_gflop_s(size, r[OURS]) / r[OURS]["matrix_gflop_s"] for r in rounds]
    print(
        f"ours / fastest peer of the round: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}); "
        f"share of the matrix rate: {statistics.median(shares):.0%}\n",
        flush=True,
    )
    return ratios


def _useful_gflop_s(size: str, run: dict[str, Any]) -> float:
    d_model, num_heads, d_ffn, layers = SIZES[size]
    config = ModelConfig(
        d_model=d_model,
        num_heads=num_heads,
        d_ffn=d_ffn,
        encoder_layers=layers,
        decoder_layers=layers,
    )
    flop = training_flop(
        config,
        target_vocab_size=8000,
        source_length=round(run["src_per_sent"] + 1),
        target_length=round(run["trg_per_sent"]),
    )
    return float(flop / round(run["trg_per_sent"]) * run["trg_tok_s"] / 1e9)


if __name__ == "__main__":
    main()
