"""Does an update of several lengths teach more than an update of one?

    benchmarks/length_groups.py --multi30k DIR --scratch DIR [--language cs] [--groups 1 2 4 8]
        [--cells 2048] [--steps 600] [--seeds 1 2]

Trains one recipe, with the settings that a budget of five minutes gives to it, with batches of as
many groups of pairs of like length: the same cells, as many updates, the same rates. Prints the dev
loss and the BLEU at the end, and the target tokens a second of all intervals. The runs of a seed
follow each other, so measure alone. If it is interrupted, the same command resumes it.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import dragoman
from dragoman.reporting.reading import read_facts

RECIPE = """
name = "groups"
[corpus]
folder = "{folder}"
train = [{{source = "train.en", target = "train.{language}"}}]
valid = [{{source = "valid.en", target = "valid.{language}"}}]
test = [{{source = "test2016.en", target = "test2016.{language}"}}]
[corpus.subword]
vocab_size = 4000
[data]
batch_tokens = {cells}
[model]
d_model = 128
num_heads = 4
d_ffn = 512
encoder_layers = 3
decoder_layers = 2
[schedule]
kind = "linear"
peak_learning_rate = 4.5e-3
[optimizer]
clip_norm = 1.0
[train]
ema_decay = 0.98
"""


def main() -> None:
    """Train what is not trained yet, and print the table."""
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    file = options.scratch / "groups.toml"
    folder, language = options.multi30k.resolve(), options.language
    text = RECIPE.format(folder=folder, language=language, cells=options.cells)
    file.write_text(text, encoding="utf-8")
    print("| groups | seed | dev loss | dev BLEU | test BLEU | target tokens/s |")
    print("|---:|---:|---:|---:|---:|---:|", flush=True)
    rates: dict[int, list[float]] = {}
    for seed in options.seeds:
        for groups in options.groups:
            settings = [
                f"train.seed={seed}",
                f"train.max_steps={options.steps}",
                f"train.validate_every_steps={options.steps}",
                f"schedule.warmup_steps={options.steps // 10}",
                f"data.length_groups={groups}",
            ]
            run = dragoman.train(
                dragoman.load_recipe(file, settings),
                runs=options.scratch / f"{language}-{options.cells}-{groups}-{seed}",
                prepared=options.scratch / f"prepared-{language}",
            )
            test = dragoman.evaluate(run).scores["bleu"].value
            facts = read_facts(run.path)
            last = facts.validations[-1]
            assert last.bleu is not None
            tokens = sum(one.target_tokens or 0 for one in facts.intervals)
            rate = tokens / sum(one.interval_s or 0.0 for one in facts.intervals)
            rates.setdefault(groups, []).append(rate)
            print(
                f"| {groups} | {seed} | {last.dev_loss:.3f} | {last.bleu:.2f} | {test:.2f} "
                f"| {rate:.0f} |",
                flush=True,
            )
    first, *others = options.groups
    for groups in others:
        ratio = statistics.median(
            mine / one for mine, one in zip(rates[groups], rates[first], strict=True)
        )
        print(f"{groups} groups: {ratio:.3f} times the tokens a second of {first}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.cs ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--language", default="cs", choices=["de", "fr", "cs"])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--cells", type=int, default=2048, help="of a batch's longer side")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    return parser.parse_args()


if __name__ == "__main__":
    main()
