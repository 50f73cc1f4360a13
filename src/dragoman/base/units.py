"""Every quantity that is printed, each with one meaning, and how to parse it.

`text` prints a value that is in base units; `parse` turns printed or typed text back into base
units, exact to half of the last printed digit. Decimal and binary prefixes, bits and bytes, and
seconds per step and steps per second are different symbols, and a text without a symbol or with
an ambiguous one (MB or Mb? s or 1/s?) is refused: each of these pairs was once mixed up in the
write-up of a real training run.

SIZE, BINARY_SIZE        bytes                243.5 MB; 232.2 MiB
BYTE_RATE, BIT_RATE      bytes/s, bits/s      12.5 MB/s; 100 Mbit/s
DURATION, HOURS          seconds              38.1 ms; 4 min 05 s; 23 h 46 min; 8.85 h
STEP_TIME, STEP_RATE     s/step, step/s       1.686 s/step; 0.5931 step/s
TOKEN_RATE               1/s                  36,410 tokens/s
COUNT, SHORT_COUNT       1                    60,880,896; 62.4k
SHARE                    1                    46.0%
LOSS, SCORE, LEARNING_RATE, NORM   1          1.6273; 26.4; 9.882e-4; 0.512
FLOP_RATE, FLOPS, POWER  FLOP/s, FLOP, W      4.3 TFLOP/s; 570 PFLOP; 43 W
ENERGY                   J                    14.2 kWh
money, parse_money       any currency         340.00 USD
"""

from __future__ import annotations

import math
import re
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dragoman.base.errors import ConfigError

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
_HUGE, _TINY = 1e15, 1e-9
"""Numbers this large, or this small, are written with a power of ten."""
_AMOUNT = re.compile(rf"\s*({_NUMBER})\s*(\S.*?)?\s*")


@dataclass(frozen=True)
class Quantity:
    """One quantity: the symbols it is printed with, and all that are understood.

    name: the quantity, for error messages.
    symbols: (symbol, base units in one), ascending; the largest that gives at least 1 is printed.
    also: symbols that are understood but never printed.
    digits: significant digits; a whole number that is exact is printed without decimals.
    decimals: digits after the point in place of `digits`.
    """

    name: str
    symbols: tuple[tuple[str, float], ...]
    also: tuple[tuple[str, float], ...] = ()
    digits: int = 4
    decimals: int | None = None
    space: str = " "

    def text(self, value: float) -> str:
        """`value`, in base units, with its symbol."""
        if not math.isfinite(value):
            return "not finite"
        for symbol, scale in reversed(self.symbols):
            number = self._number(value / scale)
            text = number + (self.space + symbol if symbol else "")
            if abs(_to_float(number)) >= 1 or (value == 0 and scale == 1):
                break
        return text

    def optional_text(self, value: float | None) -> str:
        """`value` as text; "not measured" if it is None."""
        return "not measured" if value is None else self.text(value)

    def interval(self, low: float | None, high: float | None) -> str:
        """A confidence interval to put after a value, such as " (22.1 to 24.6)"; "" if unknown."""
        if low is None or high is None:
            return ""
        return f" ({self.text(low)} to {self.text(high)})"

    def parse(self, text: str) -> float:
        """The value of `text` in base units; raises ConfigError if it is not such a quantity."""
        number, symbol = self._split(text)
        return _to_float(number) * self._scale(symbol, text)

    def _number(self, number: float) -> str:
        text = self._digits(number)
        return text.removeprefix("-") if _to_float(text) == 0 else text

    def _digits(self, number: float) -> str:
        if abs(number) >= _HUGE:
            return f"{number:.{self.digits - 1}e}"
        if self.decimals is not None:
            return f"{number:,.{self.decimals}f}"
        if abs(number) < sys.float_info.min:  # too small for the logarithm below
            return "0"
        if abs(number) < _TINY:
            return f"{number:.{self.digits - 1}e}"
        if number == round(number) and abs(number) < 10**self.digits:
            return f"{number:,.0f}"
        magnitude = math.floor(math.log10(abs(number)))
        magnitude += round(abs(number) / 10.0**magnitude, self.digits - 1) >= 10
        return f"{number:,.{max(self.digits - 1 - magnitude, 0)}f}"

    def _split(self, text: str) -> tuple[str, str]:
        match = _AMOUNT.fullmatch(text)
        if match is None:
            raise self._refused(text)
        return match[1], match[2] or ""

    def _scale(self, symbol: str, text: str) -> float:
        for known, scale in self.symbols + self.also:
            if known == symbol:
                return scale
        raise self._refused(text)

    def _refused(self, text: str) -> ConfigError:
        symbols = ", ".join(symbol for symbol, _ in self.symbols + self.also if symbol)
        known = f"a number with one of {symbols}" if symbols else "a number without a unit"
        return ConfigError(f"{text!r} is not a {self.name}", remedy=f"write {known}")


@dataclass(frozen=True)
class Duration(Quantity):
    """A time in seconds, from a minute on in minutes and seconds, later in hours and minutes."""

    def text(self, value: float) -> str:
        """`value` seconds, to the second below an hour and to the minute above."""
        if not math.isfinite(value) or not 60 <= abs(_to_float(self._number(value))) < _HUGE:
            return super().text(value)
        sign, seconds = "-" if value < 0 else "", abs(value)
        if round(seconds) < HOUR_S:
            return f"{sign}{round(seconds) // 60} min {round(seconds) % 60:02d} s"
        minutes = round(seconds / 60)
        return f"{sign}{minutes // 60:,} h {minutes % 60:02d} min"

    def parse(self, text: str) -> float:
        """Seconds of "38.1 ms", "4 min 05 s", "23 h 46 min" or "8.85 h"; larger units first."""
        parts = self._parts(text)
        scales = [self._scale(self._split(part)[1], text) for part in parts]
        if any(later >= earlier for earlier, later in pairwise(scales)):
            raise self._refused(text)
        sign = -1.0 if text.strip().startswith("-") else 1.0
        return sign * sum(abs(super(Duration, self).parse(part)) for part in parts)

    def _parts(self, text: str) -> list[str]:
        parts = re.findall(rf"{_NUMBER}\s*[^\d\s]+", text)
        if not parts or "".join(parts).replace(" ", "") != text.replace(" ", ""):
            raise self._refused(text)
        return parts


