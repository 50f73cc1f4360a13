"""What chosen sentences are worth beside random ones: translations of both are added to few pairs.

    benchmarks/choose.py --shared DIR --scratch DIR [--case captions|mixed] [--seeds 1,2,3]
        [--pairs 5000] [--more 5000] [--steps 1000]

From English to German. A model learns from a random 5,000 pairs of Multi30k. `dragoman choose` with
its run then chooses 5,000 lines of the others (captions), or of these with as many lines of other
kinds (mixed), that are like Multi30k's dev set. Their references are added to the 5,000 pairs; so
are those of 5,000 lines at random, and of random lines with as many words as the chosen ones
(random-words), as translators are paid by the word. A training from scratch on each, of equal
steps, translates test2016. `no-uncertainty` is the same choice without the model, `shorter` one
with --length-power 1. Each seed draws other pairs. Prints BLEU and chrF (sacreBLEU) of each, and
the mean difference with its 95% interval (Student's t over the seeds). DIR has multi30k and
ende-mixed. If it is interrupted, the same command resumes it.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import sacrebleu

import dragoman
from dragoman.base.files import write_whole
from dragoman.evaluation.validate import read_lines

RECIPE: Final = """
name = "{name}"
[corpus]
train = [{{tsv = "{name}.tsv"}}]
valid = [{{source = "valid.en", target = "valid.de"}}]
source_language = "en"
target_language = "de"
[corpus.subword]
vocab_size = {pieces}
[data]
batch_tokens = 1500
[model]
d_model = 128
num_heads = 4
d_ffn = 256
encoder_layers = 3
decoder_layers = 3
norm = "pre"
dropout = 0.2
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 2e-3
warmup_steps = {warmup}
[optimizer]
beta2 = 0.98
[train]
seed = {seed}
max_steps = {steps}
validate_every_steps = {every}
validate_at_start = false
[checkpoint]
every_steps = {every}
[evaluate]
bleu_pairs = 100
"""
ARMS: Final = {
    "chosen": (),
    "no-uncertainty": ("--no-uncertainty",),
    "shorter": ("--length-power", "1"),
}
"""The options of each choice."""
COMPARED: Final = (
    *(("chosen", "random"), ("no-uncertainty", "random"), ("shorter", "random")),
    *(("chosen", "random-words"), ("no-uncertainty", "random-words")),
)
STUDENT_T: Final = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
"""97.5% points by the number of seeds."""
Pair = tuple[str, str]


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    for name in ("valid", "test2016"):
        for side in ("en", "de"):
            text = (options.shared / f"multi30k/{name}.{side}").read_bytes()
            _write(options.scratch / f"{name}.{side}", text.decode())
    scores: list[dict[str, tuple[float, float]]] = []
    for seed in map(int, options.seeds.split(",")):
        scores.append(_one_seed(seed, options))
        for name, (bleu, chrf) in scores[-1].items():
            print(f"seed {seed}  {name:15} BLEU {bleu:6.2f}  chrF {chrf:6.2f}", flush=True)
    for one, other in COMPARED:
        for number, metric in enumerate(("BLEU", "chrF")):
            values = [of_seed[one][number] - of_seed[other][number] for of_seed in scores]
            print(f"{one} - {other}, {metric}: {_interval(values)}")


def _one_seed(seed: int, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """BLEU and chrF of the model of few pairs, of each choice and of random lines."""
    generator = random.Random(seed)
    captions = _pairs(
        (options.shared / f"multi30k/train.{side}").read_text("utf-8").splitlines()
        for side in ("en", "de")
    )
    generator.shuffle(captions)
    few, pool = captions[: options.pairs], captions[options.pairs :][: options.pool]
    if options.case == "mixed":
        pool += generator.sample(_mixed(options.shared), len(pool))
        generator.shuffle(pool)
    place = f"{options.case}-{seed}"
    few_run = _train(f"{place}-few", few, seed, options)
    pile = options.scratch / f"{place}.pile.en"
    _write(pile, "".join(f"{source}\n" for source, _ in pool))
    added = {"random": generator.sample(pool, options.more)}
    for arm, option in ARMS.items():
        chosen = options.scratch / f"{place}-{arm}.en"
        table = chosen.with_name(f"{chosen.name}.tsv")
        if not table.exists():
            chosen.unlink(missing_ok=True)
            _dragoman(
                *("choose", str(pile), "--run", str(few_run), "--budget", str(options.more)),
                *("--like", str(options.scratch / "valid.en"), "--output", str(chosen), *option),
            )
        with table.open(encoding="utf-8") as file:
            rows = [int(row["line"]) - 1 for row in csv.DictReader(file, delimiter="\t")]
        added[arm] = [pool[row] for row in rows]
    most = sum(len(source.split()) for source, _ in added["chosen"])
    several = iter(generator.sample(pool, len(pool)))
    added["random-words"] = []
    while most > 0:
        added["random-words"].append(next(several))
        most -= len(added["random-words"][-1][0].split())
    scores = {"few": _score(few_run, options.scratch)}
    for arm, pairs in added.items():
        words = sum(len(source.split()) for source, _ in pairs)
        print(f"seed {seed}  {arm}: {len(pairs)} lines, {words} words", flush=True)
        run = _train(f"{place}-{arm}", few + pairs, seed, options)
        scores[arm] = _score(run, options.scratch)
    return scores


def _pairs(sides: Iterable[list[str]]) -> list[Pair]:
    """Pairs without tabs."""
    return [pair for pair in zip(*sides, strict=True) if "\t" not in "".join(pair)]


def _mixed(shared: Path) -> list[Pair]:
    """The first 200,000 pairs of ende-mixed."""
    sides = []
    for side in ("en", "de"):
        with lzma.open(shared / f"ende-mixed/train.{side}.xz", "rt", encoding="utf-8") as file:
            sides.append([line.rstrip("\n") for line in islice(file, 200_000)])
    return _pairs(sides)


def _train(name: str, pairs: list[Pair], seed: int, options: argparse.Namespace) -> Path:
    """The run on these pairs, trained to its end."""
    _write(options.scratch / f"{name}.tsv", "".join(f"{one}\t{other}\n" for one, other in pairs))
    recipe = options.scratch / f"{name}.toml"
    numbers = {
        "steps": options.steps,
        "every": max(1, options.steps // 5),
        "pieces": options.pieces,
    }
    text = RECIPE.format(name=name, seed=seed, warmup=max(1, options.steps // 5), **numbers)
    _write(recipe, text)
    runs = options.scratch / "runs"
    _dragoman("train", str(recipe), "--runs", str(runs), "--ranks", "1")
    newest: Path = max(runs.glob(f"{name}-2*"), key=lambda path: path.stat().st_mtime)
    return newest


def _score(run: Path, scratch: Path) -> tuple[float, float]:
    """BLEU and chrF on test2016."""
    output = scratch / f"{run.name}.de"
    if not output.exists():
        with dragoman.Translator(run, threads=1) as translator:
            translations = translator.translate(read_lines(scratch / "test2016.en"))
        write_whole(output, "".join(f"{line}\n" for line in translations))
    texts = read_lines(output), [read_lines(scratch / "test2016.de")]
    return sacrebleu.corpus_bleu(*texts).score, sacrebleu.corpus_chrf(*texts).score


def _interval(values: Sequence[float]) -> str:
    """The values, their mean and its 95% interval."""
    mean, told = statistics.mean(values), ", ".join(f"{value:+.2f}" for value in values)
    if len(values) not in STUDENT_T:
        return f"{mean:+.2f} ({told})"
    half = STUDENT_T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}] ({told})"


def _write(path: Path, text: str) -> None:
    """Write a text, unless it is there: a file that is newer would be prepared again."""
    if not path.exists() or path.read_text("utf-8") != text:
        write_whole(path, text)


def _dragoman(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dragoman", *arguments], check=True, stdout=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shared", type=Path, required=True, help="has multi30k and ende-mixed")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--case", choices=("captions", "mixed"), default="captions")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--more", type=int, default=5000)
    parser.add_argument("--pool", type=int, default=24_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pieces", type=int, default=4000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
