"""The gain of back-translation: 5,000 pairs alone, and with 24,000 more lines of German.

    benchmarks/back_translation.py --multi30k DIR --scratch DIR [--pairs 5000] [--steps 2500]

All models have the same recipe and the same dev set. Three trainings: German to English on the
pairs, which translates the German of the other lines; then, with the same number of updates,
English to German on the pairs alone, and on the pairs and the translations. Prints `dragoman
compare` of the last two on test2016. If it is interrupted, the same command resumes it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

RECIPE = """
name = "{name}"
[corpus]
train = [{train}]
valid = [{{source = "valid.{source}", target = "valid.{target}"}}]
test = [{{source = "test.{source}", target = "test.{target}"}}]
source_language = "{source}"
target_language = "{target}"
[corpus.subword]
vocab_size = 4000
[data]
batch_tokens = 4096
[model]
d_model = 128
num_heads = 4
d_ffn = 256
encoder_layers = 4
decoder_layers = 4
norm = "pre"
dropout = 0.3
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
[search]
beam_size = 5
"""
PAIRS = '{{source = "pairs.{source}", target = "pairs.{target}"}}'


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    _write_text(options)
    synthetic = options.scratch / "synthetic.tsv"
    if not synthetic.exists():
        reverse = _train("reverse", "de", "en", [], options, steps=options.reverse_steps)
        _dragoman(
            *("synthesize", str(reverse), "--input", str(options.scratch / "mono.de")),
            *("--output", str(synthetic), "--direction", "back"),
        )
    alone = _train("alone", "en", "de", [], options, steps=options.steps)
    tagged = ['{tsv = "synthetic.tsv", tag = "<bt>"}']
    more = _train("back-translated", "en", "de", tagged, options, steps=options.steps)
    _dragoman("compare", str(alone), str(more))


def _write_text(options: argparse.Namespace) -> None:
    for language in ("en", "de"):
        lines = (options.multi30k / f"train.{language}").read_text("utf-8").splitlines()
        parts = {"pairs": lines[: options.pairs], "mono": lines[options.pairs :]}
        for name, there in (("valid", "valid"), ("test", "test2016")):
            parts[name] = (options.multi30k / f"{there}.{language}").read_text("utf-8").splitlines()
        for name, part in parts.items():
            path = options.scratch / f"{name}.{language}"
            text = "".join(f"{line}\n" for line in part)
            if not path.exists() or path.read_text("utf-8") != text:
                path.write_text(text, "utf-8")


def _train(
    name: str,
    source: str,
    target: str,
    further: list[str],
    options: argparse.Namespace,
    *,
    steps: int,
) -> Path:
    """The run of a recipe, trained to its end."""
    entries = ", ".join([PAIRS.format(source=source, target=target), *further])
    recipe = options.scratch / f"{name}.toml"
    text = RECIPE.format(
        name=name,
        train=entries,
        source=source,
        target=target,
        steps=steps,
        every=max(1, steps // 10),
        warmup=max(1, steps // 5),
    )
    recipe.write_text(text, encoding="utf-8")
    began = time.monotonic()
    runs = options.scratch / "runs"
    _dragoman("train", str(recipe), "--runs", str(runs), "--ranks", str(options.ranks))
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    newest: Path = max(runs.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
    return newest


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--reverse-steps", type=int, default=1500)
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


def _dragoman(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dragoman", *arguments], check=True)


if __name__ == "__main__":
    main()
