"""Does `compare` call one of two models better that differ in nothing but their seeds?

    benchmarks/seeds.py --multi30k DIR --scratch DIR [--pairs 5000] [--steps 800] [--seeds 5]

Trains the same recipe with several seeds (weights, dropout and the order of batches; the text and
the vocabulary are the same) and compares every pair of the models on test2016. At p < 0.05 a test
that is right calls one in twenty such pairs different, if nothing varies but the sentences; the
seeds vary as well. If it is interrupted, the same command resumes it.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import dragoman

RECIPE = """
name = "seed"
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid = [{source = "valid.en", target = "valid.de"}]
test = [{source = "test2016.en", target = "test2016.de"}]
[corpus.subword]
vocab_size = 3000
[data]
batch_tokens = 2048
[model]
d_model = 128
num_heads = 4
d_ffn = 512
encoder_layers = 2
decoder_layers = 2
norm = "pre"
dropout = 0.3
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 3e-3
warmup_steps = 150
[optimizer]
beta2 = 0.98
[evaluate]
bleu_pairs = 0
"""
P_VALUE = 0.05


def main() -> None:
    """Print the BLEU of each model, then the p-values and the verdict of each pair."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    for split, most in (("train", options.pairs), ("valid", None), ("test2016", None)):
        for language in ("en", "de"):
            lines = (options.multi30k / f"{split}.{language}").read_text("utf-8").splitlines()
            text = "".join(f"{line}\n" for line in lines[:most])
            (options.scratch / f"{split}.{language}").write_text(text, "utf-8")
    recipe = options.scratch / "seed.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    runs = []
    for seed in range(1, options.seeds + 1):
        settings = [f"train.seed={seed}", f"train.max_steps={options.steps}"]
        settings.append(f"train.validate_every_steps={max(1, options.steps // 4)}")
        runs.append(
            dragoman.train(
                dragoman.load_recipe(recipe, settings),
                runs=options.scratch / f"runs-{seed}",
                prepared=options.scratch / "prepared",
            )
        )
        print(f"seed {seed}: trained", flush=True)
    print("| seeds | BLEU | p (bootstrap) | p (randomisation) | called better |")
    print("|---|---|---:|---:|---|")
    called = below = 0
    pairs = list(combinations(range(options.seeds), 2))
    for one, other in pairs:
        (found,) = dragoman.compare(runs[one], runs[other])
        bleu = found.result.scores["bleu"]
        called += found.better is not None
        below += min(bleu.p_bootstrap, bleu.p_randomisation) < P_VALUE
        print(
            f"| {one + 1}, {other + 1} | {bleu.first:.2f}, {bleu.second:.2f} | "
            f"{bleu.p_bootstrap:.3f} | {bleu.p_randomisation:.3f} | "
            f"{'yes' if found.better else 'no'} |",
            flush=True,
        )
    print(f"called better: {called} of {len(pairs)}; by BLEU alone: {below}")


if __name__ == "__main__":
    main()
