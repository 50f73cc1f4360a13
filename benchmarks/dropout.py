"""How much dropout suits a run that sees its text a few times?

    benchmarks/dropout.py --multi30k DIR --scratch DIR [--language de] [--steps 600 2000 4000]
        [--dropouts 0.0 0.1 0.2] [--seeds 1]

Trains the model that a budget of some minutes gives to Multi30k, with the other settings of such a
budget. Prints the epochs, the dev loss and the BLEU at the end. If it is interrupted, the same
command resumes it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dragoman
from dragoman.corpus.manifest import Manifest
from dragoman.reporting.reading import read_facts
from length_groups import RECIPE

CELLS = 2304


def main() -> None:
    """Train what is not trained yet, and print the table."""
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    file = options.scratch / "dropout.toml"
    folder, language = options.multi30k.resolve(), options.language
    text = RECIPE.format(folder=folder, language=language, cells=CELLS)
    file.write_text(text, encoding="utf-8")
    print("| steps | epochs | dropout | seed | dev loss | dev BLEU | test BLEU |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for steps in options.steps:
        for dropout in options.dropouts:
            for seed in options.seeds:
                print(_row(options, file, steps, dropout, seed), flush=True)


def _row(options: argparse.Namespace, file: Path, steps: int, dropout: float, seed: int) -> str:
    settings = [
        f"train.seed={seed}",
        f"train.max_steps={steps}",
        f"train.validate_every_steps={steps // 4}",
        f"train.ema_decay={max(0.0, 1 - 100 / steps)}",
        f"schedule.warmup_steps={max(1, steps // 10)}",
        f"model.dropout={dropout}",
    ]
    run = dragoman.train(
        dragoman.load_recipe(file, settings),
        runs=options.scratch / f"{options.language}-{steps}-{dropout}-{seed}",
        prepared=options.scratch / f"prepared-{options.language}",
    )
    test = dragoman.evaluate(run).scores["bleu"].value
    facts = read_facts(run.path)
    last = facts.validations[-1]
    tokens = sum(one.target_tokens or 0 for one in facts.intervals)
    train = Manifest.load(run.path).splits["train"]
    epochs = tokens / (train.target_pieces + train.pairs)
    return (
        f"| {steps:,} | {epochs:.1f} | {dropout} | {seed} | {last.dev_loss:.3f} "
        f"| {last.bleu:.2f} | {test:.2f} |"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--language", default="de", choices=["de", "fr", "cs"])
    parser.add_argument("--steps", type=int, nargs="+", default=[600, 2000, 4000])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0, 0.1, 0.2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    return parser.parse_args()


if __name__ == "__main__":
    main()
