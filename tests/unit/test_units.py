"""Every printed quantity turns back into its value, and look-alikes are not confused."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.base.units import Quantity
from well_said import last_digit

QUANTITIES = {name: value for name, value in vars(units).items() if isinstance(value, Quantity)}


def test_every_quantity_of_the_docstring_exists_and_the_other_way_round() -> None:
    documented = {
        word.strip(",") for word in (units.__doc__ or "").split() if word.strip(",").isupper()
    }
    assert set(QUANTITIES) <= documented


@pytest.mark.parametrize("name", QUANTITIES)
@given(value=st.floats(min_value=1e-9, max_value=1e15, allow_nan=False), negative=st.booleans())
def test_parse_is_the_inverse_of_text_within_the_printed_precision(
    name: str, value: float, negative: bool
) -> None:
    quantity = QUANTITIES[name]
    signed = -value if negative else value
    text = quantity.text(signed)
    half_a_digit = last_digit(quantity, text) / 2
    assert abs(quantity.parse(text) - signed) <= half_a_digit * (1 + 1e-9) + 1e-12 * value


@pytest.mark.parametrize(
    "name", sorted(set(QUANTITIES) - {"COUNT", "SHARE", "SCORE", "LOSS", "HOURS"})
)
@given(value=st.floats(min_value=1e-6, max_value=1e15))
def test_printed_values_are_right_to_a_percent(name: str, value: float) -> None:
    quantity = QUANTITIES[name]
    assert quantity.parse(quantity.text(value)) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("name", QUANTITIES)
@given(text=st.text(max_size=12))
def test_any_text_is_a_value_or_refused_with_words(name: str, text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(QUANTITIES[name].parse(text), float)


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (units.SIZE, 0, "0 B"),
        (units.SIZE, 999, "999 B"),
        (units.SIZE, 243_523_584, "243.5 MB"),
        (units.SIZE, 999_999_999, "1.000 GB"),
        (units.BINARY_SIZE, 959e6, "914.6 MiB"),
        (units.BIT_RATE, 1e8, "100 Mbit/s"),
        (units.BIT_RATE, 1e9, "1 Gbit/s"),
        (units.BYTE_RATE, 12e6, "12 MB/s"),
        (units.BYTE_RATE, 216.6e6, "216.6 MB/s"),
        (units.DURATION, 0.0381, "38.1 ms"),
        (units.DURATION, 0, "0 s"),
        (units.DURATION, 59.99, "1 min 00 s"),
        (units.DURATION, 245, "4 min 05 s"),
        (units.DURATION, 3599.7, "1 h 00 min"),
        (units.DURATION, 85_560, "23 h 46 min"),
        (units.HOURS, 31_865, "8.85 h"),
        (units.STEP_TIME, 1.686, "1.686 s/step"),
        (units.STEP_TIME, 0.0123, "12.30 ms/step"),
        (units.STEP_RATE, 1 / 1.686, "0.5931 step/s"),
        (units.TOKEN_RATE, 36_410, "36,410 tokens/s"),
        (units.COUNT, 60_880_896, "60,880,896"),
        (units.SHORT_COUNT, 62_400, "62.4k"),
        (units.SHORT_COUNT, 50_000, "50k"),
        (units.SHARE, 0.46, "46.0%"),
        (units.SHARE, -0.0001, "0.0%"),
        (units.LOSS, 1.6273, "1.6273"),
        (units.LEARNING_RATE, 9.8821e-4, "9.882e-4"),
        (units.LEARNING_RATE, 0.0, "0"),
        (units.FLOP_RATE, 4.3e12, "4.30 TFLOP/s"),
        (units.POWER, 43, "43 W"),
        (units.NORM, math.nan, "not finite"),
        (units.NORM, 1.234e-200, "1.23e-200"),
        (units.DURATION, 1e-300, "1.00e-294 µs"),
        (units.DURATION, 1.7e300, "1.70e+300 s"),
        (units.HOURS, 3.6e303, "1.000e+300 h"),
        (units.SIZE, 1e305, "1.000e+290 PB"),
    ],
)
def test_a_quantity_is_written_as_people_read_it(
    quantity: Quantity, value: float, text: str
) -> None:
    assert quantity.text(value) == text


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (units.SIZE, "976 MiB", 976 * 1024**2),
        (units.SIZE, "1023 MB", 1023e6),
        (units.BINARY_SIZE, "1023 MB", 1023e6),
        (units.BIT_RATE, "100 Mbit", 1e8),
        (units.BIT_RATE, "12 MB/s", 96e6),
        (units.BIT_RATE, "1 MiB/s", 8 * 1024**2),
        (units.BYTE_RATE, "100 Mbit/s", 12.5e6),
        (units.BYTE_RATE, "1Gbit/s", 125e6),
        (units.DURATION, "8.85 h", 31_860),
        (units.DURATION, "2 d 3 h", 51 * 3600),
        (units.DURATION, "90min", 5400),
        (units.HOURS, "90 min", 5400),
        (units.STEP_TIME, "0.835 step/s", 1 / 0.835),
        (units.STEP_TIME, "0.835 s/step", 0.835),
        (units.STEP_RATE, "1.198 s/step", 1 / 1.198),
        (units.COUNT, "4,562,102", 4_562_102),
        (units.SHORT_COUNT, "3.12G", 3.12e9),
    ],
)
def test_a_quantity_is_read_as_people_type_it(quantity: Quantity, text: str, value: float) -> None:
    assert quantity.parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (units.SIZE, "5 Mb"),
        (units.SIZE, "5 mb"),
        (units.SIZE, "5"),
        (units.SIZE, "100 Mbit"),
        (units.BIT_RATE, "100 MB"),
        (units.BIT_RATE, "100 Mb/s"),
        (units.BIT_RATE, "100"),
        (units.DURATION, "5"),
        (units.DURATION, "5 s later"),
        (units.DURATION, ""),
        (units.DURATION, "6 h 6 h"),
        (units.DURATION, "30 s 1 h"),
        (units.STEP_TIME, "0.835"),
        (units.STEP_TIME, "0.835 s"),
        (units.STEP_RATE, "0 s/step"),
        (units.COUNT, "1,00"),
        (units.SHARE, "0.46"),
    ],
)
def test_ambiguous_or_foreign_texts_are_refused(quantity: Quantity, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        quantity.parse(text)
    assert repr(text) in str(error.value)


@given(
    amount=st.decimals(min_value=0, max_value=10**9, places=2),
    currency=st.sampled_from(["USD", "EUR", "CHF"]),
)
def test_money(amount: float, currency: str) -> None:
    assert units.parse_money(units.money(float(amount), currency=currency)) == (
        float(amount),
        currency,
    )


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0034, "0.0034 USD"), (5e-324, "4.9e-324 USD"), (1e300, "1.0e+300 USD")]
)
def test_money_of_any_amount_is_short(amount: float, text: str) -> None:
    assert units.money(amount, currency="USD") == text
    assert units.parse_money(text)[0] == pytest.approx(amount, rel=0.1)


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_money_is_right_to_one_percent_even_if_it_is_cents(amount: float) -> None:
    parsed, _ = units.parse_money(units.money(amount, currency="USD"))
    assert parsed == pytest.approx(amount, rel=0.01)


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0, "0.00"), (0.05, "0.05"), (0.0254, "0.0254"), (0.948, "0.95")]
)
def test_money_has_cents_and_more_digits_only_if_it_needs_them(amount: float, text: str) -> None:
    assert units.money(amount, currency="USD") == f"{text} USD"


@pytest.mark.parametrize("text", ["3.06", "3.06 $", "USD", "three USD", "3.06 usd"])
def test_money_needs_a_number_and_a_currency(text: str) -> None:
    with pytest.raises(ConfigError):
        units.parse_money(text)


@pytest.mark.parametrize("name", QUANTITIES)
def test_numbers_next_to_nothing_are_printed(name: str) -> None:
    for value in (5e-324, 1e-320, 2.3e-308):
        assert QUANTITIES[name].parse(QUANTITIES[name].text(value)) == pytest.approx(0, abs=1e-300)
