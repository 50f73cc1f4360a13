"""Learning curves of finished runs: those shipped with dragoman, and the user's local table.

A curve holds numbers alone: the sizes of text and model, and the scores after some numbers of
target tokens. The local table is `dragoman/curves/` below XDG_DATA_HOME (`~/.local/share`), one
JSON file per run, which may be copied to others. DRAGOMAN_CURVES=off keeps no table and reads none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dragoman.base.errors import DragomanError
from dragoman.base.files import read_regular, write_whole
from dragoman.base.settings import Section
from dragoman.corpus.manifest import Manifest
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import ORIGIN_FILE, RunDirectory
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts

CURVES_VARIABLE: Final = "DRAGOMAN_CURVES"
_LONGEST: Final = 1 << 20
_SHIPPED: Final = "shipped_curves.json"


class Point(Section):
    """One validation. tokens: target tokens seen until then; dev_loss: nats per target token;
    bleu: perfect ones are a little above 100, as they are rounded."""

    tokens: int = Field(ge=1)
    dev_loss: float | None
    bleu: float | None = Field(ge=0.0, le=100.1)
    bleu_low: float | None = None
    bleu_high: float | None = None


class Curve(Section):
    """The learning curve of one finished run.

    source: the origin of the figures. text: a digest of the direction and the files of the training
    text. epoch_tokens: target tokens of the training text. weights: the number of the model's
    weights without embeddings.
    ended: whether the learning rate had come to the end of its schedule. In the middle of one, a
    model is worse than a shorter run would be at its end (Hoffmann et al. 2022, section 3.1).
    """

    version: Literal[1] = 1
    source: str
    text: str
    languages: tuple[str, str]
    pairs: int = Field(ge=1)
    epoch_tokens: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    weights: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    ended: bool
    points: tuple[Point, ...] = Field(min_length=1)

    @property
    def end(self) -> Point:
        """The last validation."""
        return self.points[-1]


def curve_of(run: RunDirectory, *, source: str) -> Curve | None:
    """The curve of a finished run; None if it did not finish or nothing was validated."""
    facts, recipe, manifest = read_facts(run.path), run.recipe(), Manifest.load(run.path)
    points = tuple(_points(facts))
    if not points or not facts.is_finished or not facts.max_steps:
        return None
    steps = sum(one.steps for one in facts.intervals)
    train = manifest.train
    return Curve(
        source=source,
        text=text_digest(manifest),
        languages=recipe.corpus.directions[0],
        pairs=train.pairs,
        epoch_tokens=train.target_pieces + train.pairs,
        vocab_size=manifest.target_vocab_size,
        weights=inner_weights(recipe),
        batch_tokens=max(1, round(points[-1].tokens / max(steps, 1))),
        ended=facts.last_step >= (recipe.schedule.total_steps or facts.max_steps)
        and recipe.schedule.kind in ("linear", "cosine", "wsd"),
        points=points,
    )


def inner_weights(recipe: Recipe) -> int:
    """Weights of the layers, without embeddings (Kaplan et al. 2020)."""
    model = recipe.model.model_copy(update={"tied_embeddings": "all"})
    size = model.num_parameters(source_vocab_size=1, target_vocab_size=1)
    return size - model.d_model


def text_digest(manifest: Manifest) -> str:
    """The digest of a training text: of its direction and its files."""
    digests = sorted(one.sha256 for one in manifest.sources if one.split == "train")
    return hashlib.sha256(
        " ".join([*manifest.config.directions[0], *digests]).encode()
    ).hexdigest()[:16]


def _points(facts: Facts) -> Iterator[Point]:
    intervals = iter(facts.intervals)
    tokens, step = 0, 0
    for seen in facts.validations:
        while step < seen.step and (one := next(intervals, None)) is not None:
            tokens, step = tokens + (one.target_tokens or 0), one.step
        if tokens:
            yield Point(
                tokens=tokens,
                dev_loss=seen.dev_loss,
                bleu=seen.bleu,
                bleu_low=seen.bleu_low,
                bleu_high=seen.bleu_high,
            )


def table() -> Path | None:
    """The folder of the local table; None if it is switched off, or if the user has no home."""
    if os.environ.get(CURVES_VARIABLE, "").lower() in ("off", "0", "no"):
        return None
    home = os.environ.get("XDG_DATA_HOME", "")
    # The XDG base directory specification wants relative paths ignored.
    try:
        base = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "share"
    except RuntimeError:  # a user without a name, as in containers
        return None
    return base / "dragoman" / "curves"


def source_of(run: RunDirectory) -> str:
    """The origin of the figures of a run on this machine, as text."""
    return f"a run on this machine: {run.path.name}"


def keep(run: RunDirectory) -> None:
    """Add a finished run to the local table.

    A run that began with the weights of another model is not added. A table that cannot be written
    to, or a run whose records cannot be read, is not an error.
    """
    folder = table()
    if folder is None or (run.path / ORIGIN_FILE).exists():
        return
    with suppress(OSError, DragomanError):
        curve = curve_of(run, source=source_of(run))
        if curve is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / f"{run.path.name}.json", curve.model_dump_json(indent=1))


def known_curves() -> list[Curve]:
    """The shipped curves and those of the local table; a file that is not a curve is skipped."""
    shipped = files("dragoman.run").joinpath(_SHIPPED).read_bytes()
    found = TypeAdapter(list[Curve]).validate_json(shipped)
    folder = table()
    local: list[Path] = []
    if folder is not None:
        with suppress(OSError):
            local = sorted(folder.glob("*.json"))
    for file in local:
        with suppress(OSError, ValidationError):
            found.append(Curve.model_validate_json(read_regular(file, limit=_LONGEST)))
    return found