@dataclass(frozen=True)
class Reciprocal(Quantity):
    """Seconds per step or steps per second: either may be typed, each has its own symbol."""

    inverse: tuple[str, ...] = ()

    def parse(self, text: str) -> float:
        """The value in base units; the inverse's symbols are understood and inverted."""
        number, symbol = self._split(text)
        if symbol in self.inverse and _to_float(number):
            return 1.0 / _to_float(number)
        return super().parse(text)


Symbols = tuple[tuple[str, float], ...]

_DECIMAL: Symbols = (
    ("", 1.0),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
)
_BINARY: Symbols = (("", 1.0), *((f"{p}i", 1024.0**n) for n, p in enumerate("KMGTP", start=1)))


def _with(prefixes: Symbols, unit: str, *, of: float = 1.0) -> Symbols:
    return tuple((prefix + unit, scale * of) for prefix, scale in prefixes)


def _to_float(number: str) -> float:
    return float(number.replace(",", ""))


_BYTES = _with(_DECIMAL[:6], "B")
_BINARY_BYTES = _with(_BINARY, "B")
_BYTES_S = _with(_DECIMAL[:5], "B/s")
_BITS_S = _with(_DECIMAL[:5], "bit/s")
_BITS = _with(_DECIMAL[1:5], "bit")
HOUR_S: Final = 3600.0
_MINUTES = (("min", 60.0), ("h", HOUR_S), ("d", 86400.0))

SIZE = Quantity("size", _BYTES, also=_BINARY_BYTES[1:])
BINARY_SIZE = Quantity("size", _BINARY_BYTES, also=_BYTES[1:])
BYTE_RATE = Quantity(
    "data rate",
    _BYTES_S,
    also=tuple((s, v / 8) for s, v in _BITS_S + _BITS) + _with(_BINARY[1:], "B/s"),
)
BIT_RATE = Quantity(
    "data rate",
    _BITS_S,
    also=_BITS + tuple((s, v * 8) for s, v in _BYTES_S) + _with(_BINARY[1:], "B/s", of=8),
)
DURATION = Duration("duration", (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)), also=_MINUTES, digits=3)
HOURS = Quantity("duration", (("h", HOUR_S),), also=(("s", 1.0), *_MINUTES), decimals=2)
STEP_TIME = Reciprocal(
    "time per step",
    (("µs/step", 1e-6), ("ms/step", 1e-3), ("s/step", 1.0)),
    inverse=("step/s", "steps/s"),
)
STEP_RATE = Reciprocal(
    "rate of steps", (("step/s", 1.0),), also=(("steps/s", 1.0),), inverse=("s/step",)
)
TOKEN_RATE = Quantity("rate of tokens", (("tokens/s", 1.0),), also=(("token/s", 1.0),))
COUNT = Quantity("count", (("", 1.0),), decimals=0)
SHORT_COUNT = Quantity("count", _DECIMAL[:5], digits=3, space="")
SHARE = Quantity("share", (("%", 0.01),), decimals=1, space="")
LOSS = Quantity("loss", (("", 1.0),), decimals=4)
SCORE = Quantity("score", (("", 1.0),), decimals=1)
NORM = Quantity("norm", (("", 1.0),), digits=3)
FLOP_RATE = Quantity("arithmetic rate", _with(_DECIMAL, "FLOP/s"), digits=3)
FLOPS = Quantity("amount of arithmetic", _with(_DECIMAL, "FLOP"), digits=3)
POWER = Quantity("power", (("W", 1.0), ("kW", 1e3)), digits=3)
ENERGY = Quantity("energy", (("kWh", 3.6e6),), also=(("Wh", 3.6e3), ("J", 1.0)), digits=3)


@dataclass(frozen=True)
class Scientific(Quantity):
    """A number of any magnitude with its power of ten."""

    def text(self, value: float) -> str:
        """`value` as 9.882e-4."""
        if value == 0 or not math.isfinite(value):
            return super().text(value)
        mantissa, exponent = f"{value:.{self.digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"


LEARNING_RATE = Scientific("learning rate", (("", 1.0),))


def time_of_day(moment: float) -> str:
    """The time of day of a moment (seconds since 1970) as text, to the second."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(moment))


def money(amount: float, *, currency: str) -> str:
    """An amount as text, exact to 1%, with its currency: 340.00 USD, 0.50 USD, 0.0254 USD."""
    if amount and not _TINY <= abs(amount) < _HUGE:
        return f"{amount:.1e} {currency}"
    decimals = 2 - math.floor(math.log10(abs(amount))) if 0 < abs(amount) < 0.5 else 2
    whole, point, cents = f"{amount:,.{decimals}f}".partition(".")
    return f"{whole}{point}{cents[:2]}{cents[2:].rstrip('0')} {currency}"


def parse_money(text: str) -> tuple[float, str]:
    """Amount and currency of a text such as "3.06 USD"."""
    match = _AMOUNT.fullmatch(text)
    if match is None or not re.fullmatch(r"[A-Z]{3}", match[2] or ""):
        raise ConfigError(
            f"{text!r} is not an amount of money",
            remedy="write a number and a currency of three letters, such as 3.06 USD",
        )
    return _to_float(match[1]), match[2]
