"""Text -> shards -> checkpoints -> scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

from dragoman.api.checks import checked, opened_run, optional_path, path_of
from dragoman.api.kinds import (
    CheckpointChoice,
    Count,
    HostsLike,
    ModelLike,
    OnEvent,
    Option,
    Origin,
    Overrides,
    RayAddress,
    RecipeLike,
    RunLike,
    Target,
)
from dragoman.base.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from dragoman.evaluation.metrics import Score
    from dragoman.formats.load import Origin as Model
    from dragoman.recipe.recipe import Recipe, ShippedRecipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.run.extension import Extension
    from dragoman.telemetry.events import Event
    from dragoman.telemetry.session import Session


@checked
def load_recipe(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by its name, from a file, or from a dictionary of its sections.

    source: the name of a shipped recipe, a TOML file, or a dictionary such as
        `{"name": "mine", "corpus": {"train": [{"source": "a.en", "target": "a.de"}]}}`. Paths in a
        dictionary are relative to the working directory, those in a file to the file's folder.
    overrides: values in place of its own, such as "train.max_steps=20".
    Raises ConfigError that names the file and line, or the override, the key and the remedy.
    """
    from dragoman.recipe.recipe import load_recipe as read

    return read(source, overrides)


def recipes() -> list[ShippedRecipe]:
    """List the recipes that come with dragoman, with the purpose of each."""
    from dragoman.recipe.recipe import list_recipes

    return list_recipes()


