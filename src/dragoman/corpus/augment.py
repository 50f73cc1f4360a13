"""Copies of training pairs with what people really type: capitals, typos, text that must stay.

A model that has seen only clean sentences falls apart on these. Each kind adds changed copies of a
share of the pairs; the pairs themselves stay, so plain text is translated as before. Mozilla's
OpusTrainer changes pairs in such ways while a model trains (github.com/hplt-project/OpusTrainer).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dragoman.base.languages import same_language
from dragoman.base.settings import Section
from dragoman.corpus import stand_ins
from dragoman.corpus.directions import Direction
from dragoman.corpus.links import Linker, same_words

Pair = tuple[str, str]
Change = Callable[[Pair, Direction, Random], Pair | None]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]
_LETTERS_PER_TYPO: Final = 25
DOTTED_I: Final = ("tr", "az", "crh")
"""Languages in which the capital of i has a dot."""
_WORD_START: Final = re.compile(r"(?<!\S)\S")
FINAL_MARK: Final = re.compile(r"[.!?…。！？।؟։።۔．｡]$")
"""The mark that ends a sentence, in scripts that have one."""
_EMOJI: Final = tuple("😀😂😊😍😉👍👋🙏🎉❤🔥✨✅⚠➡")


class AugmentConfig(Section):
    """Changed copies of training pairs, as shares of the pairs that stay; 0 makes none.

    Dev and test sets stay as they are.
    """

    upper_case: _Share = 0.0
    """In capitals, on both sides."""
    title_case: _Share = 0.0
    """With a capital at the start of each word, on both sides."""
    lower_case: _Share = 0.0
    """With the source in small letters."""
    typos: _Share = 0.0
    """With typing errors in the source: one letter in about 25 is swapped with the next one, left
    out or doubled."""
    final_punctuation: _Share = 0.0
    """Without final punctuation or with more of it, on both sides."""
    kept: _Share = 0.0
    """With an emoji or a number before or after both sides. Addresses are for `placeholders`: a
    small model that has seen some in copies writes one of these for any other."""
    copied: _Share = 0.0
    """With the target text as its source: text that is already in the target language stays."""
    placeholders: _Share = 0.0
    """With pieces in place of numbers, names, addresses and such as {name} that stand on both
    sides, or of a word and its translation; the vocabulary then has these pieces, and translation
    keeps such parts as they are."""


def upper_case(pair: Pair, direction: Direction, _random: Random) -> Pair | None:
    """Both sides in capitals; None if a side has none."""
    source, target = map(_capitals, pair, direction)
    return None if source == pair[0] or target == pair[1] else (source, target)


def title_case(pair: Pair, direction: Direction, _random: Random) -> Pair | None:
    """Both sides with a capital at the start of each word; None if a side does not change."""
    source, target = map(_with_capital_starts, pair, direction)
    return None if source == pair[0] or target == pair[1] else (source, target)


def lower_case(pair: Pair, _direction: Direction, _random: Random) -> Pair | None:
    """The source in small letters; None if it is already."""
    source = pair[0].lower()
    return None if source == pair[0] else (source, pair[1])


def typos(pair: Pair, _direction: Direction, random: Random) -> Pair | None:
    """The source with one or more typing errors; None if it has too few letters."""
    letters = list(pair[0])
    places = [place for place in range(len(letters) - 1) if _are_letters(letters, place)]
    if len(places) < 3:
        return None
    for place in random.sample(places, 1 + len(places) // _LETTERS_PER_TYPO):
        first, second = letters[place], letters[place + 1]
        kind = random.randrange(3)
        if kind == 0 and len(first) == len(second) == 1:
            letters[place], letters[place + 1] = second, first
        else:
            letters[place] = "" if kind == 1 else first * 2
    changed = "".join(letters)
    return None if changed == pair[0] else (changed, pair[1])


def final_punctuation(pair: Pair, _direction: Direction, random: Random) -> Pair | None:
    """Both sides without their final mark, or with two or three of it; None if a side has none."""
    if not all(map(FINAL_MARK.search, pair)):
        return None
    times = random.choice((0, 0, 2, 3))
    source, target = (text[:-1].rstrip() + text[-1] * times for text in pair)
    return (source, target) if source and target else None


def kept(pair: Pair, _direction: Direction, random: Random) -> Pair:
    """The same emoji or number before or after both sides."""
    number = random.randrange(10 ** random.randrange(1, 7))
    thing = random.choice((random.choice(_EMOJI), str(number)))
    source, target = pair
    if random.random() < 0.5:
        return f"{thing} {source}", f"{thing} {target}"
    return f"{source} {thing}", f"{target} {thing}"


def copied(pair: Pair, _direction: Direction, _random: Random) -> Pair | None:
    """The target text on both sides; None if the sides are the same text already."""
    return None if pair[0] == pair[1] else (pair[1], pair[1])


KINDS: Final[Mapping[str, Change]] = {
    change.__name__: change
    for change in (
        upper_case,
        title_case,
        lower_case,
        typos,
        final_punctuation,
        kept,
        copied,
    )
}
"""The changes by the names of their shares. To add one, write a function and a key like these."""


def changes_with(linker: Linker) -> Mapping[str, Change]:
    """All changes, also the one that needs to know which words of a pair translate each other."""

    def placeholders(pair: Pair, direction: Direction, random: Random) -> Pair | None:
        return stand_ins.placeholders(pair, lambda sides: linker(sides, direction), random)

    return {**KINDS, "placeholders": placeholders}


class Copies:
    """Changed copies of some pairs.

    sources, targets: their texts. rows: int64, shape (copies,), the pair of each. kinds: the change
    of each. Which pairs are copied, and how, depends on their keys and the shares alone.
    linker: finds the words that translate each other.
    """

    def __init__(
        self,
        config: AugmentConfig,
        pairs: Sequence[Pair],
        directions: Sequence[Direction],
        keys: NDArray[np.uint64],
        linker: Linker = same_words,
    ) -> None:
        self.sources: list[str] = []
        self.targets: list[str] = []
        self.kinds: list[str] = []
        rows: list[int] = []
        for name, change in changes_with(linker).items():
            # Odd, so that its product with a uniform key is uniform again, and unlike other kinds'.
            factor = np.uint64(Random(name).getrandbits(64) | 1)  # noqa: S311
            draws = (keys * factor) / 2.0**64
            for row in np.flatnonzero(draws < getattr(config, name)).tolist():
                random = Random(f"{name} {keys[row]}")  # noqa: S311
                copy = change(pairs[row], directions[row], random)
                if copy is not None:
                    self.sources.append(copy[0])
                    self.targets.append(copy[1])
                    self.kinds.append(name)
                    rows.append(row)
        self.rows = np.array(rows, dtype=np.int64)

    def behind(self, words: Sequence[str]) -> list[str]:
        """The sources, each behind the words that stand before the source of its pair."""
        return [words[row] + text for row, text in zip(self.rows, self.sources, strict=True)]


def _capitals(text: str, language: str) -> str:
    if "i" in text and any(same_language(language, other) for other in DOTTED_I):
        text = text.replace("i", "İ")
    return text.upper()


def _with_capital_starts(text: str, language: str) -> str:
    return _WORD_START.sub(lambda start: _capitals(start[0], language)[:1], text)


def _are_letters(letters: Sequence[str], place: int) -> bool:
    return letters[place].isalpha() and letters[place + 1].isalpha()
