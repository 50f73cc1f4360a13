"""The base of every section of a recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of a recipe that lives beside the code it configures.

    Unknown keys are refused: a misspelt key that is silently ignored costs a training run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
