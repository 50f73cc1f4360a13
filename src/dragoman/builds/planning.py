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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import write_whole
from dragoman.base.printable import printable_line
from dragoman.builds.corpora import (
    Corpus,
    CorpusLimits,
    by_budget,
    by_hand,
    check_chosen,
    monolingual,
    possible_training_text,
    sized,
)
from dragoman.builds.plan import (
    FILE,
    TRAINING,
    BuildPlan,
    PlannedCorpus,
    PlannedStage,
    StageName,
    read_plan,
)
from dragoman.builds.translation import MOST_OF_PAIRS, count_sentences
from dragoman.corpus.catalogue import Catalogue
from dragoman.corpus.directions import parse_pair
from dragoman.corpus.download import download
from dragoman.recipe.budget import parse_budget
from dragoman.recipe.recipe import Location, Recipe, line_of, load_recipe
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
    """The wishes of the user.

    budget: as typed; "" if the build has a plan already. choose: ids of corpora; empty: the budget
    decides. overrides: settings to change in the recipes of all models.
    """

    pair: str
    budget: str = ""
    index: str = ""
    choose: Sequence[str] = ()
    mono: Path | None = None
    student: bool = False
    overrides: Sequence[str] = ()

    @property
    def index_place(self) -> str:
        """The index as an address or an absolute path, valid in every folder; "": mtdata's own."""
        if not self.index or "://" in self.index:
            return self.index
        return str(Path(self.index).resolve())


def planned(
    wanted: Wanted, directory: Path, place: Place, *, dry_run: bool = False
) -> tuple[BuildPlan, list[Corpus]]:
    """The plan in the directory of a build, and no corpora; or a new plan, which is written there,
    and all corpora with their uses.

    dry_run: check that the budget is large enough, by a timing.
    Raises ConfigError if the plan contradicts the wishes, its overrides are wrong or a new one has
    no budget, and the errors of `read_plan`, `index_file` and `make_plan`.
    """
    pair = parse_pair(wanted.pair)
    plan = read_plan(directory)
    if plan is not None:
        _check_same(wanted, plan, directory)
        _check_overrides(plan, directory)
        place_of_budget = _line(directory, ("budget",))
        budget_s = parse_budget(plan.budget, place.price, place=place_of_budget)
        if dry_run:
            check_least(plan, budget_s, place, directory)
        return plan, []
    if not wanted.budget:
        raise ConfigError(
            "a build needs a budget, and there is no build.toml yet",
            place="budget",
            remedy="give a time such as 6h",
        )
    budget_s = parse_budget(wanted.budget, place.price)
    _recipe_of(wanted.overrides)  # their mistakes are told before anything is fetched
    catalogue = Catalogue(index_file(wanted.index, directory))
    plan, corpora = make_plan(catalogue, wanted, pair, budget_s, place)
    plan.save(directory)
    save_corpora(corpora, directory)
    if dry_run:
        check_least(plan, budget_s, place, directory)
    return plan, corpora


def _check_same(wanted: Wanted, plan: BuildPlan, directory: Path) -> None:
    file = directory / FILE
    agrees = {
        "pair": wanted.pair == plan.pair,
        "budget": wanted.budget in ("", plan.budget),
        "choose": set(wanted.choose) <= {one.id for one in plan.corpus},
        "mono": wanted.mono is None or str(wanted.mono.resolve()) == plan.mono,
        "index": not wanted.index or wanted.index_place == plan.index,
        "overrides": list(wanted.overrides) in ([], list(plan.set)),
        "student": not wanted.student or "student" in plan.shares(),
    }
    for name, same in agrees.items():
        if not same:
            raise ConfigError(
                f"{file} has another value",
                place=name,
                remedy="edit it there and leave it out here, or name another directory",
            )


