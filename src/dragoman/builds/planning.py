"""The plan of a build: how its budget is spent, by rules that state their reasons.

Back-translation has three conditions: the training would see the pairs 15.4 times or more; there is
at least as much text of the target language; each of three trainings gets a minute or more. After
15.4 passes, one more teaches a third as much as new text (Muennighoff et al. 2023: R*), and models
learn from translated text as well (Sennrich et al. 2016).
A model of the pairs alone is trained first: the gain is measured against it.

A student: only if somebody wants one. It is faster than its teacher, and rarely better.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, MachineError
from dragoman.builds.corpora import (
    Corpus,
    CorpusLimits,
    by_budget,
    by_hand,
    monolingual,
    save_corpora,
    sized,
)
from dragoman.builds.plan import (
    FILE,
    TRAINING,
    BuildPlan,
    PlannedCorpus,
    PlannedStage,
    StageName,
    place_in,
    read_plan,
)
from dragoman.builds.translation import MOST_OF_PAIRS, count_sentences
from dragoman.corpus.catalogue import Catalogue
from dragoman.corpus.directions import Direction, parse_pair
from dragoman.corpus.download import download
from dragoman.recipe.budget import parse_budget
from dragoman.recipe.recipe import Location, Recipe, load_recipe
from dragoman.run.budget_plan import (
    PREPARE_PAIRS_PER_S,
    Place,
    TooSmallError,
    machine_of,
    plan_text,
    rounded_up,
)
from dragoman.run.sizes import SIZE_KEYS, SIZES, TextFacts
from dragoman.telemetry.host import cpu_cores

REPETITIONS: Final = 15.4
"""R* of Muennighoff et al. 2023: epochs after which further ones are worth little."""
_FORMS: Final = 4
"""The most forms of a pair that a message names."""
_SHARES: Final[dict[StageName, float]] = {"fetch": 0.1, "clean": 0.05, "train": 0.85}
_WITH_MORE_TEXT: Final[dict[StageName, float]] = {
    "fetch": 0.1,
    "clean": 0.05,
    "train": 0.2,
    "reverse": 0.15,
    "back-translate": 0.1,
    "train-more": 0.4,
}
_FOR_STUDENT: Final[dict[StageName, float]] = {"translate": 0.1, "student": 0.2}
_WHY: Final[dict[StageName, str]] = {
    "fetch": "the chosen corpora",
    "clean": "filters, vocabulary, shards; all other models use its dev and test sets",
    "train": "the model",
    "reverse": "a model of the other direction, to translate text of the target language",
    "back-translate": "as many lines as fit into the time",
    "train-more": "the model of the pairs and of the translated text",
    "translate": "the best model's own translations, which the student learns beside the pairs",
    "student": "a model of one decoder layer, which translates faster",
}
_WHY_FIRST: Final = "a model of the pairs alone: the baseline for the gain of more text"
_TOKENS_PER_PAIR: Final = 18.0
"""Target tokens of a typical pair: 75 bytes in pieces of 4.5, and the end of the sentence."""
_FETCH_BYTES_PER_S: Final = 2e6
"""The rate of a usual connection and server: a guess, since neither is measured beforehand."""
_LEAST_PAIRS: Final = 10_000
"""Fewer pairs do not make a useful model, however short the time."""
_LEAST_TRAINING_S: Final = 60.0
"""The only training may be shorter; several are planned only if each lasts this long."""
_ASK_SHARE: Final = 0.02
_ASK_S: Final = (5.0, 60.0)
"""The least and the most seconds for asking servers for sizes; the share of the budget is above."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wishes of the user; the fields are the options of `build`.

    budget: as typed; "" if the build has a plan already. index: an address, or the absolute path of
    a file; "": mtdata's own.
    """

    pair: str
    directory: Path
    budget: str = ""
    index: str = ""
    choose: Sequence[str] = ()
    mono: Path | None = None
    student: bool = False
    overrides: Sequence[str] = ()
    place: Place = field(default_factory=Place)

    @property
    def languages(self) -> Direction:
        """The source and the target language."""
        return parse_pair(self.pair)


@dataclass(frozen=True, slots=True)
class Choice:
    """All corpora of two languages, and which are used.

    other_forms: how many corpora are of another script or region of them, in words.
    """

    corpora: Sequence[Corpus]
    other_forms: str


def planned(wanted: Wanted, *, dry_run: bool = False) -> tuple[BuildPlan, Choice | None]:
    """The plan of a build, from its build.toml if there is one; otherwise a new one, which is
    saved, with the choice of corpora.

    dry_run: check that the budget is large enough, by a timing.
    Raises ConfigError if the plan contradicts the wishes, its overrides are wrong, nothing fits
    into the budget or a new plan has none; and the errors of `read_plan` and `listed`.
    """
    directory, place = wanted.directory, wanted.place
    plan, choice = read_plan(directory), None
    if plan is not None:
        _check_same(wanted, plan)
        _check_overrides(plan, directory)
    elif not wanted.budget:
        raise ConfigError(
            "a build needs a budget, and there is no build.toml yet",
            place="budget",
            remedy="give a time such as 6h",
        )
    else:
        parse_pair(wanted.pair)
        budget_s = parse_budget(wanted.budget, place.price)
        _recipe_of(wanted.overrides)  # their mistakes are told before anything is fetched
        plan, choice = _new_plan(wanted, budget_s)
        plan.save(directory)
        save_corpora(choice.corpora, directory)
    budget_s = budget_of(plan, wanted)
    if dry_run:
        _check_least(plan, budget_s, wanted)
    return plan, choice


def budget_of(plan: BuildPlan, wanted: Wanted) -> float:
    """The seconds of a plan's budget; raises ConfigError with the line of a wrong one."""
    place = place_in(wanted.directory, ("budget",))
    return parse_budget(plan.budget, wanted.place.price, place=place)


