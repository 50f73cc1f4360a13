"""The translation directions of a text and of a model.

If a model translates into several languages, a token before each source names the target, such as
`<2de>` (Johnson et al. 2017). It is a control symbol of the SentencePiece model: no text is ever
cut into it, and it is one id before those of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dragoman.base.errors import ConfigError


class Direction(NamedTuple):
    """A source language and a target language, by their codes."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


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


def token_for(target: str, directions: Sequence[Direction], tokens: Sequence[str]) -> str:
    """The token for a target language of a model; "" if the model has none.

    target: the wanted language; "" is enough if the model has only one.
    tokens: the language tokens of the model.
    Raises ConfigError if the model has no such target, or has several and `target` is "".
    """
    targets = [*dict.fromkeys(direction.target for direction in directions)]
    if not target and len(targets) > 1:
        raise ConfigError(
            f"the model translates into {', '.join(targets)}, and nothing says into which",
            place="target language",
            remedy=f"name one of them, such as {targets[0]}",
        )
    if target and target not in targets:
        raise ConfigError(
            f"the model does not translate into {target!r}",
            place="target language",
            remedy=f"name one of its target languages: {', '.join(targets)}",
        )
    return language_token(target or targets[0]) if tokens else ""


def tempered(sizes: Sequence[int], temperature: float) -> list[float]:
    """Shares proportional to p^(1/temperature), p the share of each size (Arivazhagan 2019).

    A size of 0 has no share; the shares add up to 1 if any is above 0.
    """
    powers = [(size / max(1, sum(sizes))) ** (1 / temperature) for size in sizes]
    return [power / (sum(powers) or 1.0) for power in powers]
