"""What the machines of this run cost in an hour, as who started it was told."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from dragoman.base import units

PRICE_VARIABLE: Final = "DRAGOMAN_PRICE_PER_HOUR"
"""Names the environment variable of workers that holds the price of all hosts: `6.12 USD`."""


class HourlyPrice(NamedTuple):
    """Of all machines together."""

    amount: float
    currency: str

    def text(self, seconds_s: float) -> str:
        """What so many seconds cost."""
        return units.money(self.amount * seconds_s / 3600, currency=self.currency)


def hourly_price() -> HourlyPrice | None:
    """Of this run; None where nobody has said it."""
    text = os.environ.get(PRICE_VARIABLE)
    return HourlyPrice(*units.parse_money(text)) if text else None