def _check_overrides(plan: BuildPlan, directory: Path) -> None:
    """Raise ConfigError with the line of an override that somebody has written into the plan."""
    places: list[tuple[Location, Sequence[str]]] = [(("set",), plan.set)]
    for number, stage in enumerate(plan.stage):
        if stage.set and stage.share > 0:
            places.append((("stage", number, "set"), plan.overrides(stage.name)))
    for location, overrides in places:
        try:
            _recipe_of(overrides)
        except ConfigError as error:
            text = error.place
            raise ConfigError(
                f"{text}: {error.problem}",
                place=_line(directory, location, text),
                remedy=error.remedy,
            ) from error


def _line(directory: Path, location: Location, text: str = "") -> str:
    """The file of the plan with the line that sets this key; in a list of several lines, the line
    with this text."""
    file = directory / FILE
    content = file.read_text("utf-8-sig")
    line = line_of(content, location)
    if line is None:
        return str(file)
    below = content.splitlines()[line - 1 :]
    return f"{file}:{next((n for n, said in enumerate(below, line) if text in said), line)}"


def check_least(plan: BuildPlan, budget_s: float, place: Place, directory: Path) -> None:
    """Raise ConfigError if the first training would get too little time on this machine, even with
    the fewest pairs and the smallest model."""
    recipe = _smallest(plan.overrides("train"))
    text = TextFacts(_LEAST_PAIRS, round(_LEAST_PAIRS * _TOKENS_PER_PAIR))
    share = plan.shares()["train"]
    try:
        plan_text(recipe, share * budget_s, text, place)
    except TooSmallError as error:
        raise too_small(rounded_up(error.needed_s / share), directory) from error


def too_small(needed_s: float, directory: Path) -> ConfigError:
    """The error of a build whose first training gets too little time."""
    return ConfigError(
        "the budget is too small to train a useful model",
        place=_line(directory, ("budget",)),
        remedy=f'write budget = "{units.DURATION.text(needed_s)}" there, and run it again '
        "without a budget: finished downloads are kept",
    )


def _recipe_of(overrides: Sequence[str]) -> Recipe:
    """A recipe of no text, with these overrides."""
    entry = [{"tsv": "none"}]
    languages = {"source_language": "en", "target_language": "de"}
    values = {"name": "none", "corpus": {"train": entry, "valid": entry, **languages}}
    return load_recipe(values, overrides)


def listed(
    catalogue: Catalogue, wanted: Wanted, pair: tuple[str, str], *, at_most_s: float
) -> list[Corpus]:
    """All corpora of the pair with their sizes.

    Raises ConfigError if the index has none of this pair, or lacks one that was chosen.
    """
    found = catalogue.of_pair(*pair)
    if not found:
        others = other_forms(catalogue, pair)
        raise ConfigError(
            f"the index has no corpus of these languages{f', but {others}' if others else ''}",
            place=wanted.pair,
            remedy="check their codes, or run a recipe with your own text and a budget",
        )
    check_chosen(found, wanted.choose)
    return sized(found, at_most_s=at_most_s)


def other_forms(catalogue: Catalogue, pair: tuple[str, str]) -> str:
    """How many corpora of the index are of the pair in another script or region; "" if none is."""
    counts = catalogue.other_forms(*pair).most_common()
    most = ", ".join(f"{count} of {codes}" for codes, count in counts[:_FORMS])
    more = sum(count for _, count in counts[_FORMS:])
    return f"{most}{f' and {more} more' if more else ''} (another script or region)" if most else ""


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


def save_corpora(corpora: Sequence[Corpus], directory: Path) -> None:
    """Write `corpora.tsv`: all corpora, each with its use and the reason."""
    lines = ["id\tuse\tbytes\tpairs\tlicence\turl\twhy"]
    for one in corpora:
        cells = (
            *(one.listing.did, one.use or "", one.num_bytes or "", one.pairs or ""),
            *(one.listing.licence, " ".join(one.listing.url), one.why),
        )
        # Some of it was written by strangers: see `printable_line`.
        lines.append("\t".join(printable_line(" ".join(str(cell).split())) for cell in cells))
    with disk_errors_named(directory):
        write_whole(directory / "corpora.tsv", "\n".join(lines) + "\n")


