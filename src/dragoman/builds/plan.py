"""`build.toml`: which corpora and stages a build has, with their shares of the budget.

dragoman writes it once, and reads it at each start. In between, people may edit it.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Final, Literal, Self, get_args

import tomli_w
from pydantic import Field, ValidationError, model_validator

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError
from dragoman.base.files import write_whole
from dragoman.base.settings import Section
from dragoman.builds.corpora import Use
from dragoman.corpus.directions import parse_pair
from dragoman.recipe.recipe import Location, from_toml, from_validation, line_of

FILE: Final = "build.toml"
StageName = Literal[
    "fetch",
    "clean",
    "train",
    "reverse",
    "back-translate",
    "train-more",
    "translate",
    "student",
]
STAGES: Final[tuple[StageName, ...]] = get_args(StageName)
"""The stages in the order in which they are done."""
TRAINING: Final = frozenset({"train", "reverse", "train-more", "student"})
_TOGETHER: Final[tuple[tuple[StageName, ...], ...]] = (
    ("fetch", "clean", "train"),
    ("reverse", "back-translate", "train-more"),
    ("translate", "student"),
)
"""Stages that are useless without each other."""
_HEAD: Final = """\
# The plan of a build. Edit it before the build goes on: leave corpora out or add others (their ids
# are in corpora.tsv), change shares of the budget (they need not add up to 1; 0 leaves a stage
# out), or add set = ["SECTION.KEY=VALUE"] for the recipes of all models. A stage that is
# done is done again only if its inputs change.

"""


class PlannedCorpus(Section):
    """A corpus to fetch. needed: if it cannot be fetched, the build ends; otherwise the corpus is
    left out. The fields after `needed` are for people: they change only the report."""

    id: str = Field(pattern=r"^[^\s/\\\x00-\x1f]+$", max_length=300)
    use: Use
    needed: bool = True
    url: str = ""
    licence: str = ""
    size: str = ""
    pairs: str = ""
    why: str = ""


class PlannedStage(Section):
    """A stage. share: its weight among the stages. set: overrides of its recipe alone."""

    name: StageName
    share: float = Field(ge=0.0, le=1e6)
    set: tuple[str, ...] = ()
    why: str = ""


class BuildPlan(Section):
    """All that a build does.

    index: address or file of mtdata's index; "": mtdata's own. mono: a file of text of the target
    language. set: overrides of all recipes.
    """

    pair: str
    budget: str
    index: str = ""
    mono: str = ""
    set: tuple[str, ...] = ()
    corpus: tuple[PlannedCorpus, ...] = Field(min_length=1)
    stage: tuple[PlannedStage, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        parse_pair(self.pair)
        ids: list[str] = [one.id for one in self.corpus]
        if repeated := {one for one in ids if ids.count(one) > 1}:
            raise ValueError(f"the corpus {min(repeated)} is listed twice")
        if all(one.use != "train" for one in self.corpus):
            raise ValueError('no corpus has use = "train"')
        names: list[str] = [one.name for one in self.stage]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"the stage {min(repeated)} is listed twice")
        for one in self.stage:
            if one.set and one.name not in TRAINING:
                raise ValueError(f"stage {one.name} does not train, so it has no set")
        done = self.shares()
        for number, group in enumerate(_TOGETHER):
            missing = [name for name in group if name not in done]
            if missing and (number == 0 or len(missing) < len(group)):
                others = ", ".join(name for name in group if name != missing[0])
                raise ValueError(f"the stage {missing[0]} has no share, but {others} need it")
        has_mono = bool(self.mono) or any(one.use == "mono" for one in self.corpus)
        if "reverse" in done and not has_mono:
            raise ValueError('reverse needs text: mono = "FILE", or a corpus with use = "mono"')
        return self

    def shares(self) -> dict[StageName, float]:
        """The share of each stage that is done, in order; together they are 1."""
        given = {one.name: one.share for one in self.stage if one.share > 0}
        total = sum(given.values())
        return {name: given[name] / total for name in STAGES if name in given}

    def overrides(self, name: StageName) -> list[str]:
        """The overrides of the recipe of a stage."""
        own = (one.set for one in self.stage if one.name == name)
        return [*self.set, *next(own, ())]

    def why(self, name: StageName) -> str:
        """The reason for a stage; "" if none is given."""
        return next((one.why for one in self.stage if one.name == name), "")

    def save(self, directory: Path) -> None:
        """Write `build.toml`."""
        values = self.model_dump(mode="json")
        kept = {key: value for key, value in values.items() if value not in ("", [], ())}
        for key in ("corpus", "stage"):
            kept[key] = [{k: v for k, v in one.items() if v not in ("", [])} for one in kept[key]]
        with disk_errors_named(directory):
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / FILE, _HEAD + tomli_w.dumps(kept))


def read_plan(directory: Path) -> BuildPlan | None:
    """The plan of a build; None if there is none. Raises ConfigError if it cannot be read or
    done."""
    file = directory / FILE
    try:
        text = file.read_text("utf-8-sig")
        values = json.dumps(tomllib.loads(text), default=str)
        return BuildPlan.model_validate_json(values, strict=True)
    except FileNotFoundError:
        return None
    except tomllib.TOMLDecodeError as error:
        raise from_toml(error, place=str(file)) from error
    except ValidationError as error:
        said = from_validation(error, BuildPlan, file=file, text=text, overrides={})
        if error.errors()[0]["type"] != "value_error":
            raise said from error
        remedy = "correct it there, or remove the file to plan again"
        raise ConfigError(said.problem, place=said.place, remedy=remedy) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"cannot be read: {why}", place=file, remedy="mend it, or remove it to plan again"
        ) from error


def place_in(directory: Path, location: Location, text: str = "") -> str:
    """The file of the plan with the line that sets a key; of a list in several lines, the line with
    this text."""
    file = directory / FILE
    content = file.read_text("utf-8-sig")
    first = line_of(content, location) or 1
    lines = enumerate(content.splitlines()[first - 1 :], first)
    return f"{file}:{next((number for number, line in lines if text in line), first)}"
