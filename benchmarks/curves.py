"""Trains the runs whose learning curves are shipped with dragoman, and writes them down.

    benchmarks/curves.py --multi30k DIR --mixed DIR --scratch DIR [--write] [--only NAME ...]

Each run is TEXT-SIZE-STEPS: Multi30k en-de, the demo's text or every seventh pair of ende-mixed, in
a size of `run/choose.py`, for so many steps of 2,048 cells with the rates that a budget would
choose. Those that are done are not trained again; only finished runs are written. To them come the
ends of longer trainings that other benchmarks have recorded (RECORDED). --write puts all into
src/dragoman/run/shipped_curves.json; without it they are printed. --recorded trains nothing: it
puts RECORDED beside the runs that are shipped already.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from dragoman.recipe.recipe import SHIPPED_RECIPES
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run.choose import SIZES, dropout_for
from dragoman.run.curves import Curve, Point, curve_of

RUNS = (
    *("multi30k-mini-200", "multi30k-small-200", "multi30k-mini-600", "multi30k-tiny-600"),
    *("multi30k-small-600", "multi30k-mini-1800", "multi30k-tiny-1800"),
    *("demo-mini-200", "demo-tiny-200", "demo-mini-600", "demo-tiny-600", "demo-mini-1800"),
    *("demo-tiny-1800", "mixed-mini-200", "mixed-mini-600", "mixed-tiny-600", "mixed-mini-1800"),
)
SOURCES = {
    "multi30k": "Multi30k en-de (github.com/multi30k/dataset, task 1)",
    "demo": "LibreOffice help en-de, the demo's text",
    "mixed": "104,638 pairs of mixed en-de text, more than half of it about software",
}
BATCH_TOKENS = 2048
EPOCH_TOKENS = {"multi30k": 507_828, "demo": 404_313, "mixed": 2_124_776}
VOCABULARIES = {"multi30k": 4000, "demo": 4000, "mixed": 8000}
RECIPE = """
[corpus]
{text}
subword.vocab_size = {vocabulary}
[data]
batch_tokens = {batch}
[model]
d_model = {width}
num_heads = {heads}
d_ffn = {inner}
encoder_layers = {encoder}
decoder_layers = {decoder}
dropout = {dropout}
[schedule]
kind = "linear"
peak_learning_rate = {rate:.3g}
warmup_steps = {warmup}
[optimizer]
clip_norm = 1.0
[train]
max_steps = {steps}
validate_every_steps = {every}
validate_at_start = false
log_every_steps = 50
[checkpoint]
every_steps = {steps}
[evaluate]
bleu_pairs = 300
train_slice_pairs = 0
"""
RECORDED = (
    # text, inner weights, millions of target tokens, BLEU of the test set, source
    (
        "multi30k",
        1_325_056,
        22.7,
        37.9,
        "strategy_quality.jsonl, sync, mean of six runs, lower case",
    ),
    (
        "multi30k",
        1_325_056,
        30.3,
        39.3,
        "HISTORY.md, multi30k-tiny with case, half of its training",
    ),
    ("multi30k", 1_325_056, 60.6, 40.27, "README.md, quality.py with case"),
    (
        "multi30k",
        993_664,
        105.2,
        38.0,
        "distillation.py, the student without a teacher, four lengths, lower case",
    ),
    ("demo", 2_522_304, 2.29, 25.2, "README.md, make demo, four lengths"),
    ("multi30k5000", 926_208, 1.51, 17.1, "README.md, seeds.py, mean of five seeds"),
    ("multi30k5000", 1_325_056, 5.68, 21.56, "README.md, back_translation.py, 1,500 updates"),
    ("multi30k5000", 1_325_056, 15.1, 21.22, "README.md, back_translation.py, 4,000 updates"),
)
"""Ends of schedules; tokens are updates times 0.925 of their cells, as in the runs above."""
PAIRS = {"multi30k5000": (5000, 87_600)}
"""Pairs and target tokens of texts of which no curve is trained here."""
SHIPPED = Path(__file__).resolve().parents[1] / "src/dragoman/run/shipped_curves.json"


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    curves: list[Curve] = []
    if options.recorded:
        shipped = TypeAdapter(list[Curve]).validate_json(SHIPPED.read_bytes())
        curves += [curve for curve in shipped if "; benchmarks/" not in curve.source]
    for name in () if options.recorded else options.only or RUNS:
        found = _curve(options.scratch, name)
        if found is None and not options.collect:
            _train(name, options)
            found = _curve(options.scratch, name)
        if found is not None:
            curves.append(found)
    for path in options.more:
        source = f"{SOURCES[path.name.split('-')[0]]}; run {path.name}, benchmarks/budget.py"
        found = curve_of(RunDirectory.open(path), source=source)
        if found is not None:
            curves.append(found)
    curves += _recorded(curves)
    text = TypeAdapter(list[Curve]).dump_json(curves, indent=1).decode() + "\n"
    if options.write:
        SHIPPED.write_text(text, encoding="utf-8")
    else:
        print(text)


def _recorded(curves: list[Curve]) -> Iterator[Curve]:
    for text, weights, millions, bleu, source in RECORDED:
        kind = text.removesuffix("5000")
        like = next(curve for curve in curves if curve.source.startswith(SOURCES[kind]))
        values = {
            "source": f"{SOURCES[kind]}; benchmarks/{source}; BLEU of the test set",
            "weights": weights,
            "points": [Point(tokens=round(millions * 1e6), dev_loss=None, bleu=bleu)],
        }
        if text in PAIRS:
            pairs, tokens = PAIRS[text]
            values |= {"text": text, "pairs": pairs, "epoch_tokens": tokens}
        yield Curve.model_validate(like.model_dump() | values)


def _curve(scratch: Path, name: str) -> Curve | None:
    for path in sorted(scratch.glob(f"runs/{name}-*")):
        source = f"{SOURCES[name.split('-')[0]]}; run {path.name}, benchmarks/curves.py"
        found = curve_of(RunDirectory.open(path), source=source)
        if found is not None:
            return found
    return None


def _train(name: str, options: argparse.Namespace) -> None:
    text, size, steps = name.split("-")
    width, heads, inner, encoder, decoder = SIZES[size]
    recipe = RECIPE.format(
        text=_text(text, options),
        batch=BATCH_TOKENS,
        vocabulary=VOCABULARIES[text],
        width=width,
        heads=heads,
        inner=inner,
        encoder=encoder,
        decoder=decoder,
        dropout=dropout_for(int(steps) * BATCH_TOKENS / EPOCH_TOKENS[text]),
        rate=0.576 / width,
        warmup=min(int(steps) // 6, 1000),
        steps=steps,
        every=max(int(steps) // 8, 1),
    )
    (options.scratch / f"{name}.toml").write_text(recipe, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "dragoman", "run", f"{name}.toml", "--ranks", "1"],
        cwd=options.scratch,
        check=True,
        stdout=sys.stderr,
    )


def _text(text: str, options: argparse.Namespace) -> str:
    if text == "multi30k":
        folder, test = options.multi30k.resolve(), "test2016"
        entries = {
            split: f'source = "{split}.en", target = "{split}.de"' for split in ("train", "valid")
        }
        entries["test"] = f'source = "{test}.en", target = "{test}.de"'
    elif text == "demo":
        folder = SHIPPED_RECIPES
        entries = {split: f'tsv = "demo/{split}.tsv"' for split in ("valid", "test")}
        entries["train"] = 'tsv = "demo/train.tsv.xz"'
    else:
        folder = _mixed(options)
        valid = options.mixed.resolve() / "valid"
        entries = {
            "train": 'source = "train.en", target = "train.de"',
            "valid": f'source = "{valid}.en", target = "{valid}.de"',
        }
    lines = [f"{split} = [{{{files}}}]" for split, files in entries.items()]
    return "\n".join([f'folder = "{folder}"', *lines])


def _mixed(options: argparse.Namespace) -> Path:
    """Every seventh pair of the mixed text."""
    folder: Path = options.scratch.resolve() / "mixed"
    folder.mkdir(exist_ok=True)
    for language in ("en", "de"):
        with lzma.open(options.mixed / f"train.{language}.xz", "rb") as lines:
            chosen = b"".join(itertools.islice(lines, 0, None, 7))
        (folder / f"train.{language}").write_bytes(chosen)
    return folder


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, default=Path(), help="train.en, test2016.de ...")
    parser.add_argument("--mixed", type=Path, default=Path(), help="train.en.xz, valid.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=RUNS)
    parser.add_argument(
        "--more", nargs="+", type=Path, default=[], help="runs of benchmarks/budget.py to add"
    )
    parser.add_argument("--collect", action="store_true", help="train none, take what is done")
    parser.add_argument("--recorded", action="store_true", help="train none, keep the shipped runs")
    parser.add_argument("--write", action="store_true", help="into the package")
    return parser.parse_args()


if __name__ == "__main__":
    main()
