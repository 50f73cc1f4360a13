"""Machine-hours and what they cost at a stated price."""

from __future__ import annotations

from dragoman import units
from dragoman.report.facts import Facts, Price

HOUR_S = 3600.0


def machine_hours(facts: Facts) -> float | None:
    """Hours of all machines together, from each start to each end; None without a time."""
    if facts.wall_s is None or not facts.hosts:
        return None
    return facts.wall_s * len(facts.hosts) / HOUR_S


def cost_text(facts: Facts, seconds_s: float) -> str:
    """What some seconds of this run's machines cost; "" where no price is known."""
    if facts.price is None or not facts.hosts:
        return ""
    amount = seconds_s / HOUR_S * len(facts.hosts) * facts.price.amount
    return units.money(amount, currency=facts.price.currency)


def parse_price(text: str) -> Price:
    """The price of a machine for an hour, such as "3 USD"; ConfigError where it is none."""
    amount, currency = units.parse_money(text)
    return Price(amount=amount, currency=currency)
