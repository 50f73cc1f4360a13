"""Several languages in one model against one model for each: Multi30k, English to others.

    benchmarks/languages.py --multi30k DIR --scratch DIR [--targets de fr cs] [--steps 1200]

One model of all directions has as many updates as the single ones together, which share them
equally; all have the same recipe. Prints BLEU of each direction on test2016 by both. Then every
direction of the one model is translated through CTranslate2, through its Hugging Face export with
transformers alone, and by the server: how many of the first lines are equal to those of our own
search, and BLEU. A second call goes on where the first was broken off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dragoman
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import read_lines
from dragoman.formats.huggingface import translate_with_huggingface
from dragoman.recipe.run_directory import RunDirectory

RECIPE = """
name = "{name}"
[corpus]
folder = "{folder}"
source_language = "en"
target_language = "{first}"
train = [{train}]
valid = [{valid}]
test = [{test}]
[corpus.subword]
vocab_size = {pieces}
[data]
batch_tokens = 2048
[model]
d_model = 128
num_heads = 4
d_ffn = 256
encoder_layers = 3
decoder_layers = 3
norm = "pre"
dropout = 0.1
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 4e-3
warmup_steps = {warmup}
[optimizer]
beta2 = 0.98
[train]
max_steps = {steps}
validate_every_steps = {every}
validate_at_start = false
[checkpoint]
every_steps = {every}
[evaluate]
bleu_pairs = 90
[search]
beam_size = 5
length_penalty = "power"
length_penalty_alpha = 1.0
"""


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    several = _train("several", options.targets, options, steps=options.steps)
    share = options.steps // len(options.targets)
    single = [_train(f"en-{one}", [one], options, steps=share) for one in options.targets]
    _print_scores(several, single, options)
    _print_engines(several, options)


def _print_scores(
    several: RunDirectory, single: list[RunDirectory], options: argparse.Namespace
) -> None:
    """BLEU of each direction by both, on the whole test set."""
    together = dragoman.evaluate(several).directions
    print(f"\nBLEU on test2016; {options.steps} updates in all on each side")
    print(f"{'':10} {'one model':>10} {'its own':>10} {'difference':>11}")
    rows: list[tuple[str, float, float]] = []
    for target, run in zip(options.targets, single, strict=True):
        alone = dragoman.evaluate(run).scores["bleu"].value
        rows.append((f"en-{target}", together[f"en-{target}"]["bleu"].value, alone))
    mean = sum(row[1] for row in rows) / len(rows), sum(row[2] for row in rows) / len(rows)
    for name, one, other in (*rows, ("mean", *mean)):
        print(f"{name:10} {one:10.2f} {other:10.2f} {one - other:+11.2f}", flush=True)


def _print_engines(run: RunDirectory, options: argparse.Namespace) -> None:
    """Every direction through what others use."""
    exports = {}
    for kind in ("ctranslate2", "huggingface"):
        path = options.scratch / kind
        exports[kind] = dragoman.export(run, to=kind, output=path).path
    english = read_lines(options.multi30k / "test2016.en")[: options.lines]
    recipe = run.recipe()
    print(f"\nequal to our own search, of {len(english)} lines of test2016 (BLEU of these lines)")
    print(f"{'':10} {'ours':>8} {'CTranslate2':>18} {'transformers':>18} {'server':>18}")
    with _served(exports["ctranslate2"]) as url:
        for target in options.targets:
            references = read_lines(options.multi30k / f"test2016.{target}")[: options.lines]
            with dragoman.Translator(run, target_language=target, engine="torch") as translator:
                ours = translator.translate(english)
            with dragoman.Translator(exports["ctranslate2"], target_language=target) as translator:
                found = [translator.translate(english)]
            texts = [f"<2{target}> {line}" for line in english]
            found.append(translate_with_huggingface(exports["huggingface"], texts, recipe.search))
            found.append(_asked(url, english, target))
            cells = [
                f"{sum(a == b for a, b in zip(theirs, ours, strict=True)):>9} "
                f"({bleu(theirs, references).value:.2f})"
                for theirs in found
            ]
            own = bleu(ours, references).value
            print(f"{f'en-{target}':10} {own:8.2f} " + " ".join(f"{one:>18}" for one in cells))
        with urllib.request.urlopen(f"{url}/libretranslate/languages") as answer:
            print(f"LibreTranslate's /languages: {json.load(answer)}")


@contextmanager
def _served(bundle: Path) -> Iterator[str]:
    """The address of a server over a bundle."""
    command = [sys.executable, "-m", "dragoman", "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("serving on ").strip()
        finally:
            process.terminate()


def _asked(url: str, lines: list[str], target: str) -> list[str]:
    """Translations by the server, 100 texts a request."""
    found: list[str] = []
    for first in range(0, len(lines), 100):
        body = {"text": lines[first : first + 100], "source": "en", "target": target}
        request = urllib.request.Request(
            f"{url}/translate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            found += [one["text"] for one in json.load(answer)["translations"]]
    return found


def _train(
    name: str, targets: list[str], options: argparse.Namespace, *, steps: int
) -> RunDirectory:
    """The run of a recipe, trained to its end."""

    def entries(split: str) -> str:
        return ", ".join(
            f'{{source = "{split}.en", target = "{split}.{target}", target_language = "{target}"}}'
            for target in targets
        )

    recipe = options.scratch / f"{name}.toml"
    text = RECIPE.format(
        name=name,
        folder=options.multi30k.resolve(),
        first=targets[0],
        train=entries("train"),
        valid=entries("valid"),
        test=entries("test2016"),
        pieces=8000 if len(targets) > 1 else 6000,
        steps=steps,
        every=max(1, steps // 4),
        warmup=max(1, steps // 6),
    )
    recipe.write_text(text, encoding="utf-8")
    began = time.monotonic()
    run = dragoman.train(
        recipe,
        runs=options.scratch / "runs",
        prepared=options.scratch / "prepared" / name,
        ranks=1,
    )
    print(f"{name}: {steps} updates, {time.monotonic() - began:.0f} s", flush=True)
    return run


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--targets", nargs="+", default=["de", "fr", "cs"])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--lines", type=int, default=300)
    return parser.parse_args()


if __name__ == "__main__":
    main()