@checked
def sample_text(folder: Annotated[str | Path, Option("--sample")]) -> list[Path]:
    """Write the text of the demo as two files, help.en and help.de, for a first try.

    folder: the folder for the files; line N of one translates line N of the other.
    Raises ConfigError if one of them is there already.
    """
    import lzma

    from dragoman.base.files import whole_file
    from dragoman.recipe.recipe import SHIPPED_RECIPES

    packed = (SHIPPED_RECIPES / "demo" / "train.tsv.xz").read_bytes()
    lines = lzma.decompress(packed).decode().splitlines()
    sides = zip(*(line.split("\t") for line in lines), strict=True)
    files = [Path(folder) / "help.en", Path(folder) / "help.de"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in files:
        if file.exists():
            raise ConfigError(
                "is there already", place=file, remedy="remove it, or name another folder"
            )
    for file, side in zip(files, sides, strict=True):
        with whole_file(file) as out:
            out.write("".join(f"{text}\n" for text in side).encode())
    return files


@checked
def run_recipe(
    recipe: RecipeLike,
    *,
    overrides: Overrides = (),
    budget: Annotated[str | None, Option(metavar="TIME|MONEY")] = None,
    extend: RunLike | None = None,
    fresh: bool = False,
    ranks: Count | None = None,
    hosts: HostsLike | None = None,
    runs: str | Path = "runs",
    prepared: str | Path | None = None,
    workers: Count | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> RunDirectory:
    """Prepare, train and score, in one go.

    The same command again resumes unfinished parts.

    recipe: a shipped recipe (listed by `dragoman run --recipes`), or a TOML file.
    budget: the time or money for all of it, such as 30min, 6h or "50 USD" with hosts that have a
        price. It chooses the settings that the recipe leaves out, and the model is exported for
        CTranslate2, too.
    overrides, extend, fresh, ranks, hosts, runs, prepared, workers: as for `train`.
    on_event, progress: as for `train`.
    With hosts.toml that lists only this machine, a budget has the price of this machine.
    Returns the run's directory. Raises the errors of `train` and `evaluate`.
    """
    if budget is None:
        run = train(
            recipe,
            overrides=overrides,
            extend=extend,
            fresh=fresh,
            ranks=ranks,
            hosts=hosts,
            runs=runs,
            prepared=prepared,
            workers=workers,
            on_event=on_event,
            progress=progress,
        )
        corpus = run.recipe().corpus
        if corpus.test or corpus.test_pairs:
            from dragoman.telemetry.session import last_ranks

            ranks = ranks or last_ranks(run.path)
            evaluate(run, ranks=ranks, on_event=on_event, progress=progress)
        return run
    from dragoman.api.progress import line_printer, listeners_of, say_nothing, shown
    from dragoman.recipe.budget import money_of, parse_budget
    from dragoman.run.budget import run_in_budget
    from dragoman.run.budget_plan import Place
    from dragoman.run.budget_view import print_plan

    refuse_with_budget(budget, recipe, extend)
    if not isinstance(hosts, str | Path | None):
        raise ConfigError(
            "needs hosts as a file", place=f"budget {budget}", remedy='write hosts="hosts.toml"'
        )
    place = Place.of(None if hosts is None else str(hosts), ranks=ranks)
    return run_in_budget(
        recipe_of(recipe, overrides),
        parse_budget(budget, place.price),
        place,
        runs=Path(runs),
        money=money_of(budget),
        prepared=optional_path(prepared),
        workers=workers,
        fresh=fresh,
        show=shown(progress),
        listeners=listeners_of(on_event, progress),
        show_plan=print_plan if progress else say_nothing,
        print_line=line_printer(progress),
    )


@checked
def prepare(
    recipe: RecipeLike,
    *,
    overrides: Overrides = (),
    prepared: str | Path | None = None,
    workers: Count | None = None,
    ray: RayAddress = None,
    origin: Origin | None = None,
    progress: bool = False,
) -> Path:
    """Turn text files into token shards.

    Every dropped pair has a reason and can be read. The same command again keeps finished parts.

    recipe: as for `run_recipe`.
    overrides, workers, origin: as for `train`.
    prepared: the folder for the shards; None: prepared/NAME-DIGEST.
    ray: let the nodes of a Ray cluster do the work: HOST:PORT of its head, or auto for the cluster
        of this machine; every node must see the folder of the shards under the same path.
    progress: show the progress of the work.
    Returns the folder of the shards. Raises ConfigError, CorpusError and MachineError, and
    CheckpointError if the origin cannot be read.
    """
    from dragoman.api.progress import listeners_of, shown
    from dragoman.corpus.ray_nodes import TEXT_PACKAGES, Nodes, join_ray
    from dragoman.run import run as steps

    if ray is not None and workers is not None:
        raise ConfigError(
            "has no effect: with ray the cores of the nodes do the work",
            place="workers",
            remedy="leave it or ray out",
        )
    loaded, model = adapted(recipe_of(recipe, overrides), origin)
    with nullcontext() if ray is None else join_ray(ray):
        return steps.prepare(
            loaded,
            directory=optional_path(prepared),
            workers=workers if ray is None else Nodes(TEXT_PACKAGES),
            show=shown(progress),
            origin=model,
            listeners=listeners_of(None, progress),
        )


@checked
def train(
    recipe: Annotated[RecipeLike | RunDirectory, Option(metavar="RECIPE|RUN")],
    *,
    overrides: Overrides = (),
    origin: Origin | None = None,
    extend: RunLike | None = None,
    fresh: bool = False,
    ranks: Count | None = None,
    hosts: HostsLike | None = None,
    runs: str | Path = "runs",
    prepared: str | Path | None = None,
    workers: Count | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> RunDirectory:
    """Train a model by a recipe, or go on with its unfinished run.

    It resumes by default, exactly, on any number of ranks. Text that is not prepared yet is
    prepared. A run that was trained on hosts goes on there, unless ranks or other hosts are given.

    recipe: a shipped recipe, a TOML file, or a run to go on with.
    overrides: a value in place of the recipe's, such as train.max_steps=20; may be given again.
    origin: a run or a model in Hugging Face form (exported by dragoman or not), to start
        from its weights and vocabulary.
    extend: a finished run of the same recipe with fewer train.max_steps, to go on from its weights,
        optimizer and place in the text, on as many ranks.
    fresh: start again, resume nothing.
    ranks: processes that train on this machine; None: as many as trained the run before, otherwise
        one per GPU, or 1.
    hosts: hosts.toml, or the inline form 10.0.0.1:2,10.0.0.2:1, to train on several machines.
    runs: the folder of all runs.
    prepared: the folder of the shards; None: prepared/NAME-DIGEST.
    workers: processes that prepare text; None: one per core.
    on_event: called with each event of the run, one at a
        time. An error that it raises ends the training and is raised by this function, too;
        the checkpoints stay.
    progress: show the progress of the training.
    Paths in a recipe that is a dictionary are relative to the working directory. While text is
    prepared, Ctrl-C raises KeyboardInterrupt, as usual in Python.
    Returns the run's directory. Raises ConfigError, CorpusError, CheckpointError, TrainingError and
    MachineError, and InterruptedRunError if SIGINT or SIGTERM ended the training; the same call
    resumes it.
    """
    from dragoman.api.progress import line_printer, listeners_of
    from dragoman.cluster.hosts import hosts_to_resume_on, load_hosts
    from dragoman.run import run as steps
    from dragoman.telemetry.sinks import check_hook

    if isinstance(hosts, str | Path):
        hosts = load_hosts(str(hosts))
    refuse_ranks_with_hosts(ranks, hosts)
    listeners = listeners_of(on_event, progress)
    if _is_run(recipe):
        run = opened_run(recipe)
        refuse_for_run(
            run,
            {
                "overrides": overrides,
                "origin": origin,
                "extend": extend,
                "prepared": prepared,
                "workers": workers,
                "fresh": fresh,
            },
        )
        if hosts is None and ranks is None:
            hosts = hosts_to_resume_on(run.path)
    else:
        loaded = recipe_of(recipe, overrides)
        if hosts is None:  # of hosts, the first one has the hook
            check_hook(loaded.sinks)
        run, before = _started(
            loaded,
            origin,
            extend,
            prepared=prepared,
            runs=Path(runs),
            workers=workers,
            fresh=fresh,
            on_event=on_event,
            progress=progress,
        )
        ranks = ranks or (before if hosts is None else None)
    if hosts is None:
        steps.train(run, ranks=ranks, listeners=listeners)
    else:
        steps.train_on(hosts, run, print_line=line_printer(progress), listeners=listeners)
    return run


def refuse_for_run(run: RunDirectory, given: Mapping[str, object]) -> None:
    """Raise ConfigError for a setting that a run which is named in place of a recipe cannot get."""
    for name in ("overrides", "origin", "extend", "prepared", "workers", "fresh"):
        if given.get(name):
            raise ConfigError(
                "a run keeps the recipe, weights, shards and checkpoints it was started with",
                place=name,
                remedy=f"leave it out, or train {run.recipe_file} with it, as another run",
            )


def refuse_ranks_with_hosts(ranks: int | None, hosts: object) -> None:
    """Raise ConfigError if both are given."""
    if hosts is not None and ranks is not None:
        raise ConfigError(
            "cannot be given with hosts, which set the ranks of each host",
            place="ranks",
            remedy="leave it out",
        )


def refuse_with_budget(budget: str, recipe: object, extend: RunLike | None) -> None:
    """Raise ConfigError for a run or an extension, which a budget excludes."""
    if _is_run(recipe):
        raise ConfigError(
            "a run cannot get a new budget",
            place=f"budget {budget}",
            remedy="leave it out: a run that was made with a budget resumes within that budget",
        )
    if extend is not None:
        raise ConfigError(
            "a budget chooses the steps, so no finished run can go on in it",
            place="extend",
            remedy="leave it out, or the budget",
        )


def _started(
    recipe: Recipe,
    origin: str | Path | None,
    extend: RunLike | None,
    *,
    prepared: str | Path | None,
    runs: Path,
    workers: int | None,
    fresh: bool,
    on_event: OnEvent | None,
    progress: bool,
) -> tuple[RunDirectory, int | None]:
    """The run of a recipe, and the ranks of the finished run from which it goes on, if any."""
    from dragoman.api.progress import line_printer, listeners_of, shown
    from dragoman.run import run as steps
    from dragoman.telemetry.session import last_ranks

    recipe, model, extension = begun_from(recipe, origin, extend)
    if extension is not None:
        line_printer(progress)(extension.says())
    elif progress and origin is None and not fresh and any(runs.glob(f"{recipe.name}-*")):
        from dragoman.run.extension import advice

        if words := advice(recipe, runs=runs):
            line_printer(progress)(words)
    shards = steps.prepare(
        recipe,
        directory=optional_path(prepared),
        workers=workers,
        show=shown(progress),
        origin=model,
        listeners=listeners_of(on_event, progress),
    )
    run = steps.start(
        recipe, prepared=shards, runs=runs, fresh=fresh, origin=model, extension=extension
    )
    before = None
    if extension is not None:
        before = last_ranks(run.path) or last_ranks(extension.run.path)
    return run, before


@checked
def stop(run: RunLike) -> Session:
    """Let a training that another terminal shows save its state and end.

    run: the run that is being trained.
    Returns how it ended. Raises CheckpointError if the run is not being trained, MachineError if
    its process cannot be stopped from here.
    """
    from dragoman.telemetry.session import stop_session

    return stop_session(opened_run(run).path, wait_s=180.0)


@checked
def average(
    run: RunLike,
    count: Annotated[Count, Option("--average", "K")],
    *,
    best: bool = False,
    output: str | Path | None = None,
) -> Path:
    """Average the weights of several checkpoints into one model.

    run: the run of the checkpoints.
    count: how many of the last checkpoints.
    best: take those with the lowest dev loss in place of the last ones.
    output: the folder of the result; None: RUN/checkpoints/average.
    Returns the folder, which `translate` and `export` take as a checkpoint. Raises CheckpointError
    if there are fewer checkpoints.
    """
    from dragoman.base.errors import CheckpointError
    from dragoman.training.average import average_checkpoints
    from dragoman.training.checkpoint import CheckpointStore
    from dragoman.training.durable import step_number

    directory = opened_run(run)
    store = CheckpointStore(directory.checkpoints, directory.recipe().checkpoint)
    found = store.best(count + 1) if best else store.last(count + 1)
    # Step 0 is the model that the training started from: it is not trained yet.
    trained = [path for path in found if step_number(path.name) > 0]
    paths = trained[:count] if best else trained[-count:]
    if len(paths) < count:
        kept, key = ("measured and kept", "best") if best else ("kept", "last")
        raise CheckpointError(
            f"only {len(paths)} of the {count} checkpoints to average were {kept}",
            place=directory.checkpoints,
            remedy=f"average fewer; a run with checkpoint.keep_{key} = {count} keeps enough",
        )
    place = optional_path(output) or directory.checkpoints / "average"
    average_checkpoints(paths, place)
    return place


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
    run: ModelLike,
    *,
    checkpoint: CheckpointChoice = "best",
    source: str | Path | None = None,
    reference: str | Path | None = None,
    test_set: str = "",
    target_language: Target = "",
    languages: Annotated[str, Option(metavar="PAIR")] = "",
    ranks: Count | None = None,
    overrides: Overrides = (),
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> Evaluation:
    """Translate a test set by beam search and score it.

    The scores are BLEU and chrF of sacreBLEU, with signature and interval.

    run: a run, an export or an imported model; the last two need a source and a reference, or the
        name of a test set.
    checkpoint: best, last, the number of a step, or a folder (write ./best if the folder has that
        name). best has the highest BLEU, or the lowest dev loss if BLEU was not measured.
    source: a text to translate; None: the run's own test set.
    reference: the translation of that text.
    test_set: a test set by its name in sacreBLEU's index, such as wmt14 or multi30k/2016, in place
        of source and reference; it is fetched once.
    target_language: the language of the reference, if the model translates into several.
    languages: what the model translates, such as en-fr, if its recipe says something else: BLEU
        cuts words by the language.
    ranks: processes on this machine; None: one per GPU, or 1. An export takes one.
    overrides: a setting to change in the recipe's sections search and evaluate, such as
        search.beam_size=5; may be given again.
    on_event, progress: as for `train`.
    Raises ConfigError, CorpusError, CheckpointError and MachineError.
    """
    from dragoman.api.progress import Calls, listeners_of
    from dragoman.base.disk_errors import check_writable_names
    from dragoman.corpus.directions import target_of
    from dragoman.evaluation.metrics import Score
    from dragoman.formats.bundle import is_bundle
    from dragoman.run import run as steps
    from dragoman.telemetry.events import DirectionScored, MetricScored, TestScored

    path = path_of(run)
    if test_set:
        if source is not None or reference is not None:
            raise ConfigError(
                "is a text of its own, beside source and reference",
                place=f"test set {test_set}",
                remedy="give the name or the two files",
            )
        source, reference = _named_set(test_set, path, target_language, languages)
    if source is not None:  # before hours of search, not after them
        check_writable_names([Path(source).absolute()])
    found: list[Event] = []
    options: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "source": optional_path(source),
        "reference": optional_path(reference),
        "target": target_language,
        "languages": languages,
        "overrides": overrides,
        "listeners": [Calls(found.append), *listeners_of(on_event, progress)],
    }
    if is_export := is_bundle(path):
        from dragoman.inference.scores import score_export  # imports torch

        score_export(path, **options)
    else:
        steps.evaluate(opened_run(run), ranks=ranks, **options)
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in found:
        by_kind.setdefault(event.kind, []).append(event.payload)
    if TestScored.kind not in by_kind:
        raise MachineError("the scores were written and cannot be read", place=path)
    scored = by_kind[TestScored.kind][0]
    scores = _scores(scored)
    for one in by_kind.get(MetricScored.kind, ()):
        scores[one["metric"]] = Score(one["value"], one["low"], one["high"], one["signature"])
    directions = {
        f"{one['source']}-{one['target']}": _scores(one)
        for one in by_kind.get(DirectionScored.kind, ())
    }
    translations = None
    if not is_export:
        directory = opened_run(run)
        trained = directory.recipe().with_languages(languages).corpus.directions
        language = target_of(target_language, trained) if target_language else trained[0].target
        name = f"{scored['name']}.{language}"
        translations = directory.samples if directions else directory.samples / name
    return Evaluation(
        scored["name"], scored["pairs"], scores, translations, scored["decode_s"], directions
    )


def _named_set(name: str, path: Path, target: str, languages: str) -> tuple[Path, Path]:
    """The two texts of a named test set in the languages of a run or an export."""
    from dragoman.corpus.directions import target_of
    from dragoman.corpus.named_sets import fetch_set
    from dragoman.recipe.recipe import load_recipe

    recipe = load_recipe(str(path / "recipe.toml"), is_recorded=True).with_languages(languages)
    directions = recipe.corpus.directions
    wanted = target_of(target, directions)
    source = next(one.source for one in directions if one.target == wanted)
    return fetch_set(name, source_language=source, target_language=wanted)


def _scores(scored: Mapping[str, Any]) -> dict[str, Score]:
    """The scores that are fields of an event: BLEU and chrF."""
    from dragoman.evaluation.metrics import Score

    parts = ("", "_low", "_high", "_signature")
    return {
        metric: Score(*(scored[f"{metric}{part}"] for part in parts)) for metric in ("bleu", "chrf")
    }


def _is_run(recipe: object) -> TypeGuard[RunDirectory | str | Path]:
    """Whether a run was named in place of a recipe."""
    from dragoman.recipe.run_directory import RunDirectory

    is_folder = isinstance(recipe, str | Path) and Path(recipe).is_dir()
    return is_folder or isinstance(recipe, RunDirectory)


def recipe_of(recipe: RecipeLike | RunDirectory, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe with these overrides; raises ConfigError if it is loaded already."""
    from dragoman.recipe.recipe import Recipe
    from dragoman.recipe.recipe import load_recipe as read

    if not isinstance(recipe, Recipe):
        return read(recipe, overrides)  # type: ignore[arg-type]
    if overrides:
        raise ConfigError(
            "cannot change a recipe that is loaded",
            place="overrides",
            remedy="give them to load_recipe",
        )
    return recipe


def begun_from(
    recipe: Recipe, origin: str | Path | None, extend: RunLike | None
) -> tuple[Recipe, Model | None, Extension | None]:
    """What `adapted` gives, and the finished run to go on from if there is one.

    Raises ConfigError if both are named; the errors of `adapted` and `Extension.of`.
    """
    if origin is not None and extend is not None:
        raise ConfigError(
            "a run starts from one model", place="extend", remedy="leave out extend or origin"
        )
    recipe, model = adapted(recipe, origin)
    if extend is None:
        return recipe, model, None
    from dragoman.run.extension import Extension  # imports torch

    return recipe, model, Extension.of(opened_run(extend), recipe)


def adapted(recipe: Recipe, origin: str | Path | None) -> tuple[Recipe, Model | None]:
    """The recipe with the shape of the model to start from, and this model if there is one.

    Raises ConfigError and CheckpointError, as `Origin.open` and `Origin.adapt`.
    """
    if origin is None:
        if recipe.train.freeze:
            raise ConfigError(
                "the frozen weights would stay random, because the training starts from no model",
                place="train.freeze",
                remedy="name the model to start from, or leave the key out",
            )
        return recipe, None
    from dragoman.formats.load import Origin as Model

    model = Model.open(Path(origin), recipe)
    return model.adapt(recipe), model
