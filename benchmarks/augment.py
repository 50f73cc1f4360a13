"""What changed copies of training pairs and subword sampling win: BLEU on text as people type it.

    benchmarks/augment.py --multi30k DIR --scratch DIR [--pairs 29000] [--steps 4000]
        [--batch-tokens 4096] [--cases plain augmented sampled]

Three trainings from English to German with the same recipe and as many updates: on the pairs, on
the pairs with `[corpus.augment]`, and with `data.subword_sampling`. Each translates test2016 as it
is and changed: in capitals (the reference, too), with typing errors of kinds that no copy has (a
letter for its neighbour on the keyboard, in one word of five), without final punctuation (the
reference, too), and with a web address behind it that must stay. Prints BLEU (sacreBLEU) of each,
the share of the loss that is won back, and how many addresses stay. If it is interrupted, the same
command resumes it.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import sacrebleu

from dragoman.base.files import write_whole

RECIPE = """
name = "{name}"
[corpus]
train = [{{source = "train.en", target = "train.de"}}]
valid = [{{source = "valid.en", target = "valid.de"}}]
[corpus.subword]
vocab_size = 6000
{augment}
[data]
batch_tokens = {batch_tokens}
{sampling}
[model]
d_model = 128
num_heads = 4
d_ffn = 256
encoder_layers = 4
decoder_layers = 4
norm = "pre"
dropout = 0.2
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 2e-3
warmup_steps = {warmup}
[optimizer]
beta2 = 0.98
[train]
max_steps = {steps}
validate_every_steps = {every}
[checkpoint]
every_steps = {every}
[evaluate]
bleu_pairs = 300
"""
AUGMENT = """
[corpus.augment]
upper_case = 0.1
typos = 0.1
final_punctuation = 0.1
kept = 0.05
placeholders = 0.1
"""
SAMPLING = "subword_sampling = 0.1"
CASES = {"plain": ("", ""), "augmented": (AUGMENT, ""), "sampled": ("", SAMPLING)}
"""The sections of each case: what it adds to the text, and what to the batches."""
ADDRESS = "https://www.w3.org/TR/xml"
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    sides = [_write_text(options, language) for language in ("en", "de")]
    runs = {name: _train(name, *CASES[name], options) for name in options.cases}
    scores: dict[str, dict[str, float]] = {}
    for kind, (change_source, change_target) in CHANGES.items():
        generator = random.Random(1)
        sources = [change_source(line, generator) for line in sides[0]]
        references = [change_target(line, generator) for line in sides[1]]
        lines = {
            name: _translated(run, kind, sources, options.scratch) for name, run in runs.items()
        }
        scores[kind] = {
            name: float(sacrebleu.corpus_bleu(of_run, [references]).score)
            for name, of_run in lines.items()
        }
        if kind == "a web address":
            kept = {name: sum(ADDRESS in line for line in lines[name]) for name in runs}
    before = scores["as it is"]["plain"]
    changed = [name for name in runs if name != "plain"]
    print(f"{'test2016':20} {'plain':>8}", *(f"{name:>23}" for name in changed))
    for kind, of_runs in scores.items():
        lost = before - of_runs["plain"]
        shown = f"{kind:20} {of_runs['plain']:8.2f}"
        for name in changed:
            won = of_runs[name] - of_runs["plain"]
            share = f"({won / lost:.0%} won back)" if lost > 0.5 else ""
            shown += f" {of_runs[name]:5.2f} {share:>16}"
        print(shown)
    print(f"addresses that stay, of {len(sides[0]):,}: {kept}")


def _same(line: str, _generator: random.Random) -> str:
    return line


def _upper(line: str, _generator: random.Random) -> str:
    return line.upper()


def _without_end(line: str, _generator: random.Random) -> str:
    return line.rstrip(".!? ")


def _with_address(line: str, _generator: random.Random) -> str:
    return f"{line} {ADDRESS}"


def _mistyped(line: str, generator: random.Random) -> str:
    words = line.split(" ")
    long_words = [place for place, word in enumerate(words) if len(word) > 3 and word.isalpha()]
    for place in generator.sample(long_words, min(len(long_words), 1 + len(words) // 5)):
        word, letter = words[place], generator.randrange(1, len(words[place]))
        words[place] = word[:letter] + _neighbour(word[letter], generator) + word[letter + 1 :]
    return " ".join(words)


def _neighbour(letter: str, generator: random.Random) -> str:
    row = next((row for row in KEYBOARD if letter in row), letter)
    place = row.index(letter)
    return generator.choice(row[max(0, place - 1) : place] + row[place + 1 : place + 2] or letter)


Change = Callable[[str, random.Random], str]
CHANGES: dict[str, tuple[Change, Change]] = {
    "as it is": (_same, _same),
    "in capitals": (_upper, _upper),
    "typing errors": (_mistyped, _same),
    "no final mark": (_without_end, _without_end),
    "a web address": (_with_address, _with_address),
}


def _write_text(options: argparse.Namespace, language: str) -> list[str]:
    """Write the text of a language; returns the lines of test2016."""
    texts: dict[str, list[str]] = {}
    for name, there in (("train", "train"), ("valid", "valid"), ("test", "test2016")):
        texts[name] = (options.multi30k / f"{there}.{language}").read_text("utf-8").splitlines()
    texts["train"] = texts["train"][: options.pairs]
    for name, lines in texts.items():
        path = options.scratch / f"{name}.{language}"
        text = "".join(f"{line}\n" for line in lines)
        if not path.exists() or path.read_text("utf-8") != text:
            write_whole(path, text)
    return texts["test"]


def _train(name: str, augment: str, sampling: str, options: argparse.Namespace) -> Path:
    """The run of a recipe, trained to its end."""
    steps = options.steps
    recipe = options.scratch / f"{name}.toml"
    numbers = {
        "steps": steps,
        "every": max(1, steps // 10),
        "warmup": max(1, steps // 5),
        "batch_tokens": options.batch_tokens,
    }
    write_whole(recipe, RECIPE.format(name=name, augment=augment, sampling=sampling, **numbers))
    runs = options.scratch / "runs"
    _dragoman("train", str(recipe), "--runs", str(runs), "--ranks", str(options.ranks))
    newest: Path = max(runs.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
    return newest


def _translated(run: Path, kind: str, sources: list[str], scratch: Path) -> list[str]:
    """The run's translations of some lines."""
    text, output = (scratch / f"{run.name}-{kind}.{side}" for side in ("en", "de"))
    write_whole(text, "".join(f"{line}\n" for line in sources))
    output.unlink(missing_ok=True)
    _dragoman("translate", str(run), "--input", str(text), "--output", str(output))
    return output.read_text("utf-8").split("\n")[:-1]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=29_000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


def _dragoman(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dragoman", *arguments], check=True)


if __name__ == "__main__":
    main()
