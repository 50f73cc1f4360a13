"""Which pairs of languages models make, and how many of them a stranger's model may claim."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.serve.models import ModelDescription, Models, ServedModel


def model(source: str, target: str, card: str = "") -> ServedModel:
    """One that is only listed."""
    description = ModelDescription(
        name="some", source=source, target=target, parameters=1, quantization="float32",
        licence="", beam_size=1, card=card,
    )  # fmt: skip
    nothing: Any = None
    return ServedModel(description, nothing, nothing, nothing)


def test_two_models_make_a_pair_and_those_named_first_go_first() -> None:
    named = [("de", "en"), ("de", "nl"), ("en", "fr"), ("nl", "fr"), ("en", "de"), ("en", "en")]
    models = Models([model(*pair) for pair in named])
    said = [str(pair) for pair in models.all_pairs()[len(named) :]]
    assert said == ["de to fr via en", "en to nl via de"]


def test_ten_thousand_directions_are_listed_at_once() -> None:
    """Each two of them were compared, which took minutes."""
    names = [f"l{number}" for number in range(100)]
    every = [model(one, other) for one in names for other in names if one != other]
    started = time.process_time()
    assert not Models(every).pivots
    assert time.process_time() - started < 10


def test_more_pairs_than_a_list_holds_are_refused() -> None:
    star = [model(f"a{number}", "en") for number in range(400)]
    star += [model("en", f"b{number}") for number in range(400)]
    with pytest.raises(ConfigError, match="too many pairs"):
        Models(star)
    assert len(Models(star[300:500]).pivots) == 100 * 100


def test_one_card_is_not_sent_for_any_number_of_directions() -> None:
    card = "a" * 1_000_000
    with pytest.raises(ConfigError, match="are too long"):
        Models([model("en", f"b{number}", card) for number in range(101)])


@pytest.mark.parametrize("pair", [("auto", "de"), ("de", "auto")])
def test_no_language_is_called_as_one_to_be_detected(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match='is called "auto"'):
        Models([model(*pair)])
