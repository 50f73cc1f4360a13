"""The requirements of a recipe on the machines, as far as a plan needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from dragoman.model.config import ModelConfig
from dragoman.recipe.estimate import TYPICAL_LENGTH, estimate
from dragoman.recipe.recipe import Recipe
from dragoman.training.config import CheckpointConfig

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Workload:
    """One training run, whatever it runs on.

    shapes: the shape of every trainable weight, in the model's order.
    flop_per_step: useful arithmetic of one update over the global batch, forward and backward.
    target_tokens_per_step: the number of target tokens in that batch.
    micro_batches_per_step: the number of micro-batches of an update; only the backward pass of the
        last one overlaps with the network.
    save_every_steps: from one checkpoint to the next.
    num_layers: the number of layers of encoder and decoder together.
    """

    name: str
    shapes: Shapes
    flop_per_step: float
    target_tokens_per_step: float
    max_steps: int
    micro_batches_per_step: int = 1
    num_layers: int = 0
    save_every_steps: int = CheckpointConfig().every_steps

    @cached_property
    def num_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def rows_per_micro_batch(self) -> float:
        """Sentences of a typical length; if there are more ranks than these, some are idle."""
        tokens = self.target_tokens_per_step / self.micro_batches_per_step
        return max(1.0, tokens / TYPICAL_LENGTH)


def workload_of(recipe: Recipe) -> Workload:
    """The workload of a recipe before its text is known: sentences of a typical length."""
    expected = estimate(recipe)
    vocab_size = recipe.corpus.subword.vocab_size
    tokens = expected.target_tokens_per_update
    if recipe.data.batch_sentences is not None:
        length = min(TYPICAL_LENGTH, recipe.corpus.max_pieces + 1)
        tokens = recipe.data.batch_sentences * recipe.data.accumulate * length
    return Workload(
        name=recipe.name,
        shapes=weight_shapes(
            recipe.model, source_vocab_size=vocab_size, target_vocab_size=vocab_size
        ),
        flop_per_step=tokens * expected.flop_per_target_token,
        target_tokens_per_step=tokens,
        max_steps=recipe.train.max_steps,
        micro_batches_per_step=recipe.data.accumulate,
        num_layers=recipe.model.encoder_layers + recipe.model.decoder_layers,
        save_every_steps=recipe.checkpoint.every_steps,
    )


def weight_shapes(config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int) -> Shapes:
    """The shape of every trained weight of the model with these vocabularies, in its own order."""
    shapes = config.parameter_shapes(
        source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
    )
    shapes.pop("embeddings.output_bias", None)  # it is not trained
    return tuple(shapes.values())
