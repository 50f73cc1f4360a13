"""`dragoman build` in one script: corpora -> shards -> models -> the best one to serve.

    builds/en-de/
        build.toml   corpora.tsv            the plan; all corpora, each with the reason for its use
        build.html                          the cost and the gain of each stage
        model   model-student               links to the best export and to that of the student
        build.json                          when it began; a record of each stage
        downloads/   shards/   back/   student/   runs/

Stages are done in order, each once. The result of a stage is whole or absent; a stage that was
killed resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dragoman.api.kinds import OnEvent
from dragoman.api.progress import listeners_of, say_nothing, shown
from dragoman.api.teacher import digest_of_text, plain_sources
from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, DivergenceError, MachineError
from dragoman.base.files import try_lock
from dragoman.base.terminal import open_console
from dragoman.builds import translation
from dragoman.builds.plan import FILE as PLAN_FILE
from dragoman.builds.plan import BuildPlan, PlannedCorpus, StageName
from dragoman.builds.planning import index_file, too_small
from dragoman.builds.record import BuildStage, OverError, Stages, digest_of
from dragoman.builds.report import write_report
from dragoman.corpus.config import TextFiles
from dragoman.corpus.download import UnreachableError
from dragoman.corpus.fetched import fetch, fetch_monolingual, is_as_fetched
from dragoman.corpus.identify import refuse_wrong_languages
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.sources import Sources
from dragoman.recipe.budget import keys_set, parse_budget
from dragoman.recipe.recipe import Recipe, digest, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run import run as steps
from dragoman.run.budget import run_in_budget
from dragoman.run.budget_plan import BudgetPlan, Place, TooSmallError, check_exports, rounded_up
from dragoman.run.sizes import vocabulary

MODEL: Final = "model"
STUDENT: Final = "model-student"
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
class Built:
    """A finished build.

    directory: the folder with all its files. model: the best export, for `Translator`.
    student: the export of the small, fast model, if there is one.
    report: a page with the cost and the gain of each stage.
    stages: the record of each stage: the seconds it was given, its start and end, and its facts.
    started: when it began, in UTC seconds since 1970.
    """

    directory: Path
    model: Path
    student: Path | None
    report: Path
    stages: tuple[BuildStage, ...]
    started: float


def carry_out(
    plan: BuildPlan,
    directory: Path,
    place: Place,
    *,
    began: float,
    workers: int | None,
    progress: bool,
    on_event: OnEvent | None = None,
    show_plan: Callable[[BudgetPlan], None] = say_nothing,
) -> Built:
    """Do all stages of a plan that are not done yet.

    began: when the command was given, in UTC seconds since 1970: a new clock starts then.
    show_plan: called with the plan of each training.
    Raises ConfigError if the budget is too small, MachineError if another process builds in the
    directory, and the errors of the stages.
    """
    budget_s = parse_budget(plan.budget, place.price)
    check_exports()
    index = index_file(plan.index, directory)
    with _locked(directory):
        work = _Build(
            plan, directory.resolve(), place, index, workers, progress, on_event, show_plan
        )
        stages = Stages(directory.resolve(), plan, budget_s, began=began, ended=work.tell)
        work.stages = stages
        try:
            work.all_stages()
        except OverError as error:
            stages.forget_clock()  # nothing has been trained: see `_optional`
            raise ConfigError(
                error.problem,
                place=error.place,
                remedy="run it again: the clock starts again, and finished parts are kept; or "
                f"write a larger budget into {directory / PLAN_FILE}, such as "
                f"{units.DURATION.text(rounded_up(2 * budget_s))}",
            ) from error
        except TooSmallError as error:
            used_s = time.time() - stages.started
            stages.forget_clock()
            shares = plan.shares()
            whole_s = error.needed_s / shares["train"]
            share_left = 1 - shares["fetch"] - shares["clean"]  # when the training begins
            needed_s = rounded_up(max(whole_s, used_s + share_left * whole_s))
            raise too_small(needed_s, directory) from error
    small = directory / STUDENT
    return Built(
        directory=directory,
        model=directory / MODEL,
        student=small if small.exists() else None,
        report=directory / "build.html",
        stages=tuple(stages.record.stages.values()),
        started=stages.started,
    )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with disk_errors_named(directory), (directory / ".lock").open("ab") as file:
        if not try_lock(file):
            raise MachineError(
                "another process builds here", place=directory, remedy="wait for it, or stop it"
            )
        yield


@dataclass
class _Build:
    """The stages of one build, each with its input from those before it."""

    plan: BuildPlan
    directory: Path
    place: Place
    index: Path | None
    workers: int | None
    progress: bool
    on_event: OnEvent | None
    show_plan: Callable[[BudgetPlan], None]

    def __post_init__(self) -> None:
        self.stages: Stages
        self.say: Callable[[str], None] = say_nothing
        if self.progress:
            console = open_console(outlives_reader=True)
            self.say = lambda text: console.print(text, soft_wrap=True)

    def all_stages(self) -> None:
        """Do all stages in their order; each uses the results of those before it."""
        shares = self.plan.shares()
        texts = self.fetch()
        recipe = self.recipe(texts)
        self.clean(recipe)
        models = [self.train("train", recipe)]
        if not (self.directory / MODEL).is_symlink():
            self.link(MODEL, models[0])  # there is a model, even if the stages that follow fail
        if "reverse" in shares and not self.stages.was_skipped(*_MORE_TEXT):
            with self.optional(*_MORE_TEXT):
                models += self.with_more_text(recipe, texts)
        best = max(models, key=lambda one: one.facts.get("dev_bleu") or 0.0)
        self.link(MODEL, best)
        if "student" in shares and not self.stages.was_skipped(*_SMALLER):
            with self.optional(*_SMALLER):
                self.student(recipe, best)
        self.report()

    def fetch(self) -> list[dict[str, Any]]:
        """The texts of the plan that can be had; each with its id, use, lines, bytes and files."""
        inputs = digest_of([(one.id, one.use) for one in self.plan.corpus])
        stage = self.stages.do("fetch", inputs, self._fetch_all)
        texts: list[dict[str, Any]] = stage.facts["texts"]
        for text in texts:
            folder = self.directory / "downloads" / text["id"]
            if not is_as_fetched(folder):
                raise CorpusError(
                    "has changed since it was fetched",
                    place=folder,
                    remedy="restore it; or remove it and the folder of downloads around it",
                )
        return texts

    def _fetch_all(self, stage: BuildStage) -> tuple[Path, dict[str, Any]]:
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
                self.say(f"fetch: {one.id}")
                texts.append(self._fetch_one(one))
            except (ConfigError, CorpusError, UnreachableError) as error:
                if one.needed:
                    raise
                left_out[one.id] = error.problem
                self.say(f"fetch: {one.id} is left out: {error.problem}")
        if not any(text["use"] == "train" for text in texts):
            why = "; ".join(f"{one}: {problem}" for one, problem in left_out.items())
            raise CorpusError(
                f'no corpus with use = "train" can be fetched: {why}',
                place=self.directory / PLAN_FILE,
                remedy="write other ids there: corpora.tsv beside it has all",
            )
        return self.directory / "downloads", {"texts": texts, "left_out": left_out}

    def _fetch_one(self, one: PlannedCorpus) -> dict[str, Any]:
        source, target = self.plan.direction
        downloads = self.directory / "downloads"
        if one.use == "mono":
            text = fetch_monolingual(one.id, downloads, language=target, index=self.index)
            paths = {"target": str(text)}
        else:
            files = fetch(
                one.id,
                downloads,
                source_language=source,
                target_language=target,
                index=self.index,
            )
            self._check_languages(one, files)
            paths = {"source": files.source, "target": files.target}
        lines = translation.count_lines(Path(paths["target"]))
        num_bytes = sum(Path(path).stat().st_size for path in paths.values())
        return {"id": one.id, "use": one.use, "lines": lines, "bytes": num_bytes, **paths}

    def _check_languages(self, one: PlannedCorpus, files: TextFiles) -> None:
        """Raise CorpusError if a corpus clearly is in other languages than its id says."""
        entry = {"source": files.source, "target": files.target}
        config = self._made("train", {"train": [entry], "valid_pairs": 1}).corpus
        if not config.check_languages:
            return
        entries = Sources(config, downloads=self.directory / "downloads").entries
        try:
            refuse_wrong_languages(entries, config, workers=2)
        except CorpusError as error:
            remedy = "leave it out; if the text is right, set corpus.check_languages = false"
            raise CorpusError(error.problem, place=one.id, remedy=remedy) from error

    def recipe(self, texts: Sequence[Mapping[str, Any]]) -> Recipe:
        """The recipe of the model of the pair, from the fetched texts alone."""
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
        languages = {"source_language": source, "target_language": target}
        corpus = {"folder": str(self.directory), **languages, **corpus}
        values = {"name": name, "corpus": corpus, **sections}
        return load_recipe(values, self.plan.overrides(stage))

    def clean(self, recipe: Recipe) -> None:
        """Shards of the texts, with the vocabulary that the training takes, too."""
        recipe = vocabulary(recipe, by_hand=keys_set(recipe))

        def work(_: BuildStage) -> tuple[Path, dict[str, Any]]:
            shards = steps.prepare(
                recipe,
                directory=self._shards(recipe),
                workers=self.workers,
                show=shown(self.progress),
            )
            train = Manifest.load(shards).train
            return shards, {"pairs_in": train.pairs_in, "pairs": train.pairs}

        self.stages.do("clean", digest(recipe.corpus), work)

    def train(self, name: StageName, recipe: Recipe) -> BuildStage:
        """The run of a recipe within the time of a stage, with its export and scores."""
        runs = self.directory / "runs"

        def work(stage: BuildStage) -> tuple[Path, dict[str, Any]]:
            run = run_in_budget(
                recipe,
                stage.seconds_s,
                self.place,
                runs=runs,
                prepared=self._shards(recipe),
                workers=self.workers,
                began=stage.started,
                show=shown(self.progress),
                listeners=listeners_of(self.on_event, self.progress),
                show_plan=self.show_plan,
                print_line=self.say,
            )
            export = run.path / "export" / "ctranslate2-int8"
            return export, {"run": str(run.path), "export": str(export), **_scores(run)}

        def has_begun() -> bool:
            return any(runs.glob(f"{recipe.name}-2*/budget.json"))

        return self.stages.do(name, digest(recipe), work, has_begun=has_begun)

    def with_more_text(
        self, recipe: Recipe, texts: Sequence[Mapping[str, Any]]
    ) -> list[BuildStage]:
        """Back-translation (Sennrich et al. 2016): a model of the opposite direction, its
        translations, and a model trained on these and the pairs."""
        mono = next((one["target"] for one in texts if one["use"] == "mono"), self.plan.mono)
        if not mono:
            self._leave_out(*_MORE_TEXT, why="the text of one language was left out")
            return []
        held_out, pairs = self._held_out(recipe), _pairs_of(recipe)
        swapped: dict[str, Any] = {"train": [_swapped(one) for one in pairs]}
        swapped |= {split: [_swapped(one)] for split, one in held_out.items()}
        reverse = self.train("reverse", self._made("reverse", swapped))
        most = translation.MOST_OF_PAIRS * sum(
            one["lines"] for one in texts if one["use"] == "train"
        )
        inputs = digest_of(reverse.facts["run"], mono, digest_of_text(Path(mono)))
        synthetic = self.directory / "back" / inputs[:8] / "synthetic.tsv"

        def work(stage: BuildStage) -> tuple[Path, dict[str, Any]]:
            return synthetic, translation.translate(
                Path(reverse.facts["export"]),
                Path(mono),
                synthetic,
                direction="back",
                until=stage.started + stage.seconds_s,
                most_lines=most,
                progress=self.progress,
            )

        if not self.stages.do("back-translate", inputs, work).facts["pairs"]:
            self._leave_out("train-more", why="no translation was of use")
            return []
        text: dict[str, Any] = {"train": [*pairs, {"tsv": str(synthetic), "tag": _TAG}]}
        text |= {split: [one] for split, one in held_out.items()}
        return [self.train("train-more", self._made("train-more", text))]

    def student(self, first: Recipe, teacher: BuildStage) -> None:
        """Distillation (Kim and Rush 2016): a small model learns from translations by the best one,
        and from the pairs of the first."""
        run = RunDirectory.open(Path(teacher.facts["run"]))
        inputs = digest_of(teacher.facts["run"])
        synthetic = self.directory / "student" / inputs[:8] / "synthetic.tsv"
        made = {"tsv": str(synthetic), "translated": "target"}
        text: dict[str, Any] = {"train": [made, *_pairs_of(first)]}
        held_out = self._held_out(run.recipe(), run.prepared())
        text |= {split: [one] for split, one in held_out.items()}
        # It needs no more pieces than its teacher, although its text has each sentence twice.
        text["subword"] = {"vocab_size": run.recipe().corpus.subword.vocab_size}
        recipe = self._made("student", text, **translation.student_sections())
        if translation.is_small(run.recipe(), recipe):
            self._leave_out(*_SMALLER, why="the decoder of the model is as small as a student's")
            return

        def work(stage: BuildStage) -> tuple[Path, dict[str, Any]]:
            return synthetic, translation.translate(
                Path(teacher.facts["export"]),
                translation.sources_of(run, synthetic.with_name("source.txt")),
                synthetic,
                direction="forward",
                until=stage.started + stage.seconds_s,
                most_lines=None,
                progress=self.progress,
            )

        if not self.stages.do("translate", inputs, work).facts["pairs"]:
            self._leave_out("student", why="no translation was of use")
            return
        self.link(STUDENT, self.train("student", recipe))

    @contextmanager
    def optional(self, *names: StageName) -> Iterator[None]:
        """If a stage in the block no longer fits into the budget or its training diverges, leave
        out all of these stages that are not done: a model exists already."""
        try:
            yield
        except (DivergenceError, TooSmallError, OverError) as error:
            done = self.stages.record.stages
            self._leave_out(
                *(name for name in names if name not in done or done[name].ended is None),
                why=error.problem,
            )

    def _leave_out(self, *names: StageName, why: str) -> None:
        for name in names:
            self.stages.skip(name, why)

    def tell(self, stage: BuildStage) -> None:
        """Say that a stage has ended, and write the report anew."""
        spent = units.DURATION.text(stage.spent_s or 0.0)
        given = units.DURATION.text(stage.seconds_s)
        self.say(f"stage {stage.name}: {stage.skipped or f'{spent} of {given}'}")
        self.report()

    def report(self) -> None:
        """Write `build.html`."""
        stages = self.stages
        write_report(
            self.directory,
            self.plan,
            stages.record.stages,
            started=stages.started,
            budget_s=stages.budget_s,
            price=self.place.price,
        )

    def link(self, name: str, trained: BuildStage) -> None:
        """Make a link of this name to the export of a training."""
        link, draft = self.directory / name, self.directory / f".{name}.new"
        draft.unlink(missing_ok=True)
        draft.symlink_to(Path(trained.facts["export"]).relative_to(self.directory))
        draft.replace(link)

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


def _pairs_of(recipe: Recipe) -> list[dict[str, str]]:
    """The training text of a recipe, for other recipes."""
    return [{"source": entry.source, "target": entry.target} for entry in recipe.corpus.train]


def _swapped(texts: Mapping[str, str]) -> dict[str, str]:
    return {"source": texts["target"], "target": texts["source"]}


def _scores(run: RunDirectory) -> dict[str, Any]:
    facts = read_facts(run.path)
    dev = [one.bleu for one in facts.validations if one.bleu is not None]
    test = facts.test_scores[0] if facts.test_scores else None
    return {
        "steps": facts.last_step,
        "parameters": facts.num_parameters,
        "dev_bleu": max(dev, default=None),
        "test_bleu": None if test is None else test.bleu,
    }
