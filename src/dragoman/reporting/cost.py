"""Machine-hours and their cost: each life at the price of its own machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dragoman.base import units
from dragoman.reporting.facts import Facts, Segment
from dragoman.telemetry.host import HourlyPrice


def lived_s(segment: Segment, until: float | None = None) -> float:
    """Seconds from the start of a life to its end, or to `until` if that is earlier."""
    ended = segment.ended if until is None else min(segment.ended, until)
    return max(ended - segment.started, 0.0)


def machine_hours(facts: Facts, *, until: float | None = None) -> float | None:
    """Hours of all machines together, from each start to each end; None if nothing was timed.

    None also if it is not known how many machines took part: see `Facts.machines_of`.
    until: the moment at which to stop counting.
    """
    if not facts.segments:
        return None
    spent_s = 0.0
    for segment in facts.segments:
        machines = facts.machines_of(segment)
        if machines is None:
            return None
        spent_s += lived_s(segment, until) * machines
    return spent_s / units.HOUR_S


def price_per_hour(facts: Facts, segment: Segment) -> HourlyPrice | None:
    """The price of all machines of one life together; None if it is not known.

    A given price counts for each machine. Otherwise the life's own record counts, or else the sum
    of the prices in hosts.json, if it has all of the hosts.
    """
    machines = facts.machines_of(segment)
    if facts.price is not None:
        return replace(facts.price, amount=machines * facts.price.amount) if machines else None
    if segment.price is not None:
        return segment.price
    known = [facts.host_prices.get(host) for host in dict.fromkeys(facts.hosts_of(segment))]
    prices = [price for price in known if price is not None]
    if not prices or len(prices) != machines:
        return None
    return replace(prices[0], amount=sum(price.amount for price in prices))


def is_priced(facts: Facts) -> bool:
    """Whether there is a life, and the price of every life is known."""
    known = [price_per_hour(facts, segment) is not None for segment in facts.segments]
    return bool(known) and all(known)


def spent(facts: Facts, *, until: float | None = None, more_s: float = 0.0) -> dict[str, float]:
    """The cost of the lives that have a price, by currency.

    until: the moment at which to stop counting.
    more_s: seconds for which the last life will go on.
    """
    amounts: dict[str, float] = {}
    for segment in facts.segments:
        price = price_per_hour(facts, segment)
        if price is not None:
            seconds_s = lived_s(segment, until) + (more_s if segment is facts.segments[-1] else 0.0)
            before = amounts.get(price.currency, 0.0)
            amounts[price.currency] = before + seconds_s / units.HOUR_S * price.amount
    return amounts


def only_currency(facts: Facts) -> str | None:
    """The currency of all costs; None if a life has no price, or if there are several
    currencies."""
    currencies = list(spent(facts)) if is_priced(facts) else []
    return currencies[0] if len(currencies) == 1 else None


def money_text(amounts: Mapping[str, float]) -> str:
    """Amounts by currency in words: "3.77 EUR and 14.05 USD"."""
    return " and ".join(units.money(amount, currency=name) for name, amount in amounts.items())


def spent_text(facts: Facts, *, more_s: float = 0.0) -> str:
    """`spent` in words; "" if the price of a life is not known."""
    return money_text(spent(facts, more_s=more_s)) if is_priced(facts) else ""


def cost_text(facts: Facts, seconds_s: float) -> str:
    """The cost of some seconds on the current machines; "" if machines or price are not known."""
    price = price_per_hour(facts, facts.segments[-1]) if facts.segments else None
    if price is None:
        return ""
    return units.money(seconds_s / units.HOUR_S * price.amount, currency=price.currency)
