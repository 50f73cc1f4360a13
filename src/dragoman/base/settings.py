"""The base of every section of a recipe."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from dragoman.base.errors import ConfigError

_BEYOND: Final = 2**63
"""No counter and no size of a tensor is this large; larger numbers overflow libraries."""


class Section(BaseModel):
    """A frozen part of a recipe that lives beside the code it configures.

    Unknown keys are refused: a misspelt key that is silently ignored costs a training run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="after")
    def _numbers_fit_64_bits(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, int) and not -_BEYOND <= value < _BEYOND:
                raise ValueError(f"{name} does not fit into 64 bits")
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ConfigError: the settings of a run never change."""
        if name in type(self).model_fields:
            raise ConfigError(
                "a recipe that is loaded is not changed",
                place=name,
                remedy=f'load it again with an override such as "SECTION.{name}={value}"',
            )
        super().__setattr__(name, value)
