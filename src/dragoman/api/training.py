"""Text -> shards -> checkpoints -> scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dragoman.api.arguments import (
    OF_CALLER,
    CheckpointChoice,
    Count,
    Flag,
    RecipeLike,
    RunLike,
    checked,
    opened_run,
)
from dragoman.api.notebook import NotebookProgress, in_notebook, preparing_in_notebook
from dragoman.base.disk_errors import check_writable_names
from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.terminal import open_console
from dragoman.cluster.hosts import Hosts, load_hosts
from dragoman.corpus.prepare import OnProgress
from dragoman.formats.bundle import is_bundle
from dragoman.recipe.budget import money_of, parse_budget
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.recipe import load_recipe as read_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run import run as steps
from dragoman.run.progress import preparing
from dragoman.telemetry.console import ConsoleSink
from dragoman.telemetry.events import (
    DirectionScored,
    Event,
    EventListener,
    MetricScored,
    TestScored,
)

if TYPE_CHECKING:
    from dragoman.evaluation.metrics import Score
    from dragoman.formats.load import Origin

OnEvent: TypeAlias = Callable[[Event], None]


@checked
def load_recipe(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by its name, from a file, or from a dictionary of its sections.

    source: the name of a shipped recipe, a TOML file, or a dictionary such as
        `{"name": "mine", "corpus": {"train": [{"source": "a.en", "target": "a.de"}]}}`. Paths in a
        dictionary are relative to the working directory, those in a file to the file's folder.
    overrides: values in place of its own, such as "train.max_steps=20".
    Raises ConfigError that names the file and line, or the override, the key and the remedy.
    """
    return read_recipe(source, overrides)


@checked
def prepare(
    recipe: RecipeLike,
    *,
    directory: str | Path | None = None,
    workers: Count | None = None,
    origin: str | Path | None = None,
    progress: Flag = False,
) -> Path:
    """Text files -> token shards; returns their directory. Finished parts are kept.

    directory: the folder for the shards; None: `prepared/NAME-DIGEST`.
    workers: processes; None: all cores.
    origin: a run, a bundle or a model in Hugging Face form (exported by dragoman or not), whose
        vocabulary is kept.
    progress: show the progress of the work.
    Raises ConfigError, CorpusError and MachineError, and CheckpointError if the origin cannot be
    read.
    """
    recipe, model = _adapted(recipe, origin)
    with shown(progress) as on_progress:
        return steps.prepare(
            recipe,
            directory=_path(directory),
            workers=workers,
            progress=on_progress,
            origin=model,
        )


@checked
def train(
    recipe: RecipeLike | RunDirectory,
    *,
    origin: str | Path | None = None,
    prepared: str | Path | None = None,
    runs: str | Path = "runs",
    workers: Count | None = None,
    ranks: Count | None = None,
    hosts: str | Path | Hosts | None = None,
    budget: str | None = None,
    fresh: Flag = False,
    on_event: OnEvent | None = None,
    progress: Flag = False,
) -> RunDirectory:
    """Train a recipe, or go on with its unfinished run; returns the run's directory.

    recipe: a recipe, or a run to go on with. A dictionary is read as by `load_recipe`: paths are
        relative to the working directory. Text that is not prepared yet is prepared.
    origin: a run, a bundle or a model in Hugging Face form (exported by dragoman or not), to start
        from its weights and vocabulary.
    prepared: directory of the shards; None: `prepared/NAME-DIGEST`.
    runs: the folder of all runs.
    workers: processes that prepare text; None: all cores.
    ranks: processes on this machine; None: one for each GPU, or one without GPUs.
    hosts: hosts.toml or `10.0.0.1:2,10.0.0.2:1`, to train on several machines.
    budget: the time or money for all of it, such as "30min", "6h", or "50 USD" with hosts that
        have a price. It chooses the settings that the recipe leaves out, and the model is scored
        and exported for CTranslate2, too.
    fresh: start again, resume nothing.
    on_event: called with each event of rank 0, and with the alerts of the other ranks, one at a
        time. An error that it raises ends the training and is raised by this function, too;
        the checkpoints stay.
    progress: show the progress of the training.
    Raises ConfigError, CorpusError, CheckpointError, TrainingError and MachineError.
    InterruptedRunError is raised if SIGINT or SIGTERM ended the training; the same call resumes it.
    While text is prepared, Ctrl-C raises KeyboardInterrupt, as usual in Python.
    """
    if budget is not None:
        return _in_budget(
            recipe,
            budget,
            hosts,
            origin=origin,
            prepared=_path(prepared),
            runs=Path(runs),
            workers=workers,
            ranks=ranks,
            fresh=fresh,
            on_event=on_event,
            progress=progress,
        )
    if hosts is not None and ranks is not None:
        raise ConfigError(
            "`ranks` cannot be given with `hosts`, which sets the ranks of each host",
            remedy="leave `ranks` out",
        )
    if isinstance(hosts, str | Path):
        hosts = load_hosts(str(hosts))
    run = _named_run(recipe)
    if run is not None:
        given = {"origin": origin, "prepared": prepared, "workers": workers, "fresh": fresh}
        for name, value in given.items():
            if value:
                raise ConfigError(
                    "a run keeps the weights, shards and checkpoints it was started with",
                    place=name,
                    remedy=f"leave it out, or train {run.recipe_file} with it, as another run",
                )
    else:
        assert not isinstance(recipe, RunDirectory)
        recipe, model = _adapted(recipe, origin)
        with shown(progress) as on_progress:
            shards = steps.prepare(
                recipe,
                directory=_path(prepared),
                workers=workers,
                progress=on_progress,
                origin=model,
            )
        run = steps.start(recipe, prepared=shards, runs=Path(runs), fresh=fresh, origin=model)
    listeners = listeners_of(on_event, progress)
    if hosts is None:
        steps.train(run, ranks=ranks, listeners=listeners)
        return run
    print_line = open_console(outlives_reader=True).print if progress else say_nothing
    steps.train_on(hosts, run, print_line=print_line, listeners=listeners)
    return run


