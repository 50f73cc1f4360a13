"""A recipe: every section in one file. Defaults < the file < `--set section.key=value`.

A mistake is reported in the words of the recipe, with its line and a remedy. Free of
torch, so that `--help`, `--dry-run` and a wrong key answer at once.
"""

from __future__ import annotations

import bisect
import difflib
import hashlib
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, get_args

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

from dragoman.base.disk_errors import unwritable_name
from dragoman.base.errors import ConfigError
from dragoman.base.files import read_regular
from dragoman.base.languages import is_language, parse_language
from dragoman.base.settings import Section
from dragoman.corpus.config import (
    FILE_KEYS,
    LANGUAGE_KEYS,
    CorpusConfig,
    TextFiles,
    reversed_section,
)
from dragoman.corpus.directions import Direction, listed, parse_pair
from dragoman.data.config import DataConfig, StageConfig
from dragoman.distributed.config import DistributedConfig
from dragoman.evaluation.config import EvaluateConfig
from dragoman.model.config import ModelConfig, SearchConfig
from dragoman.telemetry.config import SinksConfig
from dragoman.training.config import CheckpointConfig, OptimizerConfig, TrainConfig
from dragoman.training.schedule import ScheduleConfig, learning_rate

SHIPPED_RECIPES: Final = Path(__file__).parent / "shipped"
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""A recipe's name. Names of folders begin with it, and pages and model cards show it."""
_LONGEST_BYTES: Final = 1 << 20
_DEEPEST: Final = 16
"""Tables and arrays within each other; a recipe needs four."""
_NESTED: Final = (Mapping, list, tuple)
_LONG_KEY: Final = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}"""
)
"""A key of a hundred parts: tomllib reads it in quadratic time."""
_SPLITS: Final = ("train", "valid", "test")
_LONGEST_VALUE: Final = 200
"""Characters of a value in an error."""
Location = tuple[int | str, ...]
_TOML_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
_HEADER: Final = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_BARE: Final = r"(?:[\w-]+|\"[^\"]*\"|'[^']*')"
_KEY: Final = re.compile(rf"\s*({_BARE}(?:\s*\.\s*{_BARE})*)\s*=")


class Recipe(Section):
    """All settings that decide a run; each part takes only its own section."""

    name: str = Field(pattern=NAME, max_length=100)
    """Begins the name of the run's directory."""
    corpus: CorpusConfig = Field(default_factory=CorpusConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    distributed: DistributedConfig = Field(default_factory=DistributedConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    sinks: SinksConfig = Field(default_factory=SinksConfig)
    stages: tuple[StageConfig, ...] = Field(default=(), max_length=100)
    """`[[stages]]`, one after the other, each with its own mixture of text and learning rate."""

    @model_serializer(mode="wrap")
    def _without_no_stages(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The digests of recipes that were written before there were stages stay as they are.
        values: dict[str, Any] = serialize(self)
        return {key: value for key, value in values.items() if key != "stages" or value}

    @property
    def scoring(self) -> EvaluateConfig:
        """The evaluate section, with `lowercase` set if the model writes lower case only."""
        lowercase = self.evaluate.lowercase or self.corpus.lowercase
        return self.evaluate.model_copy(update={"lowercase": lowercase})

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        corpus = self.corpus
        # The recipe of an imported model knows no text: others trained its model.
        imported = corpus.subword.kind == "imported" and not corpus.train
        if not corpus.train and not imported:
            raise ValueError("corpus.train names no text to train on")
        if not corpus.valid and not corpus.valid_pairs and not imported:
            raise ValueError("neither corpus.valid nor corpus.valid_pairs is set")
        if corpus.subword.kind == "imported" and corpus.language_tokens:
            raise ValueError(
                "an imported model has language tokens of its own: "
                "corpus.train may have one target language"
            )
        self.model.check_start_ids(corpus.subword.vocab_size)
        if corpus.subword.kind != "imported" and len(self.model.start_ids) > 1:
            raise ValueError("model.start_ids has several ids, which only imported models have")
        if self.model.tied_embeddings == "all" and not corpus.subword.joint:
            raise ValueError('model.tied_embeddings = "all" needs corpus.subword.joint = true')
        if (
            self.train.stop_metric == "bleu"
            and self.train.patience
            and not self.evaluate.bleu_pairs
        ):
            raise ValueError('train.stop_metric = "bleu" never stops with evaluate.bleu_pairs = 0')
        return self

    @model_validator(mode="after")
    def _every_stage_begins(self) -> Self:
        names = [entry.name for entry in self.corpus.train if entry.name]
        begin = 0
        for number, stage in enumerate(self.stages):
            for name in stage.weights or ():
                if name not in names:
                    known = ", ".join(names) or 'none: write name = "..." beside them'
                    raise ValueError(
                        f"stages[{number}] has a weight for {name}; "
                        f"the names of the entries of corpus.train are {known}"
                    )
            if begin >= self.train.max_steps:
                raise ValueError(
                    f"stages[{number}] would begin at step {begin}, "
                    f"but train.max_steps is {self.train.max_steps}"
                )
            is_last = number + 1 == len(self.stages)
            if stage.steps is None and not is_last:
                raise ValueError(
                    f"stages[{number}] has no steps, so stages[{number + 1}] never begins"
                )
            begin += stage.steps or 0
            if is_last and stage.steps is not None and begin != self.train.max_steps:
                raise ValueError(
                    f"the stages end at step {begin}, but train.max_steps is "
                    f"{self.train.max_steps}; leave out the steps of the last stage"
                )
        return self

    @model_validator(mode="after")
    def _every_direction_is_drawn(self) -> Self:
        drawn = self.drawn_directions()
        missing = [one for one in self.corpus.train_directions if one not in drawn]
        if self.corpus.train and missing:
            raise ValueError(
                f"no stage draws a pair of {listed(missing)}: "
                "give its entries a weight above 0, or leave them out"
            )
        return self

    def with_languages(self, pair: str) -> Self:
        """The recipe of a trained model with its languages corrected to a pair such as "en-fr".

        "" changes nothing. Raises ConfigError if it is not a pair, or if the model has several
        directions: tokens of its vocabulary name them.
        """
        if not pair:
            return self
        place = f"languages {pair}"
        direction = parse_pair(pair, place=place)
        if len(self.corpus.directions) > 1 or self.corpus.language_tokens:
            raise ConfigError(
                f"the model translates {listed(self.corpus.directions)}, and its vocabulary names "
                "these languages",
                place=place,
                remedy="leave it out: only the languages of a model of one direction are corrected",
            )
        return self.model_copy(update={"corpus": self.corpus.with_languages(direction)})

    def stage_starts(self) -> tuple[int, ...]:
        """The step at which each stage begins; a recipe without stages has one, from step 0."""
        return (0, *itertools.accumulate(stage.steps or 0 for stage in self.stages[:-1]))

    def learning_rate(self, step: float, *, max_steps: int | None = None) -> float:
        """The rate of the schedule at a step, counted from 0, times the factor of its stage.

        max_steps: the length of the run, if it is not the recipe's.
        """
        rate = learning_rate(
            step,
            self.schedule,
            d_model=self.model.d_model,
            max_steps=max_steps or self.train.max_steps,
        )
        if not self.stages:
            return rate
        number = bisect.bisect_right(self.stage_starts(), step) - 1
        return rate * self.stages[number].learning_rate_factor

    def weights(self) -> tuple[tuple[float, ...] | None, ...]:
        """For each stage, the weights of the entries of the training text; None: no weights."""
        own = [entry.weight for entry in self.corpus.train]
        usual = None if None in own else tuple(weight for weight in own if weight is not None)
        return tuple(
            usual
            if stage.weights is None
            else tuple(stage.weights.get(entry.name, 0.0) for entry in self.corpus.train)
            for stage in self.stages or (StageConfig(),)
        )

    def drawn_directions(self) -> tuple[Direction | None, ...]:
        """For each entry of the training text, its direction; None if no stage draws from it."""
        stages = self.weights()
        return tuple(
            self.corpus.direction_of(entry)
            if any(weights is None or weights[number] for weights in stages)
            else None
            for number, entry in enumerate(self.corpus.train)
        )


@dataclass(frozen=True, slots=True)
class ShippedRecipe:
    """A recipe that comes with dragoman; the summary is the first comment of its file."""

    name: str
    summary: str
    path: Path


def list_recipes() -> list[ShippedRecipe]:
    """The shipped recipes, by name."""
    recipes = []
    for path in sorted(SHIPPED_RECIPES.glob("*.toml")):
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        summary = first.removeprefix("#").strip() if first.startswith("#") else ""
        recipes.append(ShippedRecipe(path.stem, summary, path))
    return recipes


def load_recipe(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    is_recorded: bool = False,
) -> Recipe:
    """The recipe of that name or file, with overrides like "schedule.warmup_steps=400".

    is_recorded: whether it is that of a trained model, whose languages may have wrong codes: they
        can be corrected when it is exported or served.
    source: a mapping stands for the content of a file in the current folder.
    The value of an override is TOML; a bare word is a string, and no value restores the default.
    `corpus.folder` of the result is absolute: names in the file are relative to its folder,
    names in an override to the current one. So the dump of a recipe works from anywhere.
    Raises ConfigError naming the file and line, or the override, the key and the remedy.
    """
    if isinstance(source, Mapping):
        _check_depth(source, place="recipe")
        file, text, values = Path("recipe"), "", _plain(source)
    else:
        file = _find(source)
        text = _read(file)
        values = _parse(text, place=str(file))
    if is_recorded and isinstance(values.get("sinks"), dict):
        values["sinks"].pop("prometheus_port", None)  # recorded by earlier versions, in every run
    values.setdefault("name", re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem))
    parsed = [_Override.parse(override) for override in overrides]
    for override in parsed:
        override.apply(values)
    corpus = values.setdefault("corpus", {})
    if isinstance(corpus, dict) and corpus.get("reverse") is True:
        corpus = values["corpus"] = reversed_section(corpus)
    folder = corpus.get("folder", "") if isinstance(corpus, dict) else None
    if isinstance(folder, str):
        corpus["folder"] = _resolved(folder, file.parent)
    _check_depth(values, place=str(file))
    try:
        # JSON in strict mode: arrays become tuples, yet "4000" and true are not integers.
        content = json.dumps(values, default=str, ensure_ascii=False).encode()
        recipe = Recipe.model_validate_json(content, strict=True)
    except UnicodeEncodeError as error:
        problem, remedy = unwritable_name(error)
        raise ConfigError(problem, place=file, remedy=remedy) from error
    except ValidationError as error:
        said = {override.path: override.text for override in parsed}
        raise from_validation(error, Recipe, file=file, text=text, overrides=said) from error
    if not is_recorded:
        said = {override.path: override.text for override in parsed}
        _check_languages(recipe.corpus, file=file, text=text, overrides=said)
    return recipe


def _check_languages(
    corpus: CorpusConfig, *, file: Path, text: str, overrides: Mapping[tuple[str, ...], str]
) -> None:
    """Raise ConfigError with the line or override of the first code that names no language."""
    sections: dict[Location, CorpusConfig | TextFiles] = {("corpus",): corpus}
    for split in _SPLITS:
        for number, entry in enumerate(getattr(corpus, split)):
            sections["corpus", split, number] = entry
    for section, values in sections.items():
        for key in LANGUAGE_KEYS:
            code, location = getattr(values, key), (*section, key)
            if not code or is_language(code):
                continue
            given = [said for path, said in overrides.items() if _related(path, location)]
            line = line_of(text, location)
            place = given[-1] if given else f"{file}:{line}" if line else None
            parse_language(code, place=place or _dotted(location))


def recorded_recipe(file: Path) -> Recipe:
    """The recipe that a run has recorded.

    If a version without `data.length_groups` began the run, its batches stay as they were: one
    group. Raises ConfigError as `load_recipe`.
    """
    recipe = load_recipe(str(file), is_recorded=True)
    if "length_groups" in recipe.data.model_fields_set:
        return recipe
    data = recipe.data.model_copy(update={"length_groups": 1})
    return recipe.model_copy(update={"data": data})


def dump_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML, every key in it; load_recipe reads it back to an equal one."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def check_sections(overrides: Sequence[str], sections: Sequence[str]) -> None:
    """Raise ConfigError if an override has no effect on a trained model.

    sections: those of the recipe that the command reads.
    """
    for override in overrides:
        if override.partition(".")[0].strip() not in sections:
            raise ConfigError(
                f"a model that is trained can be used with other {' and '.join(sections)} only",
                place=override,
                remedy="leave it out, or train another model",
            )


def digest(section: Section) -> str:
    """sha256 (hex) of a recipe or section as canonical JSON: values count, not their spelling.

    The destination of measurements is left out: it does not change the run.
    """
    values = section.model_dump(mode="json", exclude={"sinks"})
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Override:
    """One `--set`: the path of the key, its value, and the whole text."""

    path: tuple[str, ...]
    value: Any
    text: str

    @classmethod
    def parse(cls, override: str) -> _Override:
        key, equals, value = override.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise ConfigError(
                "is not of the form section.key=value",
                place=override,
                remedy="write for example schedule.warmup_steps=400",
            )
        return cls(path, _parse_value(value.strip(), override), override)

    def apply(self, values: dict[str, Any]) -> None:
        table = values
        for part in self.path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"{part} is not a section",
                    place=self.text,
                    remedy="name a section and a key of it, such as schedule.warmup_steps",
                )
        if self.value is None:
            table.pop(self.path[-1], None)
        else:
            table[self.path[-1]] = self._anchored()

    def _anchored(self) -> Any:
        """The value with file names made absolute, from the current directory."""
        if self.path == ("corpus",) and isinstance(self.value, dict):
            folder = self.value.get("folder", "")  # where all its other names start
            return self.value | ({"folder": _resolved(folder)} if isinstance(folder, str) else {})
        if self.path == ("corpus", "folder") and isinstance(self.value, str):
            return _resolved(self.value)
        if self.path[:1] == ("corpus",) and self.path[1:] in {(split,) for split in _SPLITS}:
            return _absolute(self.value)
        return self.value


def _parse_value(value: str, override: str) -> Any:
    """The value as TOML, a bare word as a string, None if there is nothing."""
    if not value:
        return None
    try:
        parsed = _parse(f"value = {value}", place=override, in_file=False)
    except ConfigError:
        if value[:1] in ("[", "{", '"', "'"):
            raise
        return value
    return parsed["value"] if len(parsed) == 1 else value


def _parse(text: str, *, place: str, in_file: bool = True) -> dict[str, Any]:
    """The values of a TOML text; raises ConfigError, quickly even for hostile text."""
    if key := _LONG_KEY.search(text):
        line = f":{text.count(chr(10), 0, key.start()) + 1}" if in_file else ""
        raise ConfigError(
            "a key has more than a hundred parts",
            place=f"{place}{line}",
            remedy="write section.key = value",
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise from_toml(error, place=place, in_file=in_file) from error
    except RecursionError as error:
        raise _too_deep(place) from error
    except ValueError as error:  # a number of thousands of digits, an impossible date
        raise ConfigError(
            f"is not TOML: {error}", place=place, remedy="give it a value of the usual size"
        ) from error


def _check_depth(values: Any, *, place: str) -> None:
    """Raise ConfigError if tables and arrays are nested deeper than in any recipe.

    A container of Python may contain itself, which counts as endless nesting.
    """
    level = [values]
    for _ in range(_DEEPEST):
        below = (
            inner
            for one in level
            if isinstance(one, _NESTED)
            for inner in (one.values() if isinstance(one, Mapping) else one)
        )
        # Each object once: one that contains itself twice would double the level at each step.
        level = list({id(inner): inner for inner in below}.values())
    if any(isinstance(one, _NESTED) for one in level):
        raise _too_deep(place)


def _too_deep(place: str) -> ConfigError:
    return ConfigError(
        f"tables or arrays are nested over {_DEEPEST} deep",
        place=place,
        remedy="a recipe has sections, keys and lists of files",
    )


def _absolute(entries: Any) -> Any:
    """The same entries of text with their file names made absolute; wrong types stay."""
    if not isinstance(entries, list):
        return entries
    return [
        {
            key: _resolved(name) if key in FILE_KEYS and isinstance(name, str) else name
            for key, name in entry.items()
        }
        if isinstance(entry, Mapping)
        else entry
        for entry in entries
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the keys whose value is None, which TOML does not have."""
    return {
        key: _plain(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _resolved(name: str, base: Path = Path()) -> str:
    """An absolute name; one that no file can have stays, for the section to refuse."""
    return name if "\0" in name else str((base / name).resolve())


def _find(name_or_path: str | Path) -> Path:
    shipped = SHIPPED_RECIPES / f"{name_or_path}.toml"
    if isinstance(name_or_path, str) and re.fullmatch(r"[\w-]+", name_or_path) and shipped.exists():
        return shipped
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.exists():
        return path
    names = [recipe.name for recipe in list_recipes()]
    near = difflib.get_close_matches(str(name_or_path), names, n=1)
    known = f"did you mean {near[0]}?" if near else f"the shipped ones are {', '.join(names)}"
    raise ConfigError(
        "there is no shipped recipe and no file of this name",
        place=str(name_or_path),
        remedy=f"{known} (a file's name ends in .toml)",
    )


def _read(file: Path) -> str:
    try:
        # Editors on Windows put a mark first, and end lines with two characters.
        text = read_regular(file, limit=_LONGEST_BYTES).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            "the recipe is not UTF-8", place=f"{file}:{line}", remedy="save the file as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the recipe: {error.strerror}",
            place=file,
            remedy="name a TOML file, or one of the recipes that `dragoman run --recipes` lists",
        ) from error


def from_toml(error: tomllib.TOMLDecodeError, *, place: str, in_file: bool = True) -> ConfigError:
    """An error of the TOML parser, with its line."""
    found = _TOML_LINE.search(str(error))
    line = f":{found[1]}" if found and found[1] and in_file else ""
    problem = _TOML_LINE.sub("", str(error))
    return ConfigError(
        f"is not TOML: {problem[:1].lower()}{problem[1:]}",
        place=f"{place}{line}",
        remedy='a section is [name], a line is key = value, text in quotes: kind = "cosine"',
    )


def from_validation(
    error: ValidationError,
    root: type[BaseModel],
    *,
    file: Path,
    text: str,
    overrides: Mapping[tuple[str, ...], str],
) -> ConfigError:
    """An error for the first wrong value, unknown keys first, with its line or override.

    root: the model that was validated, whose fields are searched for the nearest match.
    text: the content of the file.
    overrides: the text of each `--set`, by the path of its key.
    """
    # An unknown key often is the cause of what else is wrong.
    details = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    location = details["loc"]
    said = [given for path, given in overrides.items() if _related(path, location)]
    problem, remedy = _explain(details, root)
    # A mistake of two keys has the place of their section; the problem begins with one of them.
    key = _split(problem.partition(" ")[0])
    line = (
        line_of(text, (*location, *key), whole=True)
        or line_of(text, (*location[:-1], *key), whole=True)
        or line_of(text, location)
    )
    in_file = f"{file}:{line}" if line else str(file)
    # If keys disagree, the one that the problem names is at fault.
    said.sort(key=lambda given: given.partition("=")[0].rpartition(".")[2].strip() in problem)
    return ConfigError(problem, place=said[-1] if said else in_file, remedy=remedy)


def line_of(text: str, location: Location, *, whole: bool = False) -> int | None:
    """The line (from 1) that sets this key; for a key of an inline table, the line of the table.

    whole: only the line of the key itself counts, not that of its section.
    None if the file has no such line. Read line by line, for a file that tomllib accepts.
    """
    table: Location = ()
    seen: Counter[Location] = Counter()
    best: tuple[int, int | None] = (0, None)
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = path = _split(header[2])
            if header[1] == "[[":
                table = path = (*path, seen[path])
                seen[path[:-1]] += 1
        elif key := _KEY.match(line):
            path = (*table, *_split(key[1]))
        else:
            continue
        if len(path) > best[0] and location[: len(path)] == path:
            best = (len(path), number)
    return None if whole and best[0] < len(location) else best[1]


def _split(dotted: str) -> Location:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))


def _related(path: Location, location: Location) -> bool:
    shared = min(len(path), len(location))
    return shared > 0 and path[:shared] == location[:shared]


def _explain(details: ErrorDetails, root: type[BaseModel]) -> tuple[str, str]:
    """The problem and the remedy of one mistake, in words."""
    location, value = details["loc"], details["input"]
    key = _dotted(location)
    if details["type"] == "extra_forbidden":
        return f"unknown key {key[:_LONGEST_VALUE]}", _where_it_belongs(location, root)
    if details["type"] == "value_error":
        problem = details["msg"].removeprefix("Value error, ")
        return problem, "change it in the recipe, or override it"
    if details["type"] == "model_type":
        many = isinstance(location[-1], int)
        header = _header(_dotted(location[:-1]) if many else key, many=many)
        return f"{key} is a section, not a value", f"write {header} and its keys on lines below it"
    if details["type"] == "tuple_type":
        if _model_at(location, root):
            header = _header(key, many=True)
            return f"{key} is a list of sections", f"write {header} and its keys on lines below it"
        one = f"{location[-1]} = [{json.dumps(value, ensure_ascii=False)}]"
        return f"{key} is a list", f"write it in brackets: {one[:_LONGEST_VALUE]}"
    if details["type"] == "missing":
        return f"{key} is missing", f"write a line {location[-1]} = ..."
    must = details["msg"].replace("Input should be", "must be").replace("String should", "must")
    default = _default(location, root)
    remedy = "give it such a value" if default in (None, "") else f"the default is {default!r}"
    if details["type"] == "literal_error":
        choices = [choice.strip("' ") for choice in re.split(", | or ", details["ctx"]["expected"])]
        remedy = _nearest(str(value), choices) or remedy
    written = repr(value)
    if len(written) > _LONGEST_VALUE:
        written = f"{written[:_LONGEST_VALUE]}..."
    return f"{key} = {written}: {must[:1].lower()}{must[1:]}", remedy


def _where_it_belongs(location: Location, root: type[BaseModel]) -> str:
    """A remedy: the section that has this key, else the nearest known key, else all keys."""
    key = str(location[-1])
    section = _model_at(location[:-1], root)
    known = list(section.model_fields) if section else []
    for name, field in root.model_fields.items():
        model = _model_in(field.annotation)
        if model and key in model.model_fields:
            return f"it belongs to {_header(name, many=model is not field.annotation)}"
    top = root.model_fields.get(key)
    if top and not _model_in(top.annotation):
        return "it belongs to the top of the file, before any section"
    return _nearest(key, known) or f"the keys here are {', '.join(known)}"


def _header(name: str, *, many: bool) -> str:
    """The line that begins a section, or an entry if there may be many of them."""
    return f"[[{name}]]" if many else f"[{name}]"


def _nearest(word: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {near[0]}?" if near else ""


def _default(location: Location, root: type[BaseModel]) -> Any:
    section = _model_at(location[:-1], root)
    field = section.model_fields.get(str(location[-1])) if section else None
    return field.get_default() if field and not field.is_required() else None


def _model_at(location: Location, root: type[BaseModel]) -> type[BaseModel] | None:
    """The section at this path of keys and list positions."""
    model: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds: itself, or in a tuple."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _dotted(location: Location) -> str:
    named = [part for part in location if part != "[key]"]  # pydantic's mark of a table's key
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return text.removeprefix(".")
