"""The distributed section of a recipe: how several ranks train one model."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dragoman.base.extensions import Parts
from dragoman.base.settings import Section

_STRATEGIES: Final = Parts[object]("strategies", dict.fromkeys(("sync", "diloco", "auto")))
"""Their names alone: distributed/strategies.py has the parts, and needs PyTorch."""


class StrategyOptions(Section):
    """The keys of one strategy, and what other packages need to know of it without PyTorch.

    Numbers are fp32 numbers per weight of the model.
    """

    @property
    def steps_between_votes(self) -> int:
        """Steps from one meeting of all ranks to the next."""
        return 1

    @property
    def kept_numbers(self) -> float:
        """Numbers that each rank keeps in memory beside weights, gradient and optimizer."""
        return 0.0

    @property
    def shared_numbers(self) -> int:
        """Numbers that a checkpoint holds once, beside weights, their average and optimizer."""
        return 0

    @property
    def own_numbers(self) -> int:
        """Numbers that every rank saves separately."""
        return 0

    @property
    def has_own_optimizers(self) -> bool:
        """Whether each rank has, and saves, an optimizer of its own."""
        return False


class DilocoConfig(StrategyOptions):
    """`diloco`: each host trains alone, and hosts exchange updates now and then (arXiv
    2501.18512)."""

    every: int = Field(default=8, ge=1)
    """Local steps between two exchanges of a weight."""
    fragments: int = Field(default=4, ge=1, le=1000)
    """Parts of the weights that take turns; `every` is a multiple of it."""
    delay: int = Field(default=2, ge=0)
    """Steps that go on while a part is in transit; at most `every` / `fragments`."""
    wire: Literal["fp4", "bf16", "fp32"] = "fp4"
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

    @property
    def steps_between_votes(self) -> int:
        """Steps between two exchanges of fragments."""
        return self.every // self.fragments

    @property
    def kept_numbers(self) -> float:
        """The weights that all hosts share, and the outer optimizer: two moments and a sum, or a
        momentum, if any. The fragment in transit adds its weights, its share and its rounding
        errors; for Adam, also two moments."""
        if self.outer == "adam":
            kept, in_transit = 4, 5
        else:
            kept, in_transit = 1 + self.shared_numbers, 3
        return kept + in_transit / self.fragments * (self.delay > 0)

    @property
    def shared_numbers(self) -> int:
        """The state of the outer optimizer: two moments, or a momentum, if any."""
        return 2 if self.outer == "adam" else int(self.outer_momentum > 0)

    @property
    def own_numbers(self) -> int:
        """The weights of a rank and, for an outer Adam, its sum of gradients."""
        return 2 if self.outer == "adam" else 1

    @property
    def has_own_optimizers(self) -> bool:
        """Each rank takes its local steps with an Adam of its own."""
        return True


class DistributedConfig(Section):
    """How several ranks train one model; with one rank nothing of it matters."""

    strategy: Annotated[str, AfterValidator(_STRATEGIES.known)] = "sync"
    """`auto` measures link and compute at the start, chooses the cheapest strategy and says why."""
    wire: Literal["bf16", "fp32"] = "bf16"
    """Number format of `sync` between hosts; inside a host gradients are fp32."""
    diloco: DilocoConfig = Field(default_factory=DilocoConfig)
    added: dict[str, float] = Field(default_factory=dict)
    """Numbers of a strategy that another package adds, by their names."""

    def options_of(self, strategy: str) -> StrategyOptions:
        """The keys of this strategy; a plain `StrategyOptions` if it has none of its own.

        strategy: a record of another version may name one that is not known here.
        """
        options = getattr(self, strategy, None)
        return options if isinstance(options, StrategyOptions) else StrategyOptions()

    @property
    def options(self) -> StrategyOptions:
        """The keys of the strategy of this section; for `auto`, those of `sync`."""
        return self.options_of(self.strategy)