def _asking_s(budget_s: float) -> float:
    """Seconds that servers have to state the sizes of their corpora."""
    least, most = _ASK_S
    return min(max(_ASK_SHARE * budget_s, least), most)


def make_plan(
    catalogue: Catalogue, wanted: Wanted, pair: tuple[str, str], budget_s: float, place: Place
) -> tuple[BuildPlan, list[Corpus]]:
    """The plan, and all corpora with their uses and the reasons.

    Raises ConfigError if nothing fits into the budget or the corpora chosen by hand make no plan,
    MachineError if no server states the size of a corpus, CorpusError if the text of one language
    cannot be read, and the errors of `listed`.
    """
    corpora = listed(catalogue, wanted, pair, at_most_s=_asking_s(budget_s))
    if not wanted.choose and all(one.num_bytes is None for one in corpora):
        raise MachineError(
            f"no server of the {len(corpora)} corpora says how large they are",
            place=wanted.pair,
            remedy="check the network, or choose corpora by hand",
        )
    tokens_per_s = _tokens_per_s(wanted, place, budget_s)
    seen = tokens_per_s * _SHARES["train"] * budget_s / _TOKENS_PER_PAIR
    limits = CorpusLimits(
        pairs=max(round(seen), _LEAST_PAIRS),
        most_pairs=math.ceil(_SHARES["clean"] * budget_s * PREPARE_PAIRS_PER_S * cpu_cores()),
        most_bytes=math.ceil(_SHARES["fetch"] * budget_s * _FETCH_BYTES_PER_S),
    )
    judged = (
        by_hand(corpora, wanted.choose) if wanted.choose else by_budget(corpora, limits, pair=pair)
    )
    chosen = [one for one in judged if one.use is not None]
    if all(one.use != "train" for one in chosen):
        _nothing_fits(judged, wanted, limits, budget_s)
    counts = [one.pairs for one in chosen if one.use == "train"]
    pairs = 0 if None in counts else sum(one or 0 for one in counts)
    mono, why_more, why_not = _more_text(catalogue, wanted, pair, seen, pairs, limits, budget_s)
    if mono is not None:
        chosen.append(mono)
        judged.append(mono)
    shares = dict(_WITH_MORE_TEXT if why_more else _SHARES)
    if wanted.student:
        left = 1 - sum(_FOR_STUDENT.values())
        shares = {name: round(left * share, 4) for name, share in shares.items()} | _FOR_STUDENT
    whys = dict(_WHY) | ({"train": _WHY_FIRST, "reverse": why_more} if why_more else {})
    if not why_more:
        whys["train"] += f"; no back-translation: {why_not}"
    values = {
        "pair": wanted.pair,
        "budget": wanted.budget,
        "index": wanted.index_place,
        "mono": "" if wanted.mono is None else str(wanted.mono.resolve()),
        "set": tuple(wanted.overrides),
        "corpus": tuple(_planned(one, needed=bool(wanted.choose)) for one in chosen),
        "stage": tuple(
            PlannedStage(name=name, share=share, why=whys[name]) for name, share in shares.items()
        ),
    }
    try:
        return BuildPlan.model_validate(values), judged
    except ValidationError as error:  # several test sets, for example
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(problem, place="choose", remedy="leave one out") from error


