"""The sinks section of a recipe: where measurements go besides the run's own directory."""

from __future__ import annotations

from dragoman.base.settings import Section


class SinksConfig(Section):
    """All sinks are off by default. They do not change the results of a run, so its digest leaves
    them out.

    Each needs its own client library: `pip install 'dragoman[mlflow]'` and so on.
    """

    mlflow: str = ""
    """An MLflow tracking store such as "sqlite:///mlflow.db" or a server's address; "" is off."""
    wandb: str = ""
    """A Weights & Biases project; "" is off. WANDB_MODE=offline keeps all on this machine."""
    hook: str = ""
    """A function that takes each `telemetry.events.Event`, as "module:function"; "" is off.
    Python finds the module as any other: installed, or in PYTHONPATH."""
