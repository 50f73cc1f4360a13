"""The distributed section of a recipe: how several ranks train one model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dragoman.base.settings import Section

Strategy = Literal["sync", "accum", "diloco", "powersgd", "auto"]


class AccumConfig(Section):
    """`accum`: gradients travel once for several batches, which are one update."""

    every: int = Field(default=4, ge=1)
    """Batches of the data section's size in one update; steps still count single batches."""


class DilocoConfig(Section):
    """`diloco`: each host trains alone, and hosts exchange updates now and then (arXiv
    2501.18512)."""

    every: int = Field(default=8, ge=1)
    """Local steps between two exchanges of a weight."""
    fragments: int = Field(default=4, ge=1, le=1000)
    """Parts of the weights that take turns; `every` is a multiple of it."""
    delay: int = Field(default=2, ge=0)
    """Steps that go on while a part is in transit; at most `every` / `fragments`."""
    wire: Literal["fp4", "int8", "bf16", "fp32"] = "fp4"
    """Number format between hosts; fp4: a sign and three bits of exponent."""
    outer: Literal["adam", "sgd"] = "adam"
    """`adam` uses the gradients of all hosts together; `sgd` uses how far each has moved
    (DiLoCo)."""
    outer_learning_rate: float = Field(default=1.0, gt=0.0)
    """Learning rate of `sgd`; 1.0 without momentum is the plain mean of the hosts' weights."""
    outer_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Nesterov momentum of `sgd`."""

    @model_validator(mode="after")
    def _fragments_fit(self) -> Self:
        if self.every % self.fragments:
            raise ValueError("diloco.every is not a multiple of diloco.fragments")
        if self.delay > self.every // self.fragments:
            raise ValueError("diloco.delay is above diloco.every / diloco.fragments")
        if self.outer == "adam" and (self.outer_learning_rate, self.outer_momentum) != (1.0, 0.0):
            raise ValueError("diloco.outer_learning_rate and outer_momentum need outer = 'sgd'")
        return self


class PowersgdConfig(Section):
    """`powersgd`: gradients travel as products of thin matrices (arXiv 1905.13727)."""

    rank: int = Field(default=4, ge=1)
    """Columns of these matrices."""


class DistributedConfig(Section):
    """How several ranks train one model; with one rank only `accum` makes a difference."""

    strategy: Strategy = "sync"
    """`auto` measures link and compute at the start, chooses the cheapest strategy and says why."""
    wire: Literal["bf16", "fp32"] = "bf16"
    """Number format of `sync` and `accum` between hosts; inside a host gradients are fp32."""
    accum: AccumConfig = Field(default_factory=AccumConfig)
    diloco: DilocoConfig = Field(default_factory=DilocoConfig)
    powersgd: PowersgdConfig = Field(default_factory=PowersgdConfig)

    @property
    def batches_per_update(self) -> int:
        """Batches of the data section's size in one update."""
        return self.accum.every if self.strategy == "accum" else 1

    @property
    def steps_between_votes(self) -> int:
        """Steps from one meeting of all ranks to the next; 1 for `auto`, which is not known yet."""
        if self.strategy == "diloco":
            return self.diloco.every // self.diloco.fragments
        return self.batches_per_update
