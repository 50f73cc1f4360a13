"""Our beam search beside Hugging Face's `generate` on one GPU: the same weights, sentences, beam.

    benchmarks/gpu/search.py --run RUN --source test2016.en [--beams 5 1] [--rounds 3]

Both go from ids to ids in fp32, sources sorted by length, in batches of the size that suits each
best. They take turns round by round; the ratio is the median over the rounds. Prints sentences a
second of both and how many translations are the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "translate_engines"))

from engine import EOS, PAD, by_length, padded, until_end

from dragoman.corpus.normalize import normalize
from dragoman.distributed.world import join_world
from dragoman.evaluation.validate import read_lines
from dragoman.formats.trained_model import TranslationModel, checkpoint_path
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import load_recipe
from dragoman.recipe.run_directory import RunDirectory

Ids = list[list[int]]
CELLS = (16_384, 65_536, 262_144)
BATCHES = (64, 128, 256, 512, 1024)
SAMPLE = 400


def main() -> None:
    options = _options()
    with join_world() as world:
        trained = TranslationModel.load(RunDirectory.open(options.run), [options.checkpoint], world)
        model = trained.models[0]
        lines = read_lines(options.source)
        sources = trained.subwords[0].encode(
            [normalize(line, lowercase=trained.lowercase) for line in lines]
        )
        run = RunDirectory.open(options.run)
        folder = checkpoint_path(run, options.checkpoint, run.recipe())
        theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).to(world.device).eval()
        config = load_recipe(options.run / "recipe.toml").search
        for beam in options.beams:
            search = config.model_copy(update={"beam_size": beam})
            ours = {cells: partial(_ours, model, search, cells) for cells in CELLS}
            hugging = {size: partial(_hugging, theirs, search, size) for size in BATCHES}
            best = best_of(ours, sources), best_of(hugging, sources)
            _compare(beam, *best, sources, options.rounds)


def best_of(
    sides: Mapping[int, Callable[[Ids], Ids]], sources: Ids
) -> tuple[int, Callable[[Ids], Ids]]:
    """The size that translates a sample of the sources soonest, and what translates with it."""
    sample = sources[:: max(1, len(sources) // SAMPLE)]
    spent = {}
    for size, translate in sides.items():
        translate(sample)
        spent[size] = _seconds(translate, sample)[0]
    best = min(spent, key=spent.__getitem__)
    return best, sides[best]


def _compare(
    beam: int,
    ours: tuple[int, Callable[[Ids], Ids]],
    theirs: tuple[int, Callable[[Ids], Ids]],
    sources: Ids,
    rounds: int,
) -> None:
    spent: list[tuple[float, float]] = []
    for _ in range(rounds):
        our_s, our_ids = _seconds(ours[1], sources)
        their_s, their_ids = _seconds(theirs[1], sources)
        spent.append((our_s, their_s))
    ratios = [their / our for our, their in spent]
    result = {
        "beam": beam,
        "sentences_per_s": round(len(sources) / statistics.median(our for our, _ in spent), 1),
        "hugging_face_sentences_per_s": round(
            len(sources) / statistics.median(their for _, their in spent), 1
        ),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "cells": ours[0],
        "hugging_face_batch": theirs[0],
        "equal": sum(a == b for a, b in zip(our_ids, their_ids, strict=True)),
        "sentences": len(sources),
    }
    print(json.dumps(result), flush=True)


def _ours(model: Transformer, search: SearchConfig, cells: int, sources: Ids) -> Ids:
    config = search.model_copy(update={"batch_tokens": cells})
    return [best.ids for best, *_ in translate_batch([model], sources, config)]


@torch.inference_mode()
def _hugging(model: Any, search: SearchConfig, size: int, sources: Ids) -> Ids:
    order = by_length(range(len(sources)), sources)
    found: dict[int, list[int]] = {}
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        ids, lengths = padded([sources[row] for row in rows])
        ids = ids.to(model.device)
        limit = search.max_length_ratio * (max(lengths) - 1) + search.max_length_extra
        made = model.generate(
            ids,
            attention_mask=(ids != PAD).long(),
            num_beams=search.beam_size,
            length_penalty=search.length_penalty_alpha,
            early_stopping=search.beam_size > 1,
            max_new_tokens=int(limit),
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )[:, 1:].tolist()
        found.update(zip(rows, map(until_end, made), strict=True))
    return [found[number] for number in range(len(sources))]


def _seconds(translate: Callable[[Ids], Ids], sources: Sequence[list[int]]) -> tuple[float, Ids]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    found = translate(list(sources))
    return time.perf_counter() - started, found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="whose model is taken")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--source", type=Path, required=True, help="one sentence per line")
    parser.add_argument("--beams", type=int, nargs="+", default=[5, 1])
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
