"""How much of each kind of added noise do the filters find, and how much good text do they drop?

    benchmarks/cleaning.py --mixed DIR --multi30k DIR --scratch DIR [--pairs 100000] [--steps 4000]

The benchmark spoils a tenth of `pairs` pairs of ende-mixed in each of five ways: the target of a
neighbour, up to three lines away (misaligned); a caption in French or Czech as target (wrong
language); the source as target (copied); the first 20 to 60% of the target's words (truncated);
a loop of one to three words, or words drawn by their frequency (gibberish). Targets that are too
short are not truncated. `dragoman.prepare` runs with each filter alone and with all of them; it is
right to drop a spoiled pair. ende-mixed has noise of its own, which counts as good here, so the
precision is a lower bound.

--steps: instead, train the same small model on the noisy text and on the text that all filters
leave, for this many steps each, and compare the two on 1,000 other pairs of ende-mixed, which are
of the same kinds as the text, or on newstest2013 (--news DIR).
"""

from __future__ import annotations

import argparse
import lzma
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import zstandard

import dragoman

KINDS = ("misaligned", "wrong language", "copied", "truncated", "gibberish")
LEAST_WORDS = 6
"""Words of a target that is truncated: half of "Open file" may still be right."""
FILTERS = {
    "max_language_log_odds": "1.5",
    "drop_identical": "true",
    "max_length_ratio": "2.0",
    "drop_other_ending": "true",
    "max_number_differences": "0",
    "min_lexical_gain": "-0.4",
}
OFF = {
    "max_words": "1000000",
    "max_length_ratio": "1e9",
    "max_control_characters": "1000000",
    "drop_identical": "false",
    "drop_duplicates": "false",
    "drop_overlap": "false",
}
RECIPE = """
name = "{name}"
[corpus]
train = [{{tsv = "noisy.tsv"}}]
valid = [{{source = "valid.en", target = "valid.de"}}]
test = [{{source = "test.en", target = "test.de"}}]
too_long = "truncate"
subword.vocab_size = 8000
[corpus.filters]
{filters}
"""
MODEL = """
[data]
batch_tokens = 1024
[model]
d_model = 128
num_heads = 4
d_ffn = 512
encoder_layers = 3
decoder_layers = 2
[schedule]
kind = "linear"
peak_learning_rate = 3e-3
warmup_steps = 200
[optimizer]
clip_norm = 1.0
[train]
max_steps = {steps}
validate_every_steps = {steps}
[evaluate]
bleu_pairs = 100
[checkpoint]
every_steps = {steps}
"""


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    kinds = plant(options)
    planted = Counter(kinds)
    print(f"{len(kinds):,} pairs: " + ", ".join(f"{n:,} {kind}" for kind, n in planted.items()))
    if options.steps:
        train(options)
        return
    header = ["filters", "precision", "recall", "F1", *KINDS, "good dropped", "s"]
    print("| " + " | ".join(header) + " |\n|---|" + "---:|" * (len(header) - 1))
    for name in (*FILTERS, "all"):
        chosen = FILTERS if name == "all" else {name: FILTERS[name]}
        began = time.perf_counter()
        dropped = prepare(options.scratch, name, OFF | chosen)
        taken = time.perf_counter() - began
        print_row(
            f"{name} = {FILTERS[name]}" if name != "all" else "**all**", kinds, dropped, taken
        )


