"""Is a healthy fine-tuning ever stopped as diverged, and is a diverging one always stopped?

    benchmarks/divergence.py [--folder DIR] [--only WORD]

Trains a small model on the demo's text for 2,500 steps, then continues from it (`--from`): ten
healthy runs at a constant rate, two at ten times that, which lifts the loss for a while, and ten in
which something goes wrong at a known step. Prints for each its losses, what `dragoman report` says
of it, and where and with which words it was stopped. A healthy run that is stopped is an error, and
so is a fault that is not stopped within 200 steps. Some minutes on one idle core.

Faults are injected from outside: into the learning rate, the batches or one weight or gradient.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

import torch

from dragoman.base.errors import DivergenceError
from dragoman.corpus.shards import EOS
from dragoman.data.batch import Batch
from dragoman.data.loader import Update, merged
from dragoman.formats.load import Origin
from dragoman.inference.translation import new_model
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.health import examine
from dragoman.reporting.reading import read_facts
from dragoman.reporting.verdicts import judge
from dragoman.run import run as steps

VOCAB_SIZE = 1000
MODEL = ["model.d_model=64", "model.d_ffn=256", "model.encoder_layers=1", "model.decoder_layers=1"]
MODEL += [f"corpus.subword.vocab_size={VOCAB_SIZE}"]
LOOK = [
    "data.batch_tokens=512",
    "evaluate.bleu_pairs=0",
    "train.log_every_steps=20",
    "train.validate_every_steps=50",
]
BASE = [*MODEL, *LOOK, "train.max_steps=2500", "schedule.warmup_steps=100"]
TUNED = [*LOOK, "schedule.kind=constant", "schedule.warmup_steps=0", "checkpoint.every_steps=50"]
STEPS = 320
PLANTED_AT = 100
MOST_STEPS = 200
"""From the plant to the stop."""
VERDICTS = ("diverged", "rate_too_high", "rate_too_low", "trained", "plateau")

Spoil = Callable[[Update, torch.nn.Module], Update]


@dataclass(frozen=True)
class Case:
    """One run. factor: of the learning rate from step `planted_at` on."""

    name: str
    rate: float
    seed: int
    planted_at: int | None = None
    factor: float = 1.0
    spoil: Spoil | None = None
    settings: tuple[str, ...] = ()
    healthy: bool = False


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    folder = options.folder or Path(mkdtemp(prefix="dragoman-divergence-"))
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):
        origin = Origin.open(_base())
        wrong = [
            case.name for case in _cases() if options.only in case.name and not _run(case, origin)
        ]
    print(f"wrong: {', '.join(wrong) or 'none'}")
    return len(wrong)


def _cases() -> list[Case]:
    healthy = [
        Case(f"healthy, constant {rate:g}, seed {seed}", rate, seed)
        for rate in (1e-4, 3e-4)
        for seed in range(1, 6)
    ]
    at = PLANTED_AT
    return [
        *healthy,
        Case("healthy, rate x 10 from the start", 3e-4, 1, 0, factor=10, healthy=True),
        Case("healthy, rate x 10 midway", 3e-4, 2, at, factor=10, healthy=True),
        Case("rate x 50 from the start", 3e-4, 1, 0, factor=50),
        Case("rate x 50 midway", 3e-4, 3, at, factor=50),
        Case("rate x 200 from the start", 3e-4, 2, 0, factor=200),
        Case("pieces of targets shuffled", 3e-4, 4, at, spoil=_shuffled_pieces),
        Case("rate x 200 midway", 3e-4, 5, at, factor=200),
        Case("targets shuffled", 3e-4, 6, at, spoil=_shuffled),
        Case("targets are garbage", 3e-4, 7, at, spoil=_garbage),
        Case("one weight is NaN", 3e-4, 8, at, spoil=_nan_weight),
        Case("one gradient overflows", 3e-4, 9, at, spoil=_infinite_gradient),
        Case(
            "fp16, one weight is NaN",
            3e-4,
            10,
            at,
            spoil=_nan_weight,
            settings=("train.precision=fp16",),
        ),
    ]


def _base() -> Path:
    """The model that is trained on; made once in the working directory."""
    recipe = load_recipe("demo", BASE)
    shards = steps.prepare(recipe)
    run = steps.start(recipe, prepared=shards, runs=Path("base"))
    with contextlib.redirect_stdout(io.StringIO()):
        steps.train(run, ranks=1)
    return run.path


def _run(case: Case, origin: Origin) -> bool:
    """Train, print the line; whether it went as it should."""
    settings = [
        *TUNED,
        *case.settings,
        f"schedule.peak_learning_rate={case.rate}",
        f"train.seed={case.seed}",
        f"train.max_steps={STEPS}",
    ]
    recipe = origin.adapt(load_recipe("demo", settings))
    shards = steps.prepare(recipe, origin=origin)
    run = steps.start(recipe, prepared=shards, runs=Path("tuned"), origin=origin, fresh=True)
    stopped: DivergenceError | None = None
    with contextlib.redirect_stdout(io.StringIO()), _planted(case):
        try:
            steps.train(run, ranks=1)
        except DivergenceError as error:
            stopped = error
    print(f"{case.name:32} {_loss_path(run)}")
    facts = read_facts(run.path)
    verdicts = {one.key: one.answer for one in [*judge(facts), *examine(facts)]}
    print(f"    report: {', '.join(f'{key} {verdicts[key]}' for key in VERDICTS)}")
    if stopped is None:
        print("    not stopped")
        return case.planted_at is None or case.healthy
    print(f"    {stopped}", flush=True)
    step = facts.last_step
    planted = case.planted_at is not None and not case.healthy
    return planted and step - (case.planted_at or 0) <= MOST_STEPS


def _loss_path(run: RunDirectory) -> str:
    facts = read_facts(run.path)
    losses = [f"{one.train_loss:.2f}" for one in facts.intervals if one.train_loss is not None]
    dev = [f"{one.dev_loss:.3f}" for one in facts.validations if one.dev_loss is not None]
    return f"dev {' '.join(dev)}; training {' '.join(losses)}"


@contextlib.contextmanager
def _planted(case: Case) -> Iterator[None]:
    """Let the worker train with the fault of a case."""
    if case.planted_at is None:
        yield
        return
    at, model = case.planted_at, _ModelOfRun()

    as_written = Recipe.learning_rate

    def planted_rate(recipe: Recipe, step: int, *, max_steps: int | None = None) -> float:
        rate = as_written(recipe, step, max_steps=max_steps)
        return rate * (case.factor if step >= at else 1.0)

    def planted_updates(
        updates: Iterator[Update], every: int, *, max_steps: int
    ) -> Iterator[Update]:
        for update in merged(updates, every, max_steps=max_steps):
            spoils = case.spoil is not None and update.update_index >= at
            yield case.spoil(update, model.found) if spoils and case.spoil else update

    def kept_model(*arguments: object) -> torch.nn.Module:
        model.found = new_model(*arguments)  # type: ignore[arg-type]
        return model.found

    with (
        mock.patch.object(Recipe, "learning_rate", planted_rate),
        mock.patch("dragoman.training.trainer.merged", planted_updates),
        mock.patch("dragoman.run.worker.new_model", kept_model),
    ):
        yield


class _ModelOfRun:
    found: torch.nn.Module


def _with_targets(update: Update, change: Callable[[Batch], Batch]) -> Update:
    return replace(update, micro_batches=[change(batch) for batch in update.micro_batches])


def _shuffled(update: Update, _model: torch.nn.Module) -> Update:
    """Every source gets the translation of another sentence of its batch."""

    def change(batch: Batch) -> Batch:
        order = torch.randperm(len(batch.target_BT))
        return replace(
            batch,
            decoder_input_BT=batch.decoder_input_BT[order],
            target_BT=batch.target_BT[order],
            target_lengths_B=batch.target_lengths_B[order],
        )

    return _with_targets(update, change)


def _shuffled_pieces(update: Update, _model: torch.nn.Module) -> Update:
    """Every target has its pieces in another order; the decoder is shown the true one."""

    def change(batch: Batch) -> Batch:
        target = batch.target_BT.clone()
        for row, length in zip(target, batch.target_lengths_B.tolist(), strict=True):
            row[: length - 1] = row[torch.randperm(length - 1)]
        return replace(batch, target_BT=target)

    return _with_targets(update, change)


def _garbage(update: Update, _model: torch.nn.Module) -> Update:
    """Every target piece is drawn by chance."""

    def change(batch: Batch) -> Batch:
        drawn = torch.randint_like(batch.target_BT, EOS + 1, VOCAB_SIZE)
        return replace(batch, target_BT=torch.where(batch.target_BT > EOS, drawn, batch.target_BT))

    return _with_targets(update, change)


def _nan_weight(update: Update, model: torch.nn.Module) -> Update:
    with torch.no_grad():
        next(model.parameters())[7, 7] = math.nan
    return update


def _infinite_gradient(update: Update, model: torch.nn.Module) -> Update:
    weight = list(model.parameters())[-1]
    weight.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    return update


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="keep base model and runs here")
    parser.add_argument("--only", default="", help="cases whose name has this word")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