def _check_same(wanted: Wanted, plan: BuildPlan) -> None:
    agrees = {
        "pair": wanted.pair == plan.pair,
        "budget": wanted.budget in ("", plan.budget),
        "choose": set(wanted.choose) <= {one.id for one in plan.corpus},
        "mono": wanted.mono is None or str(wanted.mono.resolve()) == plan.mono,
        "index": wanted.index in ("", plan.index),
        "overrides": list(wanted.overrides) in ([], list(plan.set)),
        "student": not wanted.student or "student" in plan.shares(),
    }
    for name, same in agrees.items():
        if not same:
            raise ConfigError(
                f"{wanted.directory / FILE} has another value",
                place=name,
                remedy="edit it there and leave it out here, or name another directory",
            )


def _check_overrides(plan: BuildPlan, directory: Path) -> None:
    """Raise ConfigError with the line of an override that somebody has written into the plan."""
    places: list[tuple[Location, Sequence[str]]] = [(("set",), plan.set)]
    for number, stage in enumerate(plan.stage):
        places.append((("stage", number, "set"), [*plan.set, *stage.set]))
    for location, overrides in places:
        try:
            _recipe_of(overrides)
        except ConfigError as error:
            raise ConfigError(
                f"{error.place}: {error.problem}",
                place=place_in(directory, location, error.place),
                remedy=error.remedy,
            ) from error


def _check_least(plan: BuildPlan, budget_s: float, wanted: Wanted) -> None:
    """Raise ConfigError if the first training would get too little time on this machine, even with
    the fewest pairs and the smallest model."""
    text = TextFacts(_LEAST_PAIRS, round(_LEAST_PAIRS * _TOKENS_PER_PAIR))
    recipe = _smallest(plan.overrides("train"))
    try:
        plan_text(recipe, plan.shares()["train"] * budget_s, text, wanted.place)
    except TooSmallError as error:
        raise too_small(error, plan, wanted.directory) from error


