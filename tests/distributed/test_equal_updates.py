"""The same global batches give the same weights on any number of ranks."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from dragoman.data.config import DataConfig
from dragoman.distributed.world import World
from ranks import run_ranks
from toy_task import ONE_RANK, TOY_MODEL, ToyPairs, toy_training

NUM_UPDATES = 20
# No dropout, which each rank draws for itself, and no bias on keys: its gradient is nothing but
# rounding, of which Adam would make full steps in random directions.
EXACT_MODEL = TOY_MODEL.model_copy(update={"dropout": 0.0, "attention_bias": False})
# 5 rows in a micro-batch and 1 in the last: shares are uneven and some ranks have none.
DATA = DataConfig(batch_tokens=None, batch_sentences=5, accumulate=3)


def _train(world: World) -> Any:
    pairs = ToyPairs(101)
    empty_shares = 0
    with toy_training(pairs, model=EXACT_MODEL, data=DATA, world=world) as training:
        norms = []
        for update in islice(training.stream, NUM_UPDATES):
            shares = [len(batch.source_lengths_B) for batch in update.micro_batches]
            empty_shares += shares.count(0)
            result = training.step(update, learning_rate=1e-3)
            norms.append(result.gradient_norm.item())
        weights = [weight.flatten().tolist() for weight in training.model.parameters()]
        return {"weights": weights, "norms": norms, "empty_shares": empty_shares}


def test_one_rank_and_several_make_equal_updates() -> None:
    one = _train(ONE_RANK)
    for world_size in (2, 3):
        ranks = run_ranks(_train, world_size=world_size)
        assert sum(rank["empty_shares"] for rank in ranks) > 0
        for rank in ranks:
            assert rank["norms"] == ranks[0]["norms"]
            assert rank["weights"] == ranks[0]["weights"]
            torch.testing.assert_close(
                torch.tensor(rank["norms"]), torch.tensor(one["norms"]), rtol=1e-4, atol=0.0
            )
            for ours, theirs in zip(rank["weights"], one["weights"], strict=True):
                torch.testing.assert_close(
                    torch.tensor(ours), torch.tensor(theirs), rtol=0.0, atol=1e-5
                )
