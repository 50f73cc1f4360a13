"""Which pairs of languages models make, and how many of them a stranger's model may claim."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from starlette.requests import Request

from dragoman.base.errors import ConfigError
from dragoman.serve.libretranslate import LibreTranslate
from dragoman.serve.limits import Limits
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


def test_the_names_of_languages_are_read_before_anybody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their tables take seconds, in which no other client was answered."""
    interface = LibreTranslate(Models([model("en", "pt-BR")]), Limits())

    def fail(*_: object, **_options: object) -> None:
        raise AssertionError("a name was looked up for a request")

    monkeypatch.setattr("dragoman.base.languages._langcodes_tag", fail)
    request = Request({"type": "http", "headers": []})
    listed = json.loads(bytes(asyncio.run(interface.languages(request)).body))
    assert [one["name"] for one in listed] == ["English", "Portuguese (Brazil)"]
    settings = json.loads(bytes(asyncio.run(interface.frontend_settings(request)).body))
    assert settings["language"]["target"]["name"] == "Portuguese (Brazil)"


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


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (("EN", "de-DE"), ("en", "de")),
        (("en_US", "pt"), ("en", "pt-BR")),
        (("eng", "pt-PT"), ("en", "pt-BR")),
        (("en", "zh-CN"), ("en", "zho_Hans")),
        (("en", "zt"), ("en", "zh-TW")),
        (("en", "nb"), ("en", "no")),
        (("en", "ja-JP"), ("en", "ja")),
        (("ko", "en"), ("kor_Hang", "en")),
        (("hi", "en"), ("hin_Deva", "en")),
        (("ar-EG", "en"), ("arb_Arab", "en")),
        (("iw", "en"), ("he", "en")),
        (("sr-Latn", "en"), ("sr-Latn", "en")),
        (("sr", "en"), ("sr-Cyrl", "en")),
        (("km", "en"), ("khm_Khmr", "en")),
        (("my-MM", "en"), ("my", "en")),
        (("el", "en"), ("ell_Grek", "en")),
        (("ka", "en"), ("kat_Geor", "en")),
        ((None, "DE"), ("en", "de")),
    ],
)
def test_a_client_may_write_a_language_in_any_known_way(
    asked: tuple[str | None, str], served: tuple[str, str]
) -> None:
    near = [("fr", "it"), ("en", "nn"), ("en", "ckb"), ("yue", "en"), ("ku", "en")]
    near += [("sr-Latn", "en"), ("sr-Cyrl", "en"), ("uz", "en")]
    found = Models([model(*pair) for pair in dict.fromkeys([*near, served])]).fitting(*asked)
    assert [(one.pair.source, one.pair.target) for one in found] == [served]


@pytest.mark.parametrize(
    "asked", [("en", "sr-Latn"), ("en", "zh-TW"), ("en", "nn"), ("en", "english"), ("x", "sr")]
)
def test_another_script_or_language_is_never_the_answer(asked: tuple[str, str]) -> None:
    models = Models([model("en", "sr"), model("en", "zh"), model("en", "nb")])
    assert models.fitting(*asked) == []


def test_the_same_region_goes_first_and_the_pair_decides_before_the_region() -> None:
    models = Models([model("en", "pt-PT"), model("en", "pt-BR"), model("pt-PT", "fr")])
    (brazil,) = models.fitting("en", "pb")
    assert brazil.pair.target == "pt-BR"
    (only,) = models.fitting("pt-BR", "fr")
    assert only.pair.source == "pt-PT"


def test_two_models_that_write_a_language_in_two_ways_make_a_pair() -> None:
    models = Models([model("de", "eng_Latn"), model("en", "nb"), model("no", "de-AT")])
    assert {str(pair) for pair in models.all_pairs()[3:]} == {
        "de to nb via eng_Latn", "en to de-AT via nb", "no to eng_Latn via de-AT"
    }  # fmt: skip
    (found,) = models.fitting("DE", "no")
    assert found.pair.via == "eng_Latn"
    assert models.sources("NB") == ["en", "de"]
