"""Whether training draws pairs from the entries of text in the shares of their weights.

    benchmarks/mixture.py --multi30k DIR --scratch DIR [--updates 1000]

Two entries of Multi30k, 5,000 and 24,000 pairs, are drawn with several weights. For 1, 2 and 3
ranks it makes all batches of the first updates and counts the pairs of each entry. For comparison
it prints the shares of random draws with these weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.data.config import DataConfig
from dragoman.data.sampler import Mixture, Sampler, rank_rows

WEIGHTS = ((1.0, 1.0), (1.0, 3.0), (9.0, 1.0), (1.0, 99.0))
PAIRS = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, train.de")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=1000)
    options = parser.parse_args()
    shards = _shards(options.multi30k, options.scratch)
    entries = shards.entries()
    sizes = np.bincount(entries).tolist()
    print(f"{sizes[0]:,} and {sizes[1]:,} pairs, {options.updates:,} updates of 4,096 tokens")
    print("weights    ranks   share wanted   found     error     at random")
    for weights in WEIGHTS:
        wanted = weights[0] / sum(weights)
        sampler = Sampler(
            shards.source_lengths,
            shards.target_lengths,
            DataConfig(),
            seed=1,
            mixture=Mixture(entries, weights),
        )
        chosen = _drawn(sampler, options.updates)
        for ranks in (1, 2, 3):
            dealt = [
                rank_rows([batch], rank, ranks)[0] for batch in chosen for rank in range(ranks)
            ]
            pairs = np.concatenate(dealt)
            share = float((entries[pairs] == 0).mean())
            at_random = (wanted * (1 - wanted) / len(pairs)) ** 0.5
            print(
                f"{weights[0]:g} : {weights[1]:<6g} {ranks:5}   {wanted:11.2%}   {share:7.3%}   "
                f"{share - wanted:+.3%}   +-{at_random:.3%}"
            )


def _shards(multi30k: Path, scratch: Path) -> TokenShards:
    """The two entries, prepared."""
    scratch.mkdir(parents=True, exist_ok=True)
    for language in ("en", "de"):
        lines = (multi30k / f"train.{language}").read_text("utf-8").splitlines(keepends=True)
        (scratch / f"a.{language}").write_text("".join(lines[:PAIRS]), "utf-8")
        (scratch / f"b.{language}").write_text("".join(lines[PAIRS:]), "utf-8")
    train = [{"source": f"{name}.en", "target": f"{name}.de", "name": name} for name in "ab"]
    config = CorpusConfig.model_validate(
        {
            "folder": str(scratch),
            "train": train,
            "valid_pairs": 500,
            "subword": {"vocab_size": 4000},
        }
    )
    prepare(config, scratch / "prepared", workers=2)
    return TokenShards(scratch / "prepared" / "train")


def _drawn(sampler: Sampler, num_updates: int) -> list[np.ndarray]:
    """The pairs of each micro-batch of the first updates."""
    batches: list[np.ndarray] = []
    for update in range(num_updates):
        epoch, position = sampler.position(update)
        if position == 0:
            plan = sampler.epoch(epoch)
        batches += plan.update(position)
    return batches


if __name__ == "__main__":
    main()