def _in_budget(
    recipe: RecipeLike | RunDirectory,
    budget: str,
    hosts: str | Path | Hosts | None,
    *,
    origin: str | Path | None,
    prepared: Path | None,
    runs: Path,
    workers: int | None,
    ranks: int | None,
    fresh: bool,
    on_event: OnEvent | None,
    progress: bool,
) -> RunDirectory:
    if isinstance(recipe, RunDirectory) or _named_run(recipe):
        raise ConfigError(
            "a run cannot get a new budget",
            place=f"budget {budget}",
            remedy="leave it out: a run that was made with a budget resumes within that budget",
        )
    if origin is not None:
        raise ConfigError(
            "the model to start from sets the size that a budget would choose",
            place=f"budget {budget}",
            remedy="leave out origin or the budget",
        )
    if isinstance(hosts, Hosts):
        raise ConfigError(
            "needs hosts as a file", place=f"budget {budget}", remedy='write hosts="hosts.toml"'
        )
    from dragoman.run.budget import Place, run_in_budget  # torch, to time the steps of models

    place = Place.of(None if hosts is None else str(hosts), ranks=ranks)
    return run_in_budget(
        recipe if isinstance(recipe, Recipe) else read_recipe(recipe),
        parse_budget(budget, place.price),
        place,
        runs=runs,
        money=money_of(budget),
        prepared=prepared,
        workers=workers,
        fresh=fresh,
        show=shown(progress),
        listeners=listeners_of(on_event, progress),
        show_plan=say_nothing,
        print_line=open_console(outlives_reader=True).print if progress else say_nothing,
    )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The translations and scores of a test set.

    name: the name of the text. pairs: how many pairs were scored.
    scores: by metric, such as "bleu" and "chrf".
    translations: the file of the translations, one per line; for a test set of several directions,
        the folder with a file for each; None for an export, whose folder stays as it is.
    decode_s: seconds to translate the whole text.
    directions: scores of each direction, such as "en-de", if there are several; `scores` are their
        means then, over those with training text.
    """

    name: str
    pairs: int
    scores: Mapping[str, Score]
    translations: Path | None
    decode_s: float
    directions: Mapping[str, Mapping[str, Score]] = field(default_factory=dict)


@checked
def evaluate(
    run: RunLike,
    *,
    checkpoint: CheckpointChoice = "best",
    source: str | Path | None = None,
    reference: str | Path | None = None,
    target_language: str = "",
    ranks: Count | None = None,
    overrides: Sequence[str] = (),
    on_event: OnEvent | None = None,
    progress: Flag = False,
) -> Evaluation:
    """Translate a test set by beam search and score it with sacreBLEU's metrics.

    run: a run, an export or an imported model; the last two need a source and a reference.
    checkpoint: which weights of a run to use: "best", "last", a step or a checkpoint's directory.
    source, reference: a text and its translation; None: the run's own test set.
    target_language: the language of the reference, if the model translates into several.
    ranks: processes on this machine; None: one for each GPU, or one without GPUs. An export takes
        one.
    overrides: settings to change in the recipe's sections search and evaluate, such as
        "search.beam_size=5".
    on_event, progress: as for `train`.
    Raises ConfigError, CorpusError, CheckpointError and MachineError.
    """
    from dragoman.evaluation.metrics import Score  # imports sacreBLEU, which training does not need

    if source is not None:  # before hours of search, not after them
        check_writable_names([Path(source).absolute()])
    found: list[Event] = []
    listeners = [_Calls(found.append), *listeners_of(on_event, progress)]
    if isinstance(run, RunDirectory) or not is_bundle(Path(run)):
        run = opened_run(run)
        steps.evaluate(
            run,
            checkpoint=str(checkpoint),
            source=_path(source),
            reference=_path(reference),
            target=target_language,
            ranks=ranks,
            overrides=overrides,
            listeners=listeners,
        )
    else:
        from dragoman.serve.score_export import score_export  # imports torch

        score_export(
            Path(run),
            checkpoint=str(checkpoint),
            source=_path(source),
            reference=_path(reference),
            target=target_language,
            overrides=overrides,
            listeners=listeners,
        )
    scored = next((event.payload for event in found if event.kind == TestScored.kind), None)
    if scored is None:
        raise MachineError("the scores were written and cannot be read", place=str(run))
    scores = _scores(scored)

    for further in (event.payload for event in found if event.kind == MetricScored.kind):
        scores[further["metric"]] = Score(
            further["value"], further["low"], further["high"], further["signature"]
        )
    directions = {
        f"{one['source']}-{one['target']}": _scores(one)
        for one in (event.payload for event in found if event.kind == DirectionScored.kind)
    }
    translations = None
    if isinstance(run, RunDirectory):
        language = target_language or run.recipe().corpus.directions[0].target
        translations = run.samples if directions else run.samples / f"{scored['name']}.{language}"
    return Evaluation(
        name=scored["name"],
        pairs=scored["pairs"],
        scores=scores,
        translations=translations,
        decode_s=scored["decode_s"],
        directions=directions,
    )


def _scores(scored: Mapping[str, Any]) -> dict[str, Score]:
    """The scores that are fields of an event: BLEU and chrF."""
    from dragoman.evaluation.metrics import Score

    return {
        metric: Score(
            scored[metric],
            scored[f"{metric}_low"],
            scored[f"{metric}_high"],
            scored[f"{metric}_signature"],
        )
        for metric in ("bleu", "chrf")
    }


def _named_run(recipe: RecipeLike | RunDirectory) -> RunDirectory | None:
    """The run that was named in place of a recipe; None if a recipe was named."""
    if isinstance(recipe, RunDirectory):
        return recipe
    if isinstance(recipe, str | Path) and Path(recipe).is_dir():
        return RunDirectory.open(Path(recipe))
    return None


def _adapted(recipe: RecipeLike, origin: str | Path | None) -> tuple[Recipe, Origin | None]:
    """The recipe, with the shape of the model to start from if there is one."""
    recipe = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    if origin is None:
        if recipe.train.freeze:
            raise ConfigError(
                "the frozen weights would stay random, because the training starts from no model",
                place="train.freeze",
                remedy="name the model to start from with --from, or leave the key out",
            )
        return recipe, None
    from dragoman.formats.load import Origin

    model = Origin.open(Path(origin), recipe)
    return model.adapt(recipe), model


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def shown(progress: bool) -> AbstractContextManager[OnProgress | None]:
    """A function that shows the progress of a preparation; None without `progress`."""
    if not progress:
        return nullcontext()
    return preparing_in_notebook() if in_notebook() else preparing()


def listeners_of(on_event: OnEvent | None, progress: bool) -> list[EventListener]:
    """The listeners of a training: a function, and a view for people."""
    listeners: list[EventListener] = [] if on_event is None else [_Calls(on_event)]
    if progress:
        listeners.append(NotebookProgress() if in_notebook() else ConsoleSink())
    return listeners


@dataclass(frozen=True, slots=True)
class _Calls(EventListener):
    """A function as a listener."""

    function: OnEvent

    def __call__(self, event: Event) -> None:
        try:
            self.function(event)
        except OSError as error:
            error.add_note(OF_CALLER)
            raise


def say_nothing(_: object) -> None:
    """Do nothing, in place of a function that prints a line."""