def too_small(error: TooSmallError, plan: BuildPlan, directory: Path) -> ConfigError:
    """The error of a build whose first training gets too little time."""
    least = units.DURATION.text(rounded_up(error.needed_s / plan.shares()["train"]))
    return ConfigError(
        "the budget leaves too little time to train a useful model",
        place=place_in(directory, ("budget",)),
        remedy=f'run it again with budget = "{least}" there, or more: the clock starts again, and '
        "finished downloads are kept",
    )


def _recipe_of(overrides: Sequence[str]) -> Recipe:
    """A recipe of no text, with these overrides."""
    entry = [{"tsv": "none"}]
    languages = {"source_language": "en", "target_language": "de"}
    values = {"name": "none", "corpus": {"train": entry, "valid": entry, **languages}}
    return load_recipe(values, overrides)


def _smallest(overrides: Sequence[str]) -> Recipe:
    """A recipe of no text with the smallest model, unless the overrides set another."""
    if not any(one.strip().startswith("model.") for one in overrides):
        small = zip(SIZE_KEYS, SIZES["mini"], strict=True)
        overrides = [*overrides, *(f"model.{key}={value}" for key, value in small)]
    return _recipe_of(overrides)


def listed(wanted: Wanted, *, at_most_s: float) -> Choice:
    """All corpora of the pair with their sizes. at_most_s: how long to wait for servers.

    Raises ConfigError if the index has none of this pair, or lacks one that was chosen.
    """
    catalogue = Catalogue(index_file(wanted.index, wanted.directory))
    listings = catalogue.of_pair(*wanted.languages)
    forms = catalogue.other_forms(*wanted.languages).most_common()
    most = ", ".join(f"{count} of {codes}" for codes, count in forms[:_FORMS])
    more = sum(count for _, count in forms[_FORMS:])
    others = f"{most}{f' and {more} more' if more else ''} (another script or region)"
    if not listings:
        raise ConfigError(
            f"the index has no corpus of these languages{f', but {others}' if forms else ''}",
            place=wanted.pair,
            remedy="check their codes, or run a recipe with your own text and a budget",
        )
    if unknown := set(wanted.choose) - {one.did for one in listings}:
        raise ConfigError(
            "is not a corpus of these languages in the index",
            place=f"choose {min(unknown)}",
            remedy=f"list them: dragoman build {wanted.pair} --list",
        )
    return Choice(sized(listings, at_most_s=at_most_s), others if forms else "")


def index_file(index: str, directory: Path) -> Path | None:
    """The file of an index; each one on the web is fetched once, into the directory of the build.

    None for "": mtdata's own. Raises ConfigError for another kind of address, and the errors of
    `download`.
    """
    if "://" not in index:
        return Path(index) if index else None
    if not index.startswith(("http://", "https://")):
        raise ConfigError(
            f"{index} is not a web address",
            place="index",
            remedy="write http:// or https://, or the name of a file",
        )
    file = directory / f"index-{hashlib.sha256(index.encode()).hexdigest()[:8]}.jsonl"
    with disk_errors_named(directory):
        download(index, file)
    return file


