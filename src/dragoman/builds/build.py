"""`dragoman build`: corpora -> shards -> models -> the best one to serve.

    builds/en-de/
        build.toml   corpora.tsv            the plan; all corpora, each with the reason for its use
        build.html   build.md               the cost and the gain of each stage
        model   model-student               links to the best export and to that of the student
        clock.json   stages/                when it began; a record of each stage
        downloads/   shards/   back/   student/   runs/

Stages are done in order, each once. The result of a stage is whole or absent; a stage that was
killed resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dragoman.api.distillation import digest_of_text, plain_sources
from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, DivergenceError, MachineError
from dragoman.base.files import try_lock
from dragoman.builds import translation
from dragoman.builds.plan import FILE as PLAN_FILE
from dragoman.builds.plan import BuildPlan, PlannedCorpus, StageName
from dragoman.builds.planning import index_file
from dragoman.builds.report import write_report
from dragoman.builds.stages import (
    BuildStage,
    Clock,
    OverError,
    Stages,
    digest_of,
    forget_clock,
    read_stage,
)
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import OnProgress
from dragoman.corpus.sources import fetch, fetch_monolingual, is_as_fetched
from dragoman.recipe.budget import keys_set, parse_budget
from dragoman.recipe.recipe import Recipe, digest, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run import run as steps
from dragoman.run.budget import (
    BudgetPlan,
    Place,
    TooSmallError,
    check_exports,
    rounded_up,
    run_in_budget,
)
from dragoman.run.choose import vocabulary
from dragoman.telemetry.events import EventListener

MODEL: Final = "model"
STUDENT: Final = "model-student"
_DOWNLOADS: Final = "downloads"
_HELD_OUT_SHARE: Final = 0.05
_HELD_OUT: Final = (50, 1000)
"""The least and the most pairs of the training text that become a dev or test set if there is none;
the number between is the share above."""
_TAG: Final = "<bt>"
_MORE_TEXT: Final[tuple[StageName, ...]] = ("reverse", "back-translate", "train-more")
_SMALLER: Final[tuple[StageName, ...]] = ("translate", "student")
_SUFFIXES: Final = {"train-more": "-more", "student": "-student"}
"""Endings of the names of recipes, and so of runs."""


@dataclass(frozen=True, slots=True)
class Views:
    """The functions that show a build to people.

    print_line: prints a line. show: shows the progress of a preparation. show_plan: shows the plan
    of a training. listeners: called with the events of a training. bars: whether translations of
    monolingual text have a progress bar.
    """

    print_line: Callable[[str], None]
    show: Callable[[], AbstractContextManager[OnProgress | None]]
    show_plan: Callable[[BudgetPlan], None]
    listeners: Callable[[], Sequence[EventListener]]
    bars: bool


def build(
    plan: BuildPlan,
    directory: Path,
    place: Place,
    *,
    began: float,
    workers: int | None,
    views: Views,
) -> tuple[list[BuildStage], Clock]:
    """Do all stages of a plan that are not done yet; returns their records and the clock.

    began: when the command was given, in UTC seconds since 1970: a new clock starts then.
    Raises ConfigError if the budget is too small, MachineError if another process builds in the
    directory, and the errors of the stages.
    """
    budget_s = parse_budget(plan.budget, place.price)
    check_exports()
    index = index_file(plan.index, directory)
    with _locked(directory):
        clock = Clock.of(directory, budget_s, began=began)
        builder = _Builder(plan, directory.resolve(), place, index, workers, views, clock)
        try:
            return builder.all_stages(), clock
        except OverError as error:
            forget_clock(directory)  # nothing has been trained: see `_optional`
            raise ConfigError(
                error.problem,
                place=error.place,
                remedy="run it again: the clock starts again, and finished parts are kept; or "
                f"write a larger budget into {directory / PLAN_FILE}, such as "
                f"{units.DURATION.text(rounded_up(2 * budget_s))}",
            ) from error
        except TooSmallError as error:
            forget_clock(directory)
            shares = plan.shares()
            whole_s = error.needed_s / shares["train"]
            share_left = 1 - shares["fetch"] - shares["clean"]  # when the training begins
            needed_s = rounded_up(max(whole_s, clock.used_s + share_left * whole_s))
            raise ConfigError(
                "the budget is too small to train a useful model",
                place=directory / PLAN_FILE,
                remedy=f'write budget = "{units.DURATION.text(needed_s)}" there, and run it again '
                "without --budget: finished downloads are kept",
            ) from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with disk_errors_named(directory), (directory / ".lock").open("ab") as file:
        if not try_lock(file):
            raise MachineError(
                "another process builds here", place=directory, remedy="wait for it, or stop it"
            )
        yield


class _Builder:
    """The stages of one build, each with its input from those before it."""

    def __init__(
        self,
        plan: BuildPlan,
        directory: Path,
        place: Place,
        index: Path | None,
        workers: int | None,
        views: Views,
        clock: Clock,
    ) -> None:
        self.plan = plan
        self.directory = directory
        self.place = place
        self.index = index
        self.workers = workers
        self.views = views
        self.done: list[BuildStage] = []
        self.stages = Stages(directory, plan, clock, self._ended)

    def all_stages(self) -> list[BuildStage]:
        """Do all stages in their order; each uses the results of those before it."""
        shares = self.plan.shares()
        fetched = self._fetch()
        recipe = self._recipe(fetched)
        self._clean(recipe)
        models = [self._train("train", recipe)]
        if not (self.directory / MODEL).is_symlink():
            self._link(MODEL, models[0])  # there is a model, even if the stages that follow fail
        if "reverse" in shares and not self._were_left_out(*_MORE_TEXT):
            with self._optional(*_MORE_TEXT):
                models += self._with_more_text(recipe, fetched)
        best = max(models, key=lambda one: one.facts.get("dev_bleu") or 0.0)
        self._link(MODEL, best)
        if "student" in shares and not self._were_left_out(*_SMALLER):
            with self._optional(*_SMALLER):
                self._student(recipe, best)
        write_report(
            self.directory, self.plan, self._records(), self.stages.clock, self.place.price
        )
        return self._records()

    def _fetch(self) -> BuildStage:
        asked = digest_of([(one.id, one.use) for one in self.plan.corpus])
        stage = self._do("fetch", asked, self._fetch_all)
        for text in stage.facts["texts"]:
            folder = self.directory / _DOWNLOADS / text["id"]
            if not is_as_fetched(folder):
                raise CorpusError(
                    "has changed since it was fetched",
                    place=folder,
                    remedy=f"restore it; or remove it and {self.directory / 'stages/fetch.json'}, "
                    "and it is made again from its download",
                )
        return stage

    def _fetch_all(self, stage: BuildStage) -> dict[str, Any]:
        texts: list[dict[str, Any]] = []
        left_out: dict[str, str] = {}
        order = ("valid", "test", "train", "mono")
        for one in sorted(self.plan.corpus, key=lambda one: order.index(one.use)):
            is_late = time.time() > stage.started + stage.seconds_s
            has_text = any(text["use"] == "train" for text in texts)
            if is_late and has_text and not one.needed:
                left_out[one.id] = "the time of this stage was over"
                continue
            try:
                self.views.print_line(f"fetch: {one.id}")
                texts.append(self._fetch_one(one))
            except CorpusError as error:
                if one.needed:
                    raise
                left_out[one.id] = error.problem
                self.views.print_line(f"fetch: {one.id} is left out: {error.problem}")
        if not any(text["use"] == "train" for text in texts):
            why = "; ".join(f"{one}: {problem}" for one, problem in left_out.items())
            raise CorpusError(
                f'no corpus with use = "train" can be fetched: {why}',
                place=self.directory / PLAN_FILE,
                remedy="write other ids there: corpora.tsv beside it has all",
            )
        return {"texts": texts, "left_out": left_out}

    def _fetch_one(self, one: PlannedCorpus) -> dict[str, Any]:
        languages = self.plan.direction
        downloads = self.directory / _DOWNLOADS
        if one.use == "mono":
            text = fetch_monolingual(one.id, downloads, language=languages.target, index=self.index)
            paths = {"target": str(text)}
        else:
            files = fetch(
                one.id,
                downloads,
                source_language=languages.source,
                target_language=languages.target,
                index=self.index,
            )
            paths = {"source": files.source, "target": files.target}
        lines = translation.count_lines(Path(paths["target"]))
        num_bytes = sum(Path(path).stat().st_size for path in paths.values())
        return {"id": one.id, "use": one.use, "lines": lines, "bytes": num_bytes, **paths}

    def _recipe(self, fetched: BuildStage) -> Recipe:
        """The recipe of the model of the pair, from the fetched texts alone."""
        texts = fetched.facts["texts"]
        corpus: dict[str, Any] = {
            split: [
                {"source": text["source"], "target": text["target"]}
                for text in texts
                if text["use"] == split
            ]
            for split in ("train", "valid", "test")
        }
        pairs = sum(text["lines"] for text in texts if text["use"] == "train")
        least, most = _HELD_OUT
        cut = min(max(round(_HELD_OUT_SHARE * pairs), least), most)
        corpus |= {f"{split}_pairs": cut for split in ("valid", "test") if not corpus[split]}
        return self._made("train", corpus)

    def _made(self, stage: StageName, corpus: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
        """The recipe of a stage: it sets only its text and languages, these sections, and the
        overrides of the plan."""
        source, target = self.plan.direction
        if stage == "reverse":
            source, target = target, source
        name = f"{source}-{target}{_SUFFIXES.get(stage, '')}"
        corpus = {
            "folder": str(self.directory),
            "source_language": source,
            "target_language": target,
            **corpus,
        }
        overrides = self.plan.overrides(stage)
        return load_recipe({"name": name, "corpus": corpus, **sections}, overrides)

    def _clean(self, recipe: Recipe) -> BuildStage:
        # The training takes the same vocabulary, and so the same shards.
        recipe = vocabulary(recipe, by_hand=keys_set(recipe))

        def work(_: BuildStage) -> dict[str, Any]:
            with self.views.show() as progress:
                shards = steps.prepare(
                    recipe,
                    directory=self._shards(recipe),
                    workers=self.workers,
                    progress=progress,
                )
            facts = Manifest.load(shards).train
            return {"pairs_in": facts.pairs_in, "pairs": facts.pairs, "dropped": facts.dropped}

        return self._do("clean", digest(recipe.corpus), work)

    def _train(self, name: StageName, recipe: Recipe) -> BuildStage:
        runs = self.directory / "runs"

        def work(stage: BuildStage) -> dict[str, Any]:
            run = run_in_budget(
                recipe,
                stage.seconds_s,
                self.place,
                runs=runs,
                prepared=self._shards(recipe),
                workers=self.workers,
                began=stage.started,
                show=self.views.show(),
                listeners=self.views.listeners(),
                show_plan=self.views.show_plan,
                print_line=self.views.print_line,
            )
            return _scores(run)

        def has_begun() -> bool:
            return any(runs.glob(f"{recipe.name}-2*/budget.json"))

        return self._do(name, digest(recipe), work, has_begun=has_begun)

    def _with_more_text(self, recipe: Recipe, fetched: BuildStage) -> list[BuildStage]:
        """Back-translation (Sennrich et al. 2016): a model of the opposite direction, its
        translations, and a model trained on these and the pairs."""
        texts = fetched.facts["texts"]
        mono = next((one["target"] for one in texts if one["use"] == "mono"), self.plan.mono)
        if not mono:
            self._leave_out(*_MORE_TEXT, why="the text of one language was left out")
            return []
        held_out = self._held_out(recipe)
        pairs = _pairs_of(recipe)
        swapped: dict[str, Any] = {"train": [_swapped(one) for one in pairs]}
        swapped |= {split: [_swapped(texts)] for split, texts in held_out.items()}
        reverse = self._train("reverse", self._made("reverse", swapped))
        most = translation.MOST_OF_PAIRS * sum(
            one["lines"] for one in texts if one["use"] == "train"
        )
        asked = digest_of(reverse.facts["run"], mono, digest_of_text(Path(mono)))
        synthetic = self.directory / "back" / asked[:8] / "synthetic.tsv"

        def work(stage: BuildStage) -> dict[str, Any]:
            return translation.translate(
                Path(reverse.facts["export"]),
                Path(mono),
                synthetic,
                direction="back",
                until=stage.started + stage.seconds_s,
                most_lines=most,
                progress=self.views.bars,
            )

        if not self._do("back-translate", asked, work).facts["pairs"]:
            self._leave_out("train-more", why="no translation was of use")
            return []
        text: dict[str, Any] = {"train": [*pairs, {"tsv": str(synthetic), "tag": _TAG}]}
        text |= {split: [texts] for split, texts in held_out.items()}
        return [self._train("train-more", self._made("train-more", text))]

    def _student(self, first: Recipe, teacher: BuildStage) -> None:
        """Distillation (Kim and Rush 2016): a small model learns from translations by the best one,
        and from the pairs of the first."""
        run = RunDirectory.open(Path(teacher.facts["run"]))
        asked = digest_of(teacher.facts["run"])
        synthetic = self.directory / "student" / asked[:8] / "synthetic.tsv"
        made = {"tsv": str(synthetic), "translated": "target"}
        text: dict[str, Any] = {"train": [made, *_pairs_of(first)]}
        held_out = self._held_out(run.recipe(), run.prepared())
        text |= {split: [texts] for split, texts in held_out.items()}
        # It needs no more pieces than its teacher, although its text has each sentence twice.
        text["subword"] = {"vocab_size": run.recipe().corpus.subword.vocab_size}
        recipe = self._made("student", text, **translation.student_sections())
        if translation.is_small(run.recipe(), recipe):
            self._leave_out(*_SMALLER, why="the decoder of the model is as small as a student's")
            return

        def work(stage: BuildStage) -> dict[str, Any]:
            return translation.translate(
                Path(teacher.facts["export"]),
                translation.sources_of(run, synthetic.with_name("source.txt")),
                synthetic,
                direction="forward",
                until=stage.started + stage.seconds_s,
                most_lines=None,
                progress=self.views.bars,
            )

        if not self._do("translate", asked, work).facts["pairs"]:
            self._leave_out("student", why="no translation was of use")
            return
        self._link(STUDENT, self._train("student", recipe))

    @contextmanager
    def _optional(self, *names: StageName) -> Iterator[None]:
        """If a stage in the block no longer fits into the budget or its training diverges, leave
        out all of these stages that are not done: a model exists already."""
        try:
            yield
        except (DivergenceError, TooSmallError, OverError) as error:
            for name in names:
                if all(one.name != name for one in self.done):
                    self._leave_out(name, why=error.problem)

    def _leave_out(self, *names: StageName, why: str) -> None:
        for name in names:
            self.stages.skip(name, digest_of(self.plan.model_dump()), why)

    def _were_left_out(self, *names: StageName) -> bool:
        """Whether an earlier command with the same plan left one of these stages out; if so, adds
        their records to `done`."""
        records = [read_stage(self.directory, name) for name in names]
        asked = digest_of(self.plan.model_dump())
        if all(one is None or not one.skipped or one.asked != asked for one in records):
            return False
        self.done += filter(None, records)
        return True

    def _do(
        self,
        name: StageName,
        asked: str,
        work: Callable[[BuildStage], dict[str, Any]],
        *,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> BuildStage:
        stage = self.stages.do(name, asked, work, has_begun=has_begun)
        self.done.append(stage)
        return stage

    def _ended(self, stage: BuildStage) -> None:
        spent = units.DURATION.text(stage.spent_s or 0.0)
        given = units.DURATION.text(stage.seconds_s)
        said = stage.skipped or f"{spent} of {given}"
        self.views.print_line(f"stage {stage.name}: {said}")
        if stage.skipped:
            self.done.append(stage)
        records = [*self._records(), stage]
        write_report(self.directory, self.plan, records, self.stages.clock, self.place.price)

    def _records(self) -> list[BuildStage]:
        return list({one.name: one for one in self.done}.values())

    def _shards(self, recipe: Recipe) -> Path:
        return self.directory / "shards" / recipe.name

    def _held_out(self, recipe: Recipe, shards: Path | None = None) -> dict[str, dict[str, str]]:
        """The dev and test sets of a model as plain text, for the models that follow."""
        folder = shards or self._shards(recipe)
        plain = self.directory / "shards" / f"{recipe.name}-held-out"
        return {
            split: {
                "source": str(plain_sources(folder / split, recipe.corpus, plain / f"{split}.txt")),
                "target": str(folder / split / "target.txt"),
            }
            for split in ("valid", "test")
        }

    def _link(self, name: str, trained: BuildStage) -> None:
        """Make a link of this name to the export of a training."""
        link, draft = self.directory / name, self.directory / f".{name}.new"
        draft.unlink(missing_ok=True)
        draft.symlink_to(Path(trained.facts["export"]).relative_to(self.directory))
        draft.replace(link)


def _pairs_of(recipe: Recipe) -> list[dict[str, str]]:
    """The training text of a recipe, for other recipes."""
    return [{"source": entry.source, "target": entry.target} for entry in recipe.corpus.train]


def _swapped(texts: Mapping[str, str]) -> dict[str, str]:
    return {"source": texts["target"], "target": texts["source"]}


def _scores(run: RunDirectory) -> dict[str, Any]:
    """The files of a training, and its scores."""
    facts = read_facts(run.path)
    dev = [one.bleu for one in facts.validations if one.bleu is not None]
    test = facts.test_scores[-1] if facts.test_scores else None
    return {
        "run": str(run.path),
        "export": str(run.path / "export" / "ctranslate2-int8"),
        "steps": facts.last_step,
        "parameters": facts.num_parameters,
        "dev_bleu": max(dev, default=None),
        "test_bleu": None if test is None else test.bleu,
    }
