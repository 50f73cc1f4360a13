"""A budget as the user types it, and the keys of a recipe that it may set: those not set yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.base.settings import Section
from dragoman.recipe.recipe import Recipe
from dragoman.telemetry.host import HourlyPrice

_MOST_S: Final = 366 * 86_400.0
_MONEY: Final = re.compile(r"(?!MIN)[A-Z]{3}\s*$")
_SHORT_MINUTES: Final = re.compile(r"(?<=\d)\s*m(?![a-zA-Z])")
_FORMS: Final = 'a time such as 30min, 1h30m or 6h, or an amount such as "50 USD"'


def parse_budget(text: str, price: HourlyPrice | None = None, *, place: str = "") -> float:
    """The seconds of a budget: the time itself, or the time that an amount of money pays for.

    price: the cost per hour of all machines together; None if it is not known. place: where the
    budget is written; "": on the command line.
    Raises ConfigError if the text is neither, if the time is zero or more than a year, or if no
    price turns the money into time.
    """
    place = place or f"budget {text}"
    money = money_of(text, place=place)
    if money is None:
        return _checked(_duration_s(text, place), place)
    amount, wanted = money
    if amount <= 0:
        return _checked(amount, place)
    if price is None:
        raise ConfigError(
            "no price turns this money into time",
            place=place,
            remedy="name a hosts.toml with price_per_hour for every host",
        )
    if wanted != price.currency:
        raise ConfigError(
            f"the prices of the hosts are in {price.currency}",
            place=place,
            remedy=f"give the budget in {price.currency}, too",
        )
    if price.amount <= 0:
        raise ConfigError(
            "the hosts cost nothing, so money sets no limit", place=place, remedy="give a time"
        )
    return _checked(amount / price.amount * units.HOUR_S, place)


def money_of(text: str, *, place: str = "") -> tuple[float, str] | None:
    """The amount and currency of a budget of money; None for a time.

    place: as in `parse_budget`.
    Raises ConfigError if the text ends in a currency, but is no amount.
    """
    if not _MONEY.search(text):
        return None
    try:
        return units.parse_money(text)
    except ConfigError as error:
        place = place or f"budget {text}"
        raise ConfigError(error.problem, place=place, remedy=f"write {_FORMS}") from error


def _duration_s(text: str, place: str) -> float:
    try:
        return units.DURATION.parse(_SHORT_MINUTES.sub("min", text))
    except ConfigError as error:
        raise ConfigError(
            f"{text!r} is not a budget", place=place, remedy=f"write {_FORMS}"
        ) from error


def _checked(seconds_s: float, place: str) -> float:
    if not 0 < seconds_s <= _MOST_S:
        what = "is more than a year" if seconds_s > 0 else "leaves no time at all"
        raise ConfigError(f"a budget that {what}", place=place, remedy=f"write {_FORMS}")
    return seconds_s


def keys_set(section: Section, path: str = "") -> frozenset[str]:
    """The keys that the recipe's file or a `--set` has set, as "train.max_steps"."""
    found: set[str] = set()
    for name in section.model_fields_set:
        value = getattr(section, name)
        key = f"{path}{name}"
        found |= keys_set(value, f"{key}.") if isinstance(value, Section) else {key}
    return frozenset(found)


def filled(recipe: Recipe, values: Mapping[str, Any], *, by_hand: frozenset[str]) -> Recipe:
    """The recipe with these values, except those whose keys were set by hand.

    Raises ConfigError if the sections then contradict each other.
    """
    document = recipe.model_dump(mode="json")
    for key, value in values.items():
        if key not in by_hand:
            *sections, name = key.split(".")
            table = document
            for section in sections:
                table = table[section]
            table[name] = value
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(
            what, place=recipe.name, remedy="set the keys that it names yourself, or leave both out"
        ) from error
