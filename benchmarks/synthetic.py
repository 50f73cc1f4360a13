"""`synthesize` beside CTranslate2 driven by hand, and `score` beside training's forward pass.

    benchmarks/synthetic.py speed BUNDLE TEXT [--lines 4000] [--beam 4] [--rounds 5]
    benchmarks/synthetic.py score RUN PAIRS [--lines 8000] [--rounds 5]
    benchmarks/synthetic.py memory BUNDLE TEXT [--lines 1000000] [--kills 5] [--longest 60]

speed   `dragoman.synthesize` from a file to a file, and what somebody writes with CTranslate2's
        documentation: encode all lines, one `translate_batch` on all cores with batches by tokens,
        decode, write. Both load the same bundle anew in each round and take turns.
score   tokens a second, source and target: `dragoman.score` from a file to a file, and the forward
        pass of a training step (dropout, a graph for gradients, label smoothing) on batches of
        the same pairs. Then the largest difference between the scores and the model's own loss
        without smoothing, pair by pair.
memory  peak memory of `dragoman synthesize` with beam 1 on as many lines as are asked for, when a
        tenth, half and all of them are done; TEXT is repeated, each line with its number in front.
        Then the same command again, killed so many times with SIGKILL, and the lines that are
        lost, double or differ; the memory of each attempt.

BUNDLE is an export to CTranslate2; PAIRS is a TSV file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import ctranslate2
import numpy as np
import sentencepiece
import torch

import dragoman
from dragoman.data.batch import Batch, make_batch
from dragoman.distributed.world import join_world
from dragoman.formats.load import load_translation_model

BATCH_TOKENS = 4096


def main() -> None:
    """Measure what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name, inputs, lines in (
        ("speed", ("bundle", "text"), 4000),
        ("score", ("run", "pairs"), 8000),
        ("memory", ("bundle", "text"), 1_000_000),
    ):
        kind = kinds.add_parser(name)
        for one in inputs:
            kind.add_argument(one, type=Path)
        kind.add_argument("--lines", type=int, default=lines)
        kind.add_argument("--rounds", type=int, default=5)
        kind.add_argument("--beam", type=int, default=4)
        kind.add_argument("--kills", type=int, default=5)
        kind.add_argument("--longest", type=int, default=60, help="pieces above the source's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        {"speed": speed, "score": score, "memory": memory}[options.kind](options, Path(scratch))


def speed(options: argparse.Namespace, scratch: Path) -> None:
    """Lines a second of both, and how many lines are the same."""
    text, ours, theirs = scratch / "text", scratch / "ours.tsv", scratch / "theirs.tsv"
    text.write_text("\n".join(_lines(options.text, options.lines)) + "\n", encoding="utf-8")

    def with_dragoman() -> None:
        ours.unlink(missing_ok=True)
        dragoman.synthesize(
            options.bundle,
            text,
            ours,
            direction="forward",
            overrides=[
                f"search.beam_size={options.beam}",
                "search.length_penalty=power",  # CTranslate2's own
                "search.length_penalty_alpha=1",
            ],
        )

    def by_hand() -> None:
        pieces = sentencepiece.SentencePieceProcessor(str(options.bundle / "source.model"))
        engine = ctranslate2.Translator(
            str(options.bundle), inter_threads=os.cpu_count() or 1, intra_threads=1
        )
        lines = text.read_text(encoding="utf-8").splitlines()
        found = engine.translate_batch(
            pieces.encode(lines, out_type=str),
            beam_size=options.beam,
            max_batch_size=BATCH_TOKENS,
            batch_type="tokens",
        )
        target = sentencepiece.SentencePieceProcessor(str(options.bundle / "target.model"))
        translations = target.decode([one.hypotheses[0] for one in found])
        pairs = zip(lines, translations, strict=True)
        theirs.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")

    _compare("dragoman", with_dragoman, "by hand", by_hand, options.rounds, options.lines, "lines")
    written = [path.read_text(encoding="utf-8").splitlines() for path in (ours, theirs)]
    equal = len(set(written[0]) & set(written[1]))
    print(f"{equal} of {options.lines} lines the same")


def score(options: argparse.Namespace, scratch: Path) -> None:
    """Tokens a second of both, and how far the scores are from the loss."""
    pairs, scored = scratch / "pairs.tsv", scratch / "scored.tsv"
    lines = _lines(options.pairs, options.lines)
    pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with join_world() as world:
        model = load_translation_model(options.run, checkpoints=["best"], world=world)
        (network,) = model.models
        sides = zip(*(line.split("\t")[:2] for line in lines), strict=True)
        rows = [
            vocabulary.encode(list(side))
            for vocabulary, side in zip(model.subwords, sides, strict=True)
        ]
        lengths = np.array([[len(row) for row in side] for side in rows])
        order = np.lexsort((lengths[0], lengths[1]))
        batches = [
            _batch(rows, chosen)
            for chosen in np.array_split(order, 1 + int(lengths.sum()) // (2 * BATCH_TOKENS))
        ]
        tokens = int(lengths.sum()) + 2 * len(lines)  # with the ends of both sides

        def forward() -> None:
            network.train()
            for batch in batches:
                network(batch)

        def with_dragoman() -> None:
            scored.unlink(missing_ok=True)
            dragoman.score(options.run, pairs, scored)

        _compare("score", with_dragoman, "forward", forward, options.rounds, tokens, "tokens")
        network.eval()
        found = [line.rsplit("\t", 1)[1] for line in scored.read_text("utf-8").splitlines()]
        worst = 0.0
        with torch.no_grad():
            for pair in np.random.default_rng(1).choice(len(lines), 500, replace=False):
                logits = network.logits(batch := _batch(rows, np.array([pair]))).squeeze(0)
                loss = torch.nn.functional.cross_entropy(logits, batch.target_BT.squeeze(0))
                worst = max(worst, abs(float(loss) - float(found[pair])))
    print(f"largest difference from the loss, 500 pairs: {worst:.1e} nats per token")


def memory(options: argparse.Namespace, scratch: Path) -> None:
    """Peak memory of the command while it runs, and what kills cost."""
    text, whole, broken = scratch / "text", scratch / "whole.tsv", scratch / "broken.tsv"
    sentences = cycle(_lines(options.text, 10_000))
    with text.open("w", encoding="utf-8") as file:
        file.writelines(
            f"{number} {sentence}\n"
            for number, sentence in enumerate(islice(sentences, options.lines))
        )
    words = [options.bundle, "--input", text, "--set", "search.beam_size=1"]
    words += ["--set", f"search.max_length_extra={options.longest}"]
    began = time.perf_counter()
    marks = {options.lines * share // 100: share for share in (10, 50, 99)}
    process = _synthesize(words, whole)
    for lines, share in marks.items():
        peak_bytes = _wait_for(process, whole, lines)
        print(f"{share}% of the lines: peak {peak_bytes / 1e6:.0f} MB", flush=True)
    said = process.communicate()[0].split(": ")[1:]
    print(f"{': '.join(said).strip()}: {time.perf_counter() - began:.0f} s", flush=True)
    for kill in range(options.kills):
        process = _synthesize(words, broken)
        peak_bytes = _wait_for(process, broken, options.lines * (kill + 1) // (options.kills + 1))
        process.kill()
        process.wait()
        print(f"killed {kill + 1}: peak {peak_bytes / 1e6:.0f} MB", flush=True)
    process = _synthesize(words, broken)
    peak_bytes = _wait_for(process, broken, options.lines * 99 // 100)
    again = process.communicate()[0].split(": ")[1:]
    print(f"{': '.join(again).strip()}: peak {peak_bytes / 1e6:.0f} MB")
    numbers = [int(pair.split("\t")[1].split(" ")[0]) for pair in _all_lines(broken)]
    double = len(numbers) - len(set(numbers))
    lost = len({int(pair.split("\t")[1].split(" ")[0]) for pair in _all_lines(whole)} - {*numbers})
    same = whole.read_bytes() == broken.read_bytes()
    print(f"{options.kills} kills: {lost} lines lost, {double} double; the same file: {same}")


def _synthesize(words: list[str | Path], output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", "synthesize", *words, "--output", output],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _wait_for(process: subprocess.Popen[str], output: Path, lines: int) -> int:
    """Peak memory of the command when so many lines are done, or at its end."""
    record = output.with_name(f".{output.name}.partial.json")
    peak_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, _peak_bytes(process.pid))
        try:
            if json.loads(record.read_bytes())["lines"] >= lines:
                break
        except OSError:  # it has not begun, or has ended
            pass
        time.sleep(0.05)
    return peak_bytes


def _all_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as file:
        yield from file


def _compare(
    name: str,
    ours: Callable[[], None],
    other: str,
    theirs: Callable[[], None],
    rounds: int,
    amount: int,
    unit: str,
) -> None:
    """Run both in turns; print both rates and the median of their ratios."""
    rates = []
    for number in range(rounds):
        taken = {}
        for act in (ours, theirs) if number % 2 else (theirs, ours):
            began = time.perf_counter()
            act()
            taken[act] = time.perf_counter() - began
        rates.append((amount / taken[ours], amount / taken[theirs]))
    ratios = sorted(one / two for one, two in rates)
    first, second = (statistics.median(side) for side in zip(*rates, strict=True))
    print(f"{name} {first:,.0f}, {other} {second:,.0f} {unit}/s")
    print(
        f"{name} / {other}: median {statistics.median(ratios):.3f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {rounds} rounds)"
    )


def _batch(rows: list[list[list[int]]], chosen: np.ndarray) -> Batch:
    """Some pairs as one batch."""
    pieces = [np.array([id for pair in chosen for id in side[pair]], np.int64) for side in rows]
    lengths = [np.array([len(side[pair]) for pair in chosen]) for side in rows]
    return make_batch(pieces[0], lengths[0], pieces[1], lengths[1])


def _lines(path: Path, count: int) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [line.rstrip("\n") for line in islice(file, count)]


def _peak_bytes(pid: int) -> int:
    """Peak resident memory of a process; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(found[0]) if found else 0


if __name__ == "__main__":
    main()
