"""Sources with target words beside their own, so that a model learns to use the terms it is given.

`Open the cell.` becomes `Open the cell( Zelle).`, where two pieces stand for the brackets (the form
"append" of Dinu et al. 2019). Some of these words are in another form than in the target, such as
`Zellen`: so the model learns to inflect a term, and not only to copy it (as Bergmanis and Pinnis
2021, who give lemmas).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from dragoman.corpus.links import WORD, Linked, Pair
from dragoman.corpus.stand_ins import PLACEHOLDERS, WITH_PLACEHOLDERS, placeholders, with_terms

_MOST: Final = 4
"""Terms of a copy."""
_OTHER_FORMS: Final = 0.4
"""The share of terms whose words are in another form if the text has one."""
_SHORTEST_STEM: Final = 4
_LONGEST_ENDING: Final = 3


class Forms:
    """The words of some texts; those with the same beginning are taken for forms of one word."""

    def __init__(self, texts: Iterable[str]) -> None:
        words = {word for text in texts for word in WORD.findall(text)}
        self._words = sorted((word.casefold(), word) for word in words)

    def other(self, word: str, random: Random) -> str:
        """Another form of a word, also one with another capital; the word if there is none."""
        folded = word.casefold()
        stem = folded[: max(_SHORTEST_STEM, len(folded) - len(folded) // 4)]
        if len(stem) < _SHORTEST_STEM:
            return word
        first, last = (bisect_left(self._words, (edge,)) for edge in (stem, f"{stem}\U0010ffff"))
        forms = [
            form
            for _, form in self._words[first:last]
            if form != word and len(form) <= len(word) + _LONGEST_ENDING
        ]
        return random.choice(forms) if forms else word


def terms(
    forms: Forms,
    pair: Pair,
    linked: Callable[[Pair], Linked],
    random: Random,
    *,
    has_placeholders: bool,
) -> Pair | None:
    """A pair with target words beside some of its source; None if no words translate each other.

    linked: finds the links of a pair.
    has_placeholders: whether the vocabulary has their pieces; then some pairs get these as well.
    """
    if has_placeholders and random.random() < WITH_PLACEHOLDERS:
        pair = placeholders(pair, linked, random) or pair
    source, target = pair
    wanted = 1 + min(int(random.expovariate(1.2)), _MOST - 1)
    chosen: list[tuple[int, int, str]] = []
    for (start, end), (first, last) in sorted(linked(pair).spans(random, wanted=wanted)):
        if chosen and start < chosen[-1][1]:
            continue  # it is inside the one before
        words = target[first:last]
        if any(sign in words for sign in PLACEHOLDERS):
            continue
        if random.random() < _OTHER_FORMS:
            words = WORD.sub(lambda word: forms.other(word[0], random), words)
        chosen.append((start, end, words))
    return (with_terms(source, chosen), target) if chosen else None
