"""Machine-hours and what they cost at a stated price."""

from __future__ import annotations

from dragoman.base import units
from dragoman.reporting.facts import Facts, Price, Segment

HOUR_S = 3600.0


def machine_hours(facts: Facts, *, priced_alone: bool = False) -> float | None:
    """Hours of all machines together, from each start to each end; None without a time.

    None also if it is not known how many machines took part: see `Facts.machines_of`.
    priced_alone: of lives on hosts that the price is of.
    """
    if not facts.segments:
        return None
    spent_s = 0.0
    for segment in facts.segments:
        if priced_alone and not has_price(facts, segment):
            continue
        machines = facts.machines_of(segment)
        if machines is None:
            return None
        spent_s += (segment.ended - segment.started) * machines
    return spent_s / HOUR_S


def has_price(facts: Facts, segment: Segment) -> bool:
    """Whether a life recorded its price, or the price of a machine is of its hosts."""
    if segment.price is not None or facts.priced_hosts is None:
        return True
    return set(facts.hosts_of(segment)) <= set(facts.priced_hosts)


def is_priced(facts: Facts) -> bool:
    """Whether there is a price, and of the hosts of every life."""
    return facts.price is not None and all(has_price(facts, one) for one in facts.segments)


def spent(facts: Facts, *, more_s: float = 0.0, priced_alone: bool = False) -> float | None:
    """What the run has cost so far, and what it will in `more_s` more; None if not known.

    Each life costs what its machines cost together: see `Segment.price`.
    priced_alone: pass over lives without a price.
    """
    if not facts.segments:
        return None
    amount = per_hour = 0.0
    for segment in facts.segments:
        known = price_per_hour(facts, segment)
        if known is None and priced_alone:
            continue
        if known is None:
            return None
        per_hour = known
        amount += (segment.ended - segment.started) / HOUR_S * per_hour
    return amount + more_s / HOUR_S * per_hour


def price_per_hour(facts: Facts, segment: Segment) -> float | None:
    """Of all machines of one life together: as it recorded it, else each at the price of one."""
    if segment.price is not None:
        return segment.price.amount
    machines = facts.machines_of(segment)
    if facts.price is None or not machines or not has_price(facts, segment):
        return None
    return machines * facts.price.amount


def spent_text(facts: Facts, *, more_s: float = 0.0) -> str:
    """`spent` in words; "" if it is not known."""
    amount = spent(facts, more_s=more_s)
    if amount is None or facts.price is None:
        return ""
    return units.money(amount, currency=facts.price.currency)


def cost_text(facts: Facts, seconds_s: float) -> str:
    """What some seconds of the machines of now cost; "" if machines or price are not known."""
    per_hour = price_per_hour(facts, facts.segments[-1]) if facts.segments else None
    if per_hour is None or facts.price is None:
        return ""
    return units.money(seconds_s / HOUR_S * per_hour, currency=facts.price.currency)


def machines_now(facts: Facts) -> int | None:
    """Machines of the run's last life; None if that is not known."""
    return facts.machines_of(facts.segments[-1]) if facts.segments else None


def parse_price(text: str) -> Price:
    """The price of a machine for an hour, such as "3 USD"; ConfigError if it is none."""
    amount, currency = units.parse_money(text)
    return Price(amount=amount, currency=currency)
