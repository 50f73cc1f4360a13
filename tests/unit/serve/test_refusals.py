"""Answers to wrong requests name the field and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dragoman.serve.app import StreamRequest, TranslateRequest
from dragoman.serve.libretranslate import LibreRequest
from dragoman.serve.refusals import fields_refusal

FIELDS = "text, source, target, alternatives, beam_size, format"


@pytest.mark.parametrize(
    ("wanted", "fields", "expected"),
    [
        (TranslateRequest, {}, "text is missing; add this field"),
        (TranslateRequest, [1],
         f"the body must be a JSON object; send one with the fields {FIELDS}"),
        (TranslateRequest, {"text": 3},
         "text must be text or a list of texts; put each text in quotes"),
        (TranslateRequest, {"text": ["a", 3]}, "text[1] must be text; put it in quotes"),
        (TranslateRequest, {"text": []}, "text must have at least 1 text; add one"),
        (TranslateRequest, {"text": ["a"] * 257},
         "text must have at most 256 texts; send them in parts"),
        (TranslateRequest, {"text": "\ud800"},
         "text has half of a surrogate pair; send whole characters"),
        (TranslateRequest, {"text": ["a", "\ud800"]},
         "text[1] has half of a surrogate pair; send whole characters"),
        (TranslateRequest, {"text": "a", "beam": 3},
         f"beam is not a field of this request; leave it out: the fields are {FIELDS}"),
        (TranslateRequest, {"text": "a", "format": "pdf", "beam_size": 11},
         "beam_size must be at most 10; give such a number; "
         "format must be 'text' or 'html'; choose one of them"),
        (TranslateRequest, {"text": "a", "alternatives": "many"},
         "alternatives must be a whole number; write it without quotes"),
        (TranslateRequest, {"text": "a", "source": ""},
         "source must have at least 1 character; leave the field out for none"),
        (StreamRequest, {"text": ["a"]}, "text must be text; put it in quotes"),
        (LibreRequest, {"q": {}, "target": "de"},
         "q must be text or a list of texts; put each text in quotes"),
    ],
)  # fmt: skip
def test_a_field_is_named_with_its_remedy(
    wanted: type[BaseModel], fields: Any, expected: str
) -> None:
    with pytest.raises(ValidationError) as error:
        wanted.model_validate(fields)
    answer = fields_refusal(error.value, wanted)
    assert (answer.status_code, answer.detail) == (422, expected)


def test_names_are_short_few_and_in_one_line() -> None:
    with pytest.raises(ValidationError) as error:
        TranslateRequest.model_validate({"a\n" * 1000: 1, **{f"b{n}": n for n in range(60)}})
    text = str(fields_refusal(error.value, TranslateRequest).detail)
    assert "\n" not in text
    assert len(text) < 1000
