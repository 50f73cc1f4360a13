"""Machine-hours and what they cost at a stated price."""

from __future__ import annotations

from dragoman.base import units
from dragoman.reporting.facts import Facts, Price, Segment

HOUR_S = 3600.0


def machine_hours(facts: Facts) -> float | None:
    """Hours of all machines together, from each start to each end; None without a time.

    None also if it is not known how many machines took part: see `Facts.machines_of`.
    """
    if not facts.segments:
        return None
    spent_s = 0.0
    for segment in facts.segments:
        machines = facts.machines_of(segment)
        if machines is None:
            return None
        spent_s += (segment.ended - segment.started) * machines
    return spent_s / HOUR_S


def spent(facts: Facts, *, more_s: float = 0.0) -> float | None:
    """What the run has cost so far, and what it will in `more_s` more; None if not known.

    Each life costs what its machines cost together: see `Segment.price`.
    """
    if not facts.segments:
        return None
    amount = per_hour = 0.0
    for segment in facts.segments:
        known = price_per_hour(facts, segment)
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
    return None if facts.price is None or not machines else machines * facts.price.amount


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
