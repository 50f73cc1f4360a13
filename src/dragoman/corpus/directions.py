"""The translation directions of a text and of a model.

If a model translates into several languages, a token before each source names the target, such as
`<2de>` (Johnson et al. 2017). It is a control symbol of the SentencePiece model: no text is ever
cut into it, and it is one id before those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dragoman.base.errors import ConfigError
from dragoman.base.languages import (
    closest_language,
    is_language,
    is_usual_region,
    parse_language,
    same_language,
    spelled,
)

_CODE: Final = re.compile(
    r"[A-Za-z0-9_]{2,35}(-[A-Za-z]{4})?(-([A-Za-z]{2}|[0-9]{3}))?(-[A-Za-z]{5,8})?(@[A-Za-z]+)?"
)
"""A code of a pair: language, script, region, variant, and the script of a locale (sr@latin)."""


class Direction(NamedTuple):
    """A source language and a target language, by their codes."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def parse_pair(text: str, *, place: str = "pair") -> Direction:
    """The languages of "en-de", "pt-BR-en", "en-zh-hant" or "en-sr_Latn".

    A hyphen divides pairs and codes. If a text can be read in two ways, the usual case decides
    (en-pt-BR), and then which codes corpora have (en-pt-br: pt-BR, not en-PT).

    Raises ConfigError if it is not a pair of two languages, with the nearest code if there is one,
    or if it can still be read in two ways.
    """
    readings = _readings(text)
    if not readings:
        raise ConfigError(
            f"{text!r} is not a pair of languages",
            place=place,
            remedy="write source and target such as en-de, or pt-BR-en with a region",
        )
    if len(readings) > 1:
        pairs = [[spelled(code) for code in pair] for pair in readings]
        forms = " or ".join("-".join(code.replace("-", "_") for code in pair) for pair in pairs)
        raise ConfigError(
            f"{text!r} may be {' or '.join(f'{source} and {target}' for source, target in pairs)}",
            place=place,
            remedy=f"write _ inside a code: {forms}",
        )
    source, target = readings[0]
    for code in (source, target):
        parse_language(code, place=place)
    if same_language(source, target):
        raise ConfigError(
            f"source and target of {text!r} are the same language",
            place=place,
            remedy="write two languages, such as en-de",
        )
    return Direction(spelled(source), spelled(target))


def _readings(text: str) -> list[tuple[str, str]]:
    """The two codes of a pair, in each way that it is likely to be meant."""
    parts = text.split("-")
    cuts = [("-".join(parts[:at]), "-".join(parts[at:])) for at in range(1, len(parts))]
    readings = [pair for pair in cuts if all(map(_CODE.fullmatch, pair))]
    for is_likely in (is_language, _has_usual_case, is_usual_region):
        readings = [pair for pair in readings if all(map(is_likely, pair))] or readings
    return readings


def _has_usual_case(code: str) -> bool:
    return spelled(code) == code.replace("_", "-")


def language_token(target: str) -> str:
    """The word that stands before a source to be translated into this language.

    It is in lower case, because models of lower-cased text must know it, too.
    """
    return f"<2{target.lower()}>"


def with_token(token: str, text: str) -> str:
    """The text after a token and a space; the text alone if `token` is empty."""
    return f"{token} {text}" if token else text


def without_first_word(text: str, words: Sequence[str] | Mapping[str, object]) -> str:
    """The text without its first word, if that is one of these."""
    first, _, rest = text.partition(" ")
    return rest if first in words else text


def listed(directions: Iterable[Direction]) -> str:
    """Directions for a message: "en to de, en to fr"."""
    return ", ".join(f"{source} to {target}" for source, target in directions)


def same_direction(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two directions are of the same languages, however their codes are written."""
    return all(map(same_language, one, other))


def target_of(target: str, directions: Sequence[Direction]) -> str:
    """The target language of a model that is closest to the wanted one, as the model writes it.

    target: the wanted language; "" is enough if the model has only one.
    Raises ConfigError if the model has no such target, or has several and `target` is "".
    """
    targets = [*dict.fromkeys(direction.target for direction in directions)]
    if not target and len(targets) > 1:
        raise ConfigError(
            f"the model translates into {', '.join(targets)}, and nothing says into which",
            place="target language",
            remedy=f"name one of them, such as {targets[0]}",
        )
    found = closest_language(target, targets) if target else targets[0]
    if found is None:
        raise ConfigError(
            f"the model does not translate into {target!r}",
            place="target language",
            remedy=f"name one of its target languages: {', '.join(targets)}",
        )
    return found


def token_for(target: str, directions: Sequence[Direction], tokens: Sequence[str]) -> str:
    """The token for a target language of a model; "" if the model has none.

    tokens: the language tokens of the model. target, errors: as for `target_of`.
    """
    found = target_of(target, directions)
    return language_token(found) if tokens else ""


def tempered(sizes: Sequence[int], temperature: float) -> list[float]:
    """Shares proportional to p^(1/temperature), p the share of each size (Arivazhagan 2019).

    A size of 0 has no share; the shares add up to 1 if any is above 0.
    """
    powers = [(size / max(1, sum(sizes))) ** (1 / temperature) for size in sizes]
    return [power / (sum(powers) or 1.0) for power in powers]
