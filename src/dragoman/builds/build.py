"""`dragoman build` in one script: corpora -> shards -> models -> the best one to serve.

    builds/en-de/
        build.toml   corpora.tsv            the plan; all corpora, each with the reason for its use
        build.html                          the cost and the gain of each stage
        model   model-student               links to the best export and to that of the student
        build.json                          when it began; a record of each stage that has ended
        downloads/   shards/   back/   student/   runs/

Stages are done in order. A stage is done when its output is there and its inputs are as they were;
one that was killed resumes. The clock measures wall time from the first command on. A stage gets
its share of the time that is left.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dragoman.api.kinds import OnEvent
from dragoman.api.progress import line_printer, listeners_of, say_nothing, shown
from dragoman.api.teacher import digest_of_text, plain_sources, write_sources
from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, DivergenceError, MachineError
from dragoman.base.files import try_lock
from dragoman.builds import translation
from dragoman.builds.plan import FILE as PLAN_FILE
from dragoman.builds.plan import BuildPlan, PlannedCorpus, StageName
from dragoman.builds.planning import Wanted, budget_of, index_file, too_small
from dragoman.builds.record import BuildRecord, BuildStage
from dragoman.builds.report import print_stages, rows, write_report
from dragoman.corpus.config import TextFiles
from dragoman.corpus.download import UnreachableError
from dragoman.corpus.fetched import fetch, fetch_monolingual, is_as_fetched
from dragoman.corpus.identify import refuse_wrong_languages
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.sources import Sources
from dragoman.inference.synthesize import SynthesisDirection
from dragoman.recipe.budget import keys_set
from dragoman.recipe.recipe import Recipe, digest, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run import run as steps
from dragoman.run.budget import run_in_budget
from dragoman.run.budget_plan import BudgetPlan, TooSmallError, check_exports
from dragoman.run.sizes import vocabulary

MODEL: Final = "model"
STUDENT: Final = "model-student"
_HELD_OUT_SHARE: Final = 0.05
_HELD_OUT: Final = (50, 1000)
"""The least and the most pairs of the training text that become a dev or test set if there is none;
the number between is the share above."""
_TAG: Final = "<bt>"
_SUFFIXES: Final = {"train-more": "-more", "student": "-student"}
"""Endings of the names of recipes, and so of runs."""
_REPORT_S: Final = 1.0
"""Seconds of the budget for the work after the last stage."""
_Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Built:
    """A finished build.

    directory: the folder with all its files. model: the best export, for `Translator`.
    student: the export of the small, fast model, if there is one.
    report: a page with the cost and the gain of each stage.
    stages: the record of each stage: its start and end, and its facts.
    started: when it began, in UTC seconds since 1970.
    """

    directory: Path
    model: Path
    student: Path | None
    report: Path
    stages: tuple[BuildStage, ...]
    started: float


class _LeftOutError(Exception):
    """Stages that a build can do without cannot be done."""


def carry_out(
    plan: BuildPlan,
    wanted: Wanted,
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
    directory = wanted.directory
    budget_s = budget_of(plan, wanted)
    check_exports()
    with _locked(directory):
        build = _Build(plan, wanted, budget_s, began, workers, progress, on_event, show_plan)
        try:
            build.all_stages()
        except TooSmallError as error:  # nothing has been trained: see `optional`
            build.keep(started=None)
            raise too_small(error, plan, directory) from error
    if progress:
        print_stages(rows(plan, build.record, budget_s, wanted.place.price))
    small = directory / STUDENT
    return Built(
        directory=directory,
        model=directory / MODEL,
        student=small if small.exists() else None,
        report=directory / "build.html",
        stages=tuple(build.record.stages.values()),
        started=build.record.started or began,
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
    wanted: Wanted
    budget_s: float
    began: float
    workers: int | None
    progress: bool
    on_event: OnEvent | None
    show_plan: Callable[[BudgetPlan], None]
    directory: Path = field(init=False)
    record: BuildRecord = field(init=False)
    say: Callable[[str], None] = field(init=False)

    def __post_init__(self) -> None:
        self.directory = self.wanted.directory.resolve()
        self.say = line_printer(self.progress)
        self.record = BuildRecord.read(self.directory)
        plan = _digest(self.plan.model_dump(mode="json"))
        stages = self.record.stages
        if plan != self.record.plan:  # what was left out may be possible now
            stages = {name: one for name, one in stages.items() if not one.skipped}
        self.keep(started=self.record.started or self.began, plan=plan, stages=stages)

    def keep(self, **changes: Any) -> None:
        """Change the record."""
        self.record = self.record.model_copy(update=changes)
        self.record.save(self.directory)

    def all_stages(self) -> None:
        """Do all stages in their order; each uses the results of those before it."""
        texts = self.fetch()
        recipe = self.recipe(texts)
        self.clean(recipe)
        first = self.train("train", recipe)
        if not (self.directory / MODEL).is_symlink():
            self.link(MODEL, first)  # there is a model, even if the stages that follow fail
        more = self.optional(
            ("reverse", "back-translate", "train-more"), lambda: self.train_more(recipe, texts)
        )
        best = max([first, *more], key=lambda one: one["dev_bleu"] or 0.0)
        self.link(MODEL, best)
        for student in self.optional(("translate", "student"), lambda: self.student(recipe, best)):
            self.link(STUDENT, student)
        self.report()

    def do(self, name: StageName, inputs: object, work: Callable[[float], _Facts]) -> _Facts:
        """Do a stage if it is not done yet; returns its facts.

        inputs: what it depends on. work: does the stage in this many seconds, or resumes it, and
        gives its facts, with its `output`.
        """
        key, now = _digest(inputs), time.time()
        done = self.record.stages.get(name)
        if done is not None and done.inputs == key and Path(done.facts["output"]).exists():
            return done.facts
        self.keep(stages={one: made for one, made in self.record.stages.items() if one != name})
        shares = self.plan.shares()
        names = list(shares)
        still = sum(shares[one] for one in names[names.index(name) :])
        left_s = (self.record.started or now) + self.budget_s - _REPORT_S - now
        facts = work(max(left_s * shares[name] / still, 1.0))
        self.end(name, inputs=key, facts=facts)
        return facts

    def end(self, name: StageName, **values: Any) -> None:
        """Record that a stage has ended or was left out; it began when the one before it ended."""
        stage = BuildStage(name=name, started=self.record.last_s, ended=time.time(), **values)
        self.keep(stages={**self.record.stages, name: stage})
        spent, given = (
            units.DURATION.text(time_s)
            for time_s in (stage.ended - stage.started, self.plan.shares()[name] * self.budget_s)
        )
        self.say(f"stage {name}: {stage.skipped or f'{spent} of {given}'}")
        self.report()

    def optional(self, names: Sequence[StageName], work: Callable[[], _Facts]) -> list[_Facts]:
        """The facts of the model that these stages make, if they are planned. If one of them cannot
        be done, no longer fits into the budget or diverges, those that are not done are left out: a
        model exists already."""
        left_out = [one for one in self.record.stages.values() if one.skipped]
        if names[0] not in self.plan.shares() or any(one.name in names for one in left_out):
            return []
        try:
            return [work()]
        except (_LeftOutError, DivergenceError, TooSmallError) as error:
            why = str(error) if isinstance(error, _LeftOutError) else error.problem
            for name in names:
                if name not in self.record.stages:
                    self.end(name, skipped=why)
            return []

    def fetch(self) -> list[_Facts]:
        """The texts of the plan that can be had; each with its id, use, lines, bytes and files."""
        inputs = [(one.id, one.use) for one in self.plan.corpus]
        texts: list[_Facts] = self.do("fetch", inputs, self._fetch_all)["texts"]
        for text in texts:
            folder = self.directory / "downloads" / text["id"]
            if not is_as_fetched(folder):
                raise CorpusError(
                    "has changed since it was fetched",
                    place=folder,
                    remedy="restore it; or remove it and the folder of downloads around it",
                )
        return texts

    def _fetch_all(self, seconds_s: float) -> _Facts:
        until = time.time() + seconds_s
        texts: list[_Facts] = []
        left_out: dict[str, str] = {}
        order = ("valid", "test", "train", "mono")
        for one in sorted(self.plan.corpus, key=lambda one: order.index(one.use)):
            has_text = any(text["use"] == "train" for text in texts)
            if time.time() > until and has_text and not one.needed:
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
        downloads = self.directory / "downloads"
        return {"output": str(downloads), "texts": texts, "left_out": left_out}

    def _fetch_one(self, one: PlannedCorpus) -> _Facts:
        source, target = self.wanted.languages
        downloads, index = self.directory / "downloads", index_file(self.plan.index, self.directory)
        if one.use == "mono":
            text = fetch_monolingual(one.id, downloads, language=target, index=index)
            paths = {"target": str(text)}
        else:
            files = fetch(
                one.id, downloads, source_language=source, target_language=target, index=index
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

    def recipe(self, texts: Sequence[_Facts]) -> Recipe:
        """The recipe of the model of the pair, from the fetched texts alone."""
        corpus: _Facts = {
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

    def _made(self, stage: StageName, corpus: _Facts, **sections: _Facts) -> Recipe:
        """The recipe of a stage: it sets only its text and languages, these sections, and the
        overrides of the plan."""
        source, target = self.wanted.languages
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

        def work(_: float) -> _Facts:
            shards = steps.prepare(
                recipe,
                directory=self._shards(recipe),
                workers=self.workers,
                show=shown(self.progress),
            )
            train = Manifest.load(shards).train
            return {"output": str(shards), "pairs_in": train.pairs_in, "pairs": train.pairs}

        self.do("clean", digest(recipe.corpus), work)

    def train(self, name: StageName, recipe: Recipe) -> _Facts:
        """The run of a recipe within the time of a stage, with its export and scores."""

        def work(seconds_s: float) -> _Facts:
            run = run_in_budget(
                recipe,
                seconds_s,
                self.wanted.place,
                runs=self.directory / "runs",
                prepared=self._shards(recipe),
                workers=self.workers,
                began=time.time(),
                show=shown(self.progress),
                listeners=listeners_of(self.on_event, self.progress),
                show_plan=self.show_plan,
                print_line=self.say,
            )
            export = run.path / "export" / "ctranslate2-int8"
            return {"output": str(export), "run": str(run.path), **_scores(run)}

        return self.do(name, digest(recipe), work)

    def train_more(self, recipe: Recipe, texts: Sequence[_Facts]) -> _Facts:
        """Back-translation (Sennrich et al. 2016): a model of the opposite direction, its
        translations, and a model trained on these and the pairs."""
        mono = next((one["target"] for one in texts if one["use"] == "mono"), self.plan.mono)
        if not mono:
            raise _LeftOutError("the text of one language was left out")
        held_out, pairs = self._held_out(recipe), _pairs_of(recipe)
        swapped: _Facts = {"train": [_swapped(one) for one in pairs]}
        swapped |= {split: [_swapped(one)] for split, one in held_out.items()}
        reverse = self.train("reverse", self._made("reverse", swapped))
        lines = sum(one["lines"] for one in texts if one["use"] == "train")
        synthetic = self.translate(
            "back-translate",
            reverse,
            text=lambda _: Path(mono),
            digest_of_input=digest_of_text(Path(mono)),
            direction="back",
            most_lines=translation.MOST_OF_PAIRS * lines,
        )
        text: _Facts = {"train": [*pairs, {"tsv": str(synthetic), "tag": _TAG}]}
        text |= {split: [one] for split, one in held_out.items()}
        return self.train("train-more", self._made("train-more", text))

    def student(self, first: Recipe, teacher: _Facts) -> _Facts:
        """Distillation (Kim and Rush 2016): a small model learns from translations by the best one,
        and from the pairs of the first."""
        run = RunDirectory.open(Path(teacher["run"]))
        text: _Facts = {"train": _pairs_of(first)}
        held_out = self._held_out(run.recipe(), run.prepared())
        text |= {split: [one] for split, one in held_out.items()}
        # It needs no more pieces than its teacher, although its text has each sentence twice.
        text["subword"] = {"vocab_size": run.recipe().corpus.subword.vocab_size}
        sections = translation.student_sections()
        if translation.is_small(run.recipe(), self._made("student", text, **sections)):
            raise _LeftOutError("the decoder of the model is as small as a student's")
        synthetic = self.translate(
            "translate",
            teacher,
            text=lambda folder: _sources_of(run, folder / "source.txt"),
            direction="forward",
        )
        text["train"] = [{"tsv": str(synthetic), "translated": "target"}, *text["train"]]
        return self.train("student", self._made("student", text, **sections))

    def translate(
        self,
        name: StageName,
        model: _Facts,
        *,
        text: Callable[[Path], Path],
        direction: SynthesisDirection,
        digest_of_input: str = "",
        most_lines: int | None = None,
    ) -> Path:
        """The translations of a text by a model of this build, as far as the time allows.

        text: gives the text, which it may write into a folder.
        """
        inputs = [model["run"], digest_of_input]
        folder = "back" if direction == "back" else "student"
        synthetic = self.directory / folder / _digest(inputs)[:8] / "synthetic.tsv"

        def work(seconds_s: float) -> _Facts:
            facts = translation.translate(
                Path(model["output"]),
                text(synthetic.parent),
                synthetic,
                direction=direction,
                seconds_s=seconds_s,
                most_lines=most_lines,
                progress=self.progress,
            )
            return {"output": str(synthetic), **facts}

        if not self.do(name, inputs, work)["pairs"]:
            raise _LeftOutError("no translation was of use")
        return synthetic

    def report(self) -> None:
        """Write `build.html`."""
        write_report(self.directory, self.plan, self.record, self.budget_s, self.wanted.place.price)

    def link(self, name: str, trained: _Facts) -> None:
        """Make a link of this name to the export of a training."""
        link, draft = self.directory / name, self.directory / f".{name}.new"
        draft.unlink(missing_ok=True)
        draft.symlink_to(Path(trained["output"]).relative_to(self.directory))
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


def _digest(inputs: object) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _sources_of(run: RunDirectory, path: Path) -> Path:
    """The file of the source sides of a run's training text, written if it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sources(run, path)
    return path


def _pairs_of(recipe: Recipe) -> list[dict[str, str]]:
    """The training text of a recipe, for other recipes."""
    return [{"source": entry.source, "target": entry.target} for entry in recipe.corpus.train]


def _swapped(texts: Mapping[str, str]) -> dict[str, str]:
    return {"source": texts["target"], "target": texts["source"]}


def _scores(run: RunDirectory) -> _Facts:
    facts = read_facts(run.path)
    dev = [one.bleu for one in facts.validations if one.bleu is not None]
    test = facts.test_scores[0] if facts.test_scores else None
    return {
        "steps": facts.last_step,
        "parameters": facts.num_parameters,
        "dev_bleu": max(dev, default=None),
        "test_bleu": None if test is None else test.bleu,
    }