def _more_text(
    catalogue: Catalogue,
    wanted: Wanted,
    pair: tuple[str, str],
    seen: float,
    pairs: int,
    limits: CorpusLimits,
    budget_s: float,
) -> tuple[Corpus | None, str, str]:
    """A corpus of the target language from the index, if one is used; the reason for
    back-translation; the reason against it. One of the reasons is ""."""
    given = None if wanted.mono is None else count_sentences(wanted.mono)
    if not pairs:
        return None, "", "the number of pairs is not known"
    times = seen / pairs
    least_s = min(share for name, share in _WITH_MORE_TEXT.items() if name in TRAINING) * budget_s
    often = f"{times:.2g} times"
    if times < REPETITIONS:
        return (
            None,
            "",
            f"the pairs are seen {often}, from {REPETITIONS:g} times on it would be better",
        )
    if least_s < _LEAST_TRAINING_S:
        return None, "", f"the pairs are seen {often}, but there is no time for three trainings"
    if given is not None:
        lines, mono = given, None
    else:
        found = sized(catalogue.of_language(pair[1]), at_most_s=_asking_s(budget_s))
        mono = monolingual(found, lines=pairs, most_bytes=limits.most_bytes // 2)
        lines = 0 if mono is None else mono.pairs or 0
    if lines < pairs:
        return None, "", f"the pairs are seen {often}, but there is too little text of {pair[1]}"
    why = (
        f"the pairs alone would be seen {often}, and a pass over text that was seen "
        f"{REPETITIONS:g} times teaches a third of new text; up to {MOST_OF_PAIRS} lines a pair "
        "are translated"
    )
    return mono, why, ""


def _nothing_fits(
    judged: Sequence[Corpus], wanted: Wanted, limits: CorpusLimits, budget_s: float
) -> None:
    if wanted.choose:
        raise ConfigError(
            "none of these corpora is training text", place="choose", remedy="add one that is"
        )
    # A dev and a test set, which are fetched in the same time, may be larger in a larger budget.
    held_out_bytes = 2 * sum(one.num_bytes or 0 for one in judged if one.use is not None)

    def needed_s(one: Corpus) -> float:
        num_bytes = held_out_bytes + (one.num_bytes or 0)
        shares = num_bytes / limits.most_bytes, (one.pairs or 0) / limits.most_pairs
        return budget_s * max(shares)

    smallest = min(possible_training_text(judged), key=needed_s, default=None)
    if smallest is None:
        raise ConfigError(
            "no corpus of this pair is training text that can be read here and whose size is known",
            place=wanted.pair,
            remedy=f"list them: dragoman build {wanted.pair} --list; or run a recipe with your own "
            "text and a budget",
        )
    raise ConfigError(
        f"no corpus fits: {units.SIZE.text(limits.most_bytes)} can be fetched and "
        f"{units.SHORT_COUNT.text(limits.most_pairs)} pairs cleaned in the time, and the smallest, "
        f"{smallest.listing.did}, has {units.SIZE.text(smallest.num_bytes or 0)} and "
        f"{units.SHORT_COUNT.text(smallest.pairs or 0)} pairs",
        place=f"budget {wanted.budget}",
        remedy=f"give at least {units.DURATION.text(rounded_up(needed_s(smallest)))}, or choose "
        "by hand",
    )


def _planned(one: Corpus, *, needed: bool) -> PlannedCorpus:
    assert one.use is not None
    pairs = "" if one.pairs is None else units.SHORT_COUNT.text(one.pairs)
    return PlannedCorpus(
        id=one.listing.did,
        use=one.use,
        needed=needed,
        url=" ".join(one.listing.url),
        licence=one.listing.licence,
        size="" if one.num_bytes is None else units.SIZE.text(one.num_bytes),
        pairs=f"about {pairs}" if pairs and one.is_guess else pairs,
        why=one.why,
    )


def _tokens_per_s(wanted: Wanted, place: Place, budget_s: float) -> float:
    """Target tokens per second of the smallest model: the size to train is not known yet."""
    recipe = _smallest(wanted.overrides)
    return machine_of(place, recipe, budget_s=budget_s).speed(recipe)


def _smallest(overrides: Sequence[str]) -> Recipe:
    """A recipe of no text with the smallest model, unless the overrides set another."""
    small = zip(SIZE_KEYS, SIZES["mini"], strict=True)
    if not any(one.strip().startswith("model.") for one in overrides):
        overrides = [*overrides, *(f"model.{key}={value}" for key, value in small)]
    return _recipe_of(overrides)
