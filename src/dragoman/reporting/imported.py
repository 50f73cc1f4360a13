"""Events that only a run of another tool has.

All else in its log becomes ordinary events, which the report reads as those of our own runs. Few
questions need to know that a run was imported: those whose evidence is one of these values, and
those about something that the tool did not log, such as single ranks or the time of each phase.
"""

from __future__ import annotations

from dragoman.telemetry.events import Payload


class ImportedRun(Payload, kind="imported_run"):
    """Values of another tool's log for which our own events have no field."""

    tool: str
    gpu_name: str | None
    interface: str | None
    pairs_per_rank: int | None
    max_length: int | None
    printed_pairs: int
    printed_source_tokens: float | None
    """Mean length of the printed source sides, in pieces, cut at max_length."""
    printed_target_tokens: float | None
    printed_at_max_share: float | None
    """The share of the printed sides that were as long as max_length allows."""
    schedule_scale: float | None
    schedule_width: int | None
    schedule_warmup: int | None
    train_file: str | None
    checkpoint_every_steps: int | None
    score_method: str | None
    """How the tool computed the numbers that it called BLEU."""


class ImportedScore(Payload, kind="imported_score"):
    """A score that the other tool printed, in its own scale."""

    name: str
    value: float