def plant(options: argparse.Namespace) -> list[str]:
    """Write noisy.tsv and the dev and test sets; returns what was done to each pair."""
    chosen = random.Random(1)
    english, german = (
        lzma.decompress((options.mixed / f"train.{code}.xz").read_bytes()).decode().split("\n")[:-1]
        for code in ("en", "de")
    )
    foreign = [
        line
        for code in ("fr", "cs")
        for line in (options.multi30k / f"train.{code}").read_text("utf-8").splitlines()
    ]
    lines = iter(chosen.sample(range(3, len(german) - 3), min(len(german) - 6, 2 * options.pairs)))
    words = [word for line in chosen.sample(german, 20_000) for word in line.split()]
    spoil: dict[str, Callable[[int], str]] = {
        "misaligned": lambda line: neighbour(english, german, line, chosen),
        "wrong language": lambda _: chosen.choice(foreign),
        "copied": lambda line: english[line],
        "truncated": lambda line: cut(german[line], chosen),
        "gibberish": lambda line: gibberish(german[line], words, chosen),
    }
    order = [*KINDS, *["good"] * 5] * (options.pairs // 10)
    chosen.shuffle(order)
    with (options.scratch / "noisy.tsv").open("w", encoding="utf-8") as file:
        for kind in order:
            target = ""
            while not target:
                line = next(lines)
                target = german[line] if kind == "good" else spoil[kind](line)
            file.write(f"{english[line]}\t{target}\n")
    for code in ("en", "de"):
        known = (options.mixed / f"valid.{code}").read_text("utf-8").splitlines(keepends=True)
        sets = {"valid": known[::3], "test": known[1::3]}
        if options.news:
            news = options.news / f"newstest2013.{code}"
            sets["test"] = news.read_text("utf-8").splitlines(keepends=True)
        for name, chosen_lines in sets.items():
            (options.scratch / f"{name}.{code}").write_text("".join(chosen_lines), "utf-8")
    return order


def neighbour(english: list[str], german: list[str], line: int, chosen: random.Random) -> str:
    """The target of a near line; "" if it is the same text."""
    other = line + chosen.choice((-3, -2, -1, 1, 2, 3))
    return "" if german[other] == german[line] or english[other] == english[line] else german[other]


def cut(text: str, chosen: random.Random) -> str:
    words = text.split()
    if len(words) < LEAST_WORDS:
        return ""
    return " ".join(words[: max(1, round(len(words) * chosen.uniform(0.2, 0.6)))])


def gibberish(text: str, words: list[str], chosen: random.Random) -> str:
    own = text.split()
    length = max(4, len(own))
    if chosen.random() < 0.5:
        return " ".join(chosen.choices(words, k=length))
    start = chosen.randint(1, 3)
    loop = own[start : start + chosen.randint(1, 3)] or own[:1]
    return " ".join((own[:start] + loop * length)[: max(length, start + 4 * len(loop))])


def prepare(scratch: Path, name: str, filters: dict[str, str]) -> set[int]:
    """The lines of noisy.tsv, counted from 0, that these filters drop."""
    recipe = scratch / f"{name}.toml"
    lines = "\n".join(f"{key} = {value}" for key, value in filters.items())
    recipe.write_text(RECIPE.format(name=name.replace("_", "-"), filters=lines), "utf-8")
    prepared = dragoman.prepare(recipe, prepared=scratch / f"prepared-{name}")
    rejected = prepared / "rejected/train.tsv.zst"
    with zstandard.open(rejected, "rt", encoding="utf-8", newline="\n") as file:
        next(file)  # the names of the columns
        return {int(line.split("\t")[3]) - 1 for line in file}


def print_row(name: str, kinds: list[str], dropped: set[int], taken_s: float) -> None:
    found = Counter(kinds[line] for line in dropped)
    all_of = Counter(kinds)
    wrong = sum(found[kind] for kind in KINDS)
    precision = wrong / max(1, len(dropped))
    recall = wrong / sum(all_of[kind] for kind in KINDS)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    shares = [f"{found[kind] / all_of[kind]:.1%}" for kind in (*KINDS, "good")]
    cells = [name, f"{precision:.3f}", f"{recall:.3f}", f"{f1:.3f}", *shares, f"{taken_s:.0f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def train(options: argparse.Namespace) -> None:
    """Train on noisy and on cleaned text, and print the comparison."""
    runs = []
    for name, filters in (("noisy", OFF), ("cleaned", OFF | FILTERS)):
        recipe = options.scratch / f"{name}.toml"
        lines = "\n".join(f"{key} = {value}" for key, value in filters.items())
        text = RECIPE.format(name=name, filters=lines) + MODEL.format(steps=options.steps)
        recipe.write_text(text, "utf-8")
        runs.append(str(dragoman.train(recipe, runs=options.scratch / "runs", progress=True).path))
    test = f"{options.scratch / 'test.en'},{options.scratch / 'test.de'}"
    command = [sys.executable, "-m", "dragoman", "compare", *runs, "--test", test]
    subprocess.run(command, check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mixed", type=Path, required=True)
    parser.add_argument("--multi30k", type=Path, required=True)
    parser.add_argument("--news", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
