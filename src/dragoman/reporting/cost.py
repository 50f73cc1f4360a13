"""Machine-hours and what they cost at a stated price."""

from __future__ import annotations

from dragoman.base import units
from dragoman.reporting.facts import Facts, Price

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


def spent_text(facts: Facts, *, more_s: float = 0.0) -> str:
    """What the run has cost so far, and what it will in `more_s` more; "" if that is not known."""
    hours, machines = machine_hours(facts), machines_now(facts)
    if facts.price is None or hours is None or machines is None:
        return ""
    amount = (hours + more_s / HOUR_S * machines) * facts.price.amount
    return units.money(amount, currency=facts.price.currency)


def cost_text(facts: Facts, seconds_s: float) -> str:
    """What some seconds of the machines of now cost; "" if machines or price are not known."""
    machines = machines_now(facts)
    if facts.price is None or not machines:
        return ""
    amount = seconds_s / HOUR_S * machines * facts.price.amount
    return units.money(amount, currency=facts.price.currency)


def machines_now(facts: Facts) -> int | None:
    """Machines of the run's last life; None if that is not known."""
    return facts.machines_of(facts.segments[-1]) if facts.segments else None


def parse_price(text: str) -> Price:
    """The price of a machine for an hour, such as "3 USD"; ConfigError if it is none."""
    amount, currency = units.parse_money(text)
    return Price(amount=amount, currency=currency)
