"""Prints the forecast of a run on one screen: its text, model, memory, disk and hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from rich.console import RenderableType
from rich.text import Text

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.terminal import open_console
from dragoman.cli.console import facts_table, most_disk
from dragoman.corpus.directions import listed
from dragoman.recipe.estimate import Estimate, Memory, estimate
from dragoman.recipe.recipe import Recipe, dump_toml
from dragoman.recipe.text_size import TextSize, training_text
from dragoman.telemetry.host import DISTURBING_SHARE

if TYPE_CHECKING:
    from dragoman.run.extension import Extension

_MANY_EPOCHS: Final = 50
_LONG_S: Final = 86_400.0


def print_dry_run(
    recipe: Recipe,
    *,
    name: str,
    ranks: int | None = None,
    extension: Extension | None = None,
    is_here: bool = True,
    with_recipe: bool = False,
) -> None:
    """Print the forecast of a run.

    name: the recipe as the user named it. ranks: None: one for each GPU of this machine, or one.
    extension: the finished run from which it goes on: only the steps after it take time.
    is_here: this machine will train, so that it is timed. with_recipe: print the whole recipe
    first, with all defaults.
    """
    console = open_console()
    if with_recipe:
        print_recipe(recipe)
    ranks = ranks or _default_ranks()
    taken, text = estimate(recipe, world_size=ranks), training_text(recipe)
    epochs = None
    if text and text.pairs:
        epochs = taken.target_tokens / (text.target_pieces * recipe.data.share)
    steps = recipe.train.max_steps - (0 if extension is None else extension.steps)
    run_s, timed = None, "dragoman plan says, with --hosts"
    if is_here:
        run_s, timed = _time(recipe, ranks, steps)
    languages = recipe.corpus.told_by_names or listed(recipe.corpus.directions)
    console.print(
        facts_table(
            [
                ("languages", Text(printable_line(languages))),
                *_text(text, epochs),
                *_needs(taken),
                ("time", timed),
            ]
        )
    )
    if extension is not None:
        console.print(Text(f"\n{printable_line(extension.says())}"), soft_wrap=True)
        return
    if (epochs or 0) > _MANY_EPOCHS or (run_s or 0) > _LONG_S:
        why = "That is long."
        if (run_s or 0) <= _LONG_S:
            why = f"{epochs:,.0f} epochs are many: the model may learn the text by heart."
        advice = f"{why} For the best model of a given time: dragoman run {name} --budget 6h"
        console.print(Text(f"\n{advice}"), soft_wrap=True)


def print_recipe(recipe: Recipe) -> None:
    """Print the whole recipe, with all defaults."""
    console = open_console()
    console.print(dump_toml(recipe).rstrip("\n"), "", sep="\n", soft_wrap=True)


def _default_ranks() -> int:
    try:
        from dragoman.run.worker import default_ranks
    except ImportError:
        return 1
    return default_ranks()


def _time(recipe: Recipe, ranks: int, steps: int) -> tuple[float | None, str]:
    """Seconds for so many steps on this machine, and the same in words."""
    try:
        from dragoman.run.speed import timed_here
    except ImportError:
        return None, "not known: PyTorch is not installed"
    here = timed_here(recipe, ranks=ranks)
    run_s = here.step_s * steps
    says = f"{units.DURATION.text(run_s)} of training on this machine, as timed just now"
    if here.others_share > DISTURBING_SHARE:
        says += f"; other programs used {units.SHARE.text(here.others_share)} of its processors"
    return run_s, says


def _text(text: TextSize | None, epochs: float | None) -> Iterable[tuple[str, RenderableType]]:
    if text is None or epochs is None:
        yield "pairs", "not known before the text is fetched"
        return
    about = "" if text.is_exact else "about "
    yield "pairs", f"{about}{units.COUNT.text(text.pairs)}, before they are cleaned"
    yield "epochs", f"at most about {epochs:,.{int(epochs < _MANY_EPOCHS)}f}"


def _needs(taken: Estimate) -> Iterable[tuple[str, RenderableType]]:
    tokens = units.COUNT.text(taken.target_tokens_per_update)
    yield "parameters", units.COUNT.text(taken.num_parameters)
    yield "steps", f"{units.COUNT.text(taken.num_updates)} of at most {tokens} target tokens"
    yield "memory a rank", _memory(taken.memory)
    yield "disk", _disk(taken)


def _memory(memory: Memory) -> str:
    parts = (
        f"{field.name.removesuffix('_bytes')} {units.SIZE.text(getattr(memory, field.name))}"
        for field in fields(memory)
        if getattr(memory, field.name)
    )
    total = units.SIZE.text(memory.total_bytes)
    return f"{total} ({', '.join(parts)}), and about 0.5 GB for Python and PyTorch"


def _disk(taken: Estimate) -> str:
    text = f"at most {most_disk(taken.disk)}"
    if taken.shards_bytes is None:
        return f"{text}; the size of the shards is not known before the text is here"
    return f"{text}; about {units.SIZE.text(taken.shards_bytes)} of shards"
