"""Requests and answers of the HTTP interface; they are its OpenAPI description too."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _is_text(text: str) -> str:
    """JSON may hold half of a surrogate pair, which no encoding of text can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("not Unicode text: half of a surrogate pair") from error
    return text


Text = Annotated[str, AfterValidator(_is_text), Field(examples=["A man is singing."])]
Language = Annotated[str, Field(min_length=1, max_length=20, examples=["en"])]


class TranslateRequest(BaseModel):
    """Text to translate: sentences, paragraphs or whole documents."""

    model_config = ConfigDict(extra="forbid")

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=256)]
    source: Language | None = None
    target: Language | None = None
    alternatives: int = Field(default=0, ge=0, le=9)
    """Further translations of each text."""
    beam_size: int | None = Field(default=None, ge=1, le=10)
    """As the model was exported where it is left out; 1 is greedy and quickest.

    For alternatives it is at least one more than them."""
    format: Literal["text", "html"] = "text"
    """html: tags stay where they are."""


class StreamRequest(BaseModel):
    """A document whose translation is wanted as it comes."""

    model_config = ConfigDict(extra="forbid")

    text: Text
    source: Language | None = None
    target: Language | None = None
    beam_size: int | None = Field(default=None, ge=1, le=10)
    format: Literal["text", "html"] = "text"


class Alternative(BaseModel):
    """score: log-probability over the length penalty; nearer to 0 is likelier."""

    text: str
    score: float


class TranslatedText(Alternative):
    """The best translation of a text, and further ones."""

    alternatives: list[Alternative]


class TranslateResponse(BaseModel):
    """One translation for each text, in the order of the request."""

    translations: list[TranslatedText]
    source: str
    target: str
    model: str
    seconds: float


class StreamLine(BaseModel):
    """A paragraph of the document, in its place; put together they are the translation."""

    index: int
    source: str
    text: str


class ModelDescription(BaseModel):
    """A model that this server has."""

    name: str
    source: str
    target: str
    parameters: int
    quantization: str
    licence: str
    beam_size: int
    card: str


class ErrorResponse(BaseModel):
    """What went wrong, in a line."""

    error: str


class Health(BaseModel):
    """status: ok; who cannot say so does not answer."""

    status: str
