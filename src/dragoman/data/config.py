"""The recipe sections that define batches: sizes (data) and the pairs to draw (stages)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from dragoman.base.settings import Section

LENGTH_GROUPS: Final = 4
"""After 600 updates of Multi30k, four lengths in a batch gain 3 to 4 BLEU over one; they cost 1 to
5% of the speed on a CPU in fp32. Eight teach hardly more, and cost more."""


class DataConfig(Section):
    """One update sees `accumulate` micro-batches; every rank takes its rows of each of them.

    Sizes are those of the global batch, whatever the number of ranks, so that the number of
    ranks changes the speed of a run and not its result.
    """

    share: float = Field(default=1.0, gt=0.0, le=1.0)
    """The share of the training pairs that are used, drawn at random: what is less text worth?"""
    batch_tokens: int | None = Field(default=4096, ge=1)
    """Micro-batch: at most this many cells on the longer padded side (rows x longest)."""
    batch_sentences: int | None = Field(default=None, ge=1)
    """Micro-batch: this many pairs; if it is set, `batch_tokens` has no default."""
    accumulate: int = Field(default=1, ge=1)
    """Micro-batches in one update."""
    length_groups: int = Field(default=LENGTH_GROUPS, ge=1)
    """Groups in one micro-batch, at most: the pairs of a group are of like length, and groups are
    drawn at random. An update that sees one length alone teaches less."""
    bucket: bool = True
    """Put pairs of like length into one group; false draws them at random."""
    pool_pairs: int = Field(default=1_000_000, ge=1)
    """Pairs are sorted by length inside pools of this many, drawn at random."""
    length_multiple: int = Field(default=1, ge=1)
    """Padded lengths are rounded up to a multiple of this (8 suits GPUs older than Ampere)."""
    subword_sampling: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the pieces that are split into two pieces of the vocabulary, drawn anew in each
    epoch; 0.1 helps where text is scarce or has typos. Batches get larger by about as much."""
    prefetch_batches: int = Field(default=8, ge=1)
    """Updates that are made ahead of the training."""

    def groups(self, longest_cells: int) -> int:
        """Groups in one micro-batch: `length_groups`, or fewer, so that each has room for the
        longest row, or for equally many pairs if `batch_sentences` is set; one without `bucket`.

        longest_cells: the padded length of the longest row.
        """
        if not self.bucket:
            return 1
        if self.batch_tokens is not None:
            return max(1, min(self.length_groups, self.batch_tokens // longest_cells))
        assert self.batch_sentences is not None
        most = min(self.length_groups, self.batch_sentences)
        return next(count for count in range(most, 0, -1) if self.batch_sentences % count == 0)

    @model_validator(mode="before")
    @classmethod
    def _sentences_instead_of_tokens(cls, values: Any) -> Any:
        # TOML has no None, so a recipe could not remove the default budget.
        if isinstance(values, dict) and values.get("batch_sentences") is not None:
            return {"batch_tokens": None} | values
        return values

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if (self.batch_tokens is None) == (self.batch_sentences is None):
            raise ValueError("set exactly one of batch_tokens and batch_sentences")
        return self


class StageConfig(Section):
    """A stretch of the training with its own mixture of text and learning rate."""

    steps: int | None = Field(default=None, ge=1)
    """Its length in updates; the last stage needs none, because it ends with the run."""
    weights: dict[str, Annotated[float, Field(ge=0.0, le=1e9)]] | None = Field(
        default=None, min_length=1
    )
    """Share of the pairs from each entry of `corpus.train`, by its `name`, in any unit; entries
    that are not named here are left out. Without weights, those of the entries apply."""
    learning_rate_factor: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Multiplies the rate of the schedule, which goes on through all stages."""

    @model_validator(mode="after")
    def _draws_something(self) -> Self:
        if self.weights is not None and not sum(self.weights.values()):
            raise ValueError("all weights of a stage are 0: no pair would be drawn")
        return self
