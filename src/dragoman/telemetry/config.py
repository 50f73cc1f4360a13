"""The sinks section of a recipe: where measurements go besides the run's own directory."""

from __future__ import annotations

from pydantic import Field

from dragoman.base.settings import Section


class SinksConfig(Section):
    """All sinks are off by default. They do not change the results of a run, so its digest leaves
    them out.

    Each needs its own client library: `pip install 'dragoman[prometheus]'` and so on.
    """

    prometheus_port: int = Field(default=0, ge=0, le=65535)
    """Rank 0 serves Prometheus on this port, on the loopback interface only; 0 is off."""
    mlflow: str = ""
    """An MLflow tracking store such as "sqlite:///mlflow.db" or a server's address; "" is off."""
    wandb: str = ""
    """A Weights & Biases project; "" is off. WANDB_MODE=offline keeps all on this machine."""