def _new_plan(wanted: Wanted, budget_s: float) -> tuple[BuildPlan, Choice]:
    """The plan, and all corpora with their uses and the reasons; for the errors see `planned`.

    Raises MachineError if no server states the size of a corpus, CorpusError if the text of one
    language cannot be read.
    """
    least_s, most_s = _ASK_S
    asking_s = min(max(_ASK_SHARE * budget_s, least_s), most_s)
    choice = listed(wanted, at_most_s=asking_s)
    if not wanted.choose and all(one.num_bytes is None for one in choice.corpora):
        raise MachineError(
            f"no server of the {len(choice.corpora)} corpora says how large they are",
            place=wanted.pair,
            remedy="check the network, or choose corpora by hand",
        )
    smallest = _smallest(wanted.overrides)  # the size to train is not known yet
    tokens_per_s = machine_of(wanted.place, budget_s=budget_s).speed(smallest)
    seen = tokens_per_s * _SHARES["train"] * budget_s / _TOKENS_PER_PAIR
    limits = CorpusLimits(
        budget_s,
        pairs=max(round(seen), _LEAST_PAIRS),
        most_pairs=math.ceil(_SHARES["clean"] * budget_s * PREPARE_PAIRS_PER_S * cpu_cores()),
        most_bytes=math.ceil(_SHARES["fetch"] * budget_s * _FETCH_BYTES_PER_S),
    )
    if wanted.choose:
        corpora = by_hand(choice.corpora, wanted.choose)
    else:
        corpora = by_budget(choice.corpora, limits, pair=wanted.languages)
    counts = [one.pairs for one in corpora if one.use == "train"]
    pairs = 0 if None in counts else sum(one or 0 for one in counts)
    is_worth, why, mono = _more_text(wanted, seen, pairs, limits, asking_s)
    shares, whys = _SHARES, _WHY | {"train": f"{_WHY['train']}; no back-translation: {why}"}
    if is_worth:
        shares, whys = _WITH_MORE_TEXT, _WHY | {"train": _WHY_FIRST, "reverse": why}
        corpora = [*corpora, *mono]
    if wanted.student:
        left = 1 - sum(_FOR_STUDENT.values())
        shares = {name: round(left * share, 4) for name, share in shares.items()} | _FOR_STUDENT
    plan = BuildPlan(
        pair=wanted.pair,
        budget=wanted.budget,
        index=wanted.index,
        mono="" if wanted.mono is None else str(wanted.mono.resolve()),
        set=tuple(wanted.overrides),
        corpus=tuple(
            PlannedCorpus(
                id=one.did,
                use=one.use,
                needed=bool(wanted.choose),
                url=" ".join(one.listing.url),
                licence=one.listing.licence,
                size=one.size_text,
                pairs=one.pairs_text,
                why=one.why,
            )
            for one in corpora
            if one.use is not None
        ),
        stage=tuple(
            PlannedStage(name=name, share=share, why=whys[name]) for name, share in shares.items()
        ),
    )
    return plan, Choice(corpora, choice.other_forms)


def _more_text(
    wanted: Wanted, seen: float, pairs: int, limits: CorpusLimits, asking_s: float
) -> tuple[bool, str, list[Corpus]]:
    """Whether back-translation is worth its time, the reason, and its corpus if that is one of the
    index. seen: pairs that the training has time for. pairs: different ones; 0 if not known."""
    lines = 0 if wanted.mono is None else count_sentences(wanted.mono)
    if not pairs:
        return False, "the number of pairs is not known", []
    often = f"{seen / pairs:.2g} times"
    if seen < REPETITIONS * pairs:
        why = f"the pairs are seen {often}, from {REPETITIONS:g} times on it would be better"
        return False, why, []
    trainings = [share for name, share in _WITH_MORE_TEXT.items() if name in TRAINING]
    if min(trainings) * limits.budget_s < _LEAST_TRAINING_S:
        return False, f"the pairs are seen {often}, but there is no time for three trainings", []
    mono: list[Corpus] = []
    if wanted.mono is None:
        language = wanted.languages[1]
        corpora = Catalogue(index_file(wanted.index, wanted.directory)).of_language(language)
        found = monolingual(
            sized(corpora, at_most_s=asking_s), lines=pairs, most_bytes=limits.most_bytes // 2
        )
        mono = [] if found is None else [found]
        lines = sum(one.pairs or 0 for one in mono)
    if lines < pairs:
        why = f"the pairs are seen {often}, but there is too little text of {wanted.languages[1]}"
        return False, why, []
    why = (
        f"the pairs alone would be seen {often}, and a pass over text that was seen "
        f"{REPETITIONS:g} times teaches a third of new text; up to {MOST_OF_PAIRS} lines a pair "
        "are translated"
    )
    return True, why, mono
