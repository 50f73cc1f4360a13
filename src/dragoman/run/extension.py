"""A finished run that goes on: a recipe with more steps starts from its weights and optimizer.

The text and all other settings are the same, so the new run is what a longer run would have been,
except for the learning rate if its schedule ends with the run.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.files import file_sha256
from dragoman.base.printable import printable_line
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.sources import Sources
from dragoman.recipe.recipe import Recipe, digest
from dragoman.recipe.run_directory import ORIGIN_FILE, PREPARE_EVENTS, RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.training.checkpoint import CheckpointStore, TrainState, read_state
from dragoman.training.clock import read_budget
from dragoman.training.durable import DIGESTS_FILE

_SAME_RATE: Final = 1.1
"""A learning rate that rises by more than this factor is worth a word."""


def finished_shorter(recipe: Recipe, *, runs: Path) -> RunDirectory | None:
    """The longest finished run of this recipe with fewer steps; None if there is none.

    A run that itself went on from a shorter one counts; one from another model's weights does not.
    """
    finished: list[tuple[int, float, RunDirectory]] = []
    for path in runs.glob(f"{recipe.name}-*/recipe.toml"):
        run = RunDirectory(path.parent)
        # Runs of another version, and runs without a checkpoint, cannot go on.
        with suppress(ConfigError, CheckpointError):
            made_with = run.recipe()
            steps = made_with.train.max_steps
            if (
                steps < recipe.train.max_steps
                and not (run.path / ORIGIN_FILE).exists()
                and digest(_of_length(recipe, steps)) == digest(made_with)
                and _last(run)[1].step == steps
            ):
                finished.append((steps, path.stat().st_mtime, run))
    return max(finished, key=lambda found: found[:2])[2] if finished else None


def advice(recipe: Recipe, *, runs: Path) -> str:
    """How to go on from a shorter, finished run of a recipe instead of a new one, in words.

    "" if there is none, or if a run of this very recipe goes on.
    """
    if RunDirectory.newest(recipe, runs=runs) is not None:
        return ""
    shorter = finished_shorter(recipe, runs=runs)
    if shorter is None:
        return ""
    steps, last = shorter.recipe().train.max_steps, recipe.train.max_steps
    return (
        f"This run starts anew. A run of this recipe has finished {steps:,} of these {last:,} "
        "steps. To go on from it instead, stop this one with Ctrl-C, and start again with extend "
        f"set to\n  {printable_line(shlex.quote(str(shorter.path)))}"
    )


@dataclass(frozen=True, slots=True)
class Extension:
    """A finished run, and the recipe with more steps that goes on from it."""

    run: RunDirectory
    recipe: Recipe
    checkpoint: Path
    steps: int

    @classmethod
    def of(cls, run: RunDirectory, recipe: Recipe) -> Extension:
        """Raises ConfigError if the run cannot go on as this recipe, or if its files have changed,
        CheckpointError if it has no checkpoint, CorpusError if a file is missing."""
        checkpoint, state = _last(run)
        made_with = run.recipe()
        ended_early = state.step < made_with.train.max_steps
        facts = read_facts(run.path) if ended_early else None
        if facts is not None and facts.is_finished and facts.last_step == state.step:
            raise _ended_before(run, state.step)  # whatever its recipe is
        if digest(_of_length(recipe, made_with.train.max_steps)) != digest(made_with):
            raise ConfigError(
                "its recipe differs in more than train.max_steps",
                place=run.path,
                remedy="go on with the recipe of the run, or start from its weights alone: "
                "dragoman train RECIPE --from RUN",
            )
        if ended_early:
            raise ConfigError(
                f"has not finished: it is at step {state.step:,} of {made_with.train.max_steps:,}",
                place=run.path,
                remedy=f"finish it first: dragoman train {shlex.quote(str(run.path))}",
            )
        if recipe.train.max_steps <= state.step:
            raise ConfigError(
                f"has made {state.step:,} steps already",
                place=run.path,
                remedy="set a larger train.max_steps",
            )
        corpus = recipe.corpus
        is_here = not any(one.is_named for one in (*corpus.train, *corpus.valid, *corpus.test))
        manifest = Manifest.load(run.path)
        if is_here and not Sources(corpus, downloads=None).match(manifest):
            raise _changed(run)
        found = cls(run, recipe, checkpoint, state.step)
        if found._rates[1] <= 0.0:
            raise ConfigError(
                f"the learning rate is 0 from step {state.step:,} on, so nothing would be learnt",
                place="schedule.total_steps",
                remedy="set schedule.final_ratio in both recipes, or start anew with more steps",
            )
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of the checkpoint."""
        content = file_sha256(self.checkpoint / DIGESTS_FILE)
        return hashlib.sha256(f"extends {content}".encode()).hexdigest()

    @property
    def _rates(self) -> tuple[float, float]:
        """The learning rate of the last step that was made, and of the next one."""
        return (
            self.run.recipe().learning_rate(self.steps - 1),
            self.recipe.learning_rate(self.steps),
        )

    def says(self) -> str:
        """What happens, in words: above all to the learning rate."""
        before, after = map(units.LEARNING_RATE.text, self._rates)
        steps, last = units.COUNT.text(self.steps), units.COUNT.text(self.recipe.train.max_steps)
        says = f"goes on from step {steps} of {self.run.path} to step {last}, with its optimizer; "
        if self._rates[1] <= _SAME_RATE * self._rates[0]:
            return f"{says}the learning rate goes on at {after}, as in a run of this length"
        return (
            f"{says}the learning rate, which had fallen to {before}, rises to {after}, as at this "
            "step of a run of this length: the loss may rise at first"
        )

    def save(self, draft: RunDirectory) -> None:
        """Copy checkpoints and record into the directory of the new run.

        Raises ConfigError if the text has changed since.
        """
        if Manifest.load(draft.path).digest != Manifest.load(self.run.path).digest:
            raise _changed(self.run)
        shutil.copytree(self.run.checkpoints, draft.checkpoints)
        draft.events.mkdir(exist_ok=True)
        for file in self.run.events.iterdir():
            if file.name != PREPARE_EVENTS:
                shutil.copyfile(file, draft.events / file.name)


def _ended_before(run: RunDirectory, step: int) -> ConfigError:
    """The error for a run that ended before its last step, and not by a signal.

    A clock set its learning rates, or it learnt no more, so no run of a number of steps is its
    continuation.
    """
    by = "by the clock of its budget" if read_budget(run.path) is not None else "early"
    return ConfigError(
        f"ended {by}, at step {step:,}, so its schedule does not go on in more steps",
        place=run.path,
        remedy="start from its weights alone: dragoman train RECIPE --from "
        f"{shlex.quote(str(run.path))}",
    )


def _changed(run: RunDirectory) -> ConfigError:
    return ConfigError(
        "its text has changed since",
        place=run.path,
        remedy="start anew, or start from its weights alone: dragoman train RECIPE --from RUN",
    )


def _of_length(recipe: Recipe, steps: int) -> Recipe:
    train = recipe.train.model_copy(update={"max_steps": steps})
    return recipe.model_copy(update={"train": train})


def _last(run: RunDirectory) -> tuple[Path, TrainState]:
    """The last checkpoint of a run and its state; raises CheckpointError if there is none."""
    path = CheckpointStore(run.checkpoints, run.recipe().checkpoint).choose("last")
    return path, read_state(path)
