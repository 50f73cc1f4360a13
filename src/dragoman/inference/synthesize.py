"""Monolingual text -> pairs of a text and its translation, to train on.

Back-translation (Sennrich et al. 2016): the translation becomes the source, and the text, which
people wrote, the target. Forward translation and sequence-level distillation (Kim and Rush 2016):
the translation becomes the target.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from typing import Final, Literal

from dragoman.corpus.normalize import normalize
from dragoman.inference.translator import Opened

SynthesisDirection = Literal["back", "forward"]
"""back: translation TAB text. forward: text TAB translation."""
REASONS: Final = ("empty", "copied", "repeating")
"""The reasons to drop a translation, in the order in which they are checked."""
_LOOP_WORDS: Final = 4
_LOOP_TIMES: Final = 4
_UNSPACED_LOOP: Final = re.compile(
    r"([\u0e00-\u0e7f\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff0c\U00020000-\U0003ffff]{1,12}?)\1{3}"
)
"""A loop in Thai, Chinese or Japanese, which have no spaces between words."""


@dataclass(frozen=True, slots=True)
class Synthesis:
    """Makes pairs of lines and their translations.

    n_best: translations of each line.
    counts: the numbers of lines, of pairs and of dropped translations by reason so far.
    """

    opened: Opened
    direction: SynthesisDirection
    n_best: int
    counts: Counter[str]

    def lines(self, lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        """The pairs of each line, none or several, group by group."""
        texts, originals = tee(" ".join(line.split("\t")) for line in lines)
        for group in self.opened.translator.stream(
            texts,
            self.opened.recipe.search,
            text_format="line",
            num_hypotheses=self.n_best,
            scored=self.n_best > 1,
        ):
            written = [
                "".join(self._pair(text, one.text) for one in translations)
                for translations, text in zip(group, originals, strict=False)
            ]
            self.counts["lines"] += len(group)
            yield written

    def _pair(self, text: str, translation: str) -> str:
        text, translation = normalize(text), normalize(translation)
        reason = fault(text, translation)
        if reason is not None:
            self.counts[reason] += 1
            return ""
        self.counts["pairs"] += 1
        source, target = (translation, text) if self.direction == "back" else (text, translation)
        return f"{source}\t{target}\n"


def fault(text: str, translation: str) -> str | None:
    """The reason why a translation is not fit to train on, one of REASONS; None if it is fit.

    empty: the text or the translation is blank.
    copied: the translation is the text itself, ignoring case.
    repeating: one to four words occur four times in a row, and do not in the text; in writing
        without spaces, up to twelve characters.
    """
    if not text or not translation:
        return "empty"
    if text.casefold() == translation.casefold():
        return "copied"
    if _repeats(translation) and not _repeats(text):
        return "repeating"
    return None


def _repeats(text: str) -> bool:
    words = text.split(" ")
    for size in range(1, _LOOP_WORDS + 1):
        run = 0
        for position in range(size, len(words)):
            run = run + 1 if words[position] == words[position - size] else 0
            if run >= size * (_LOOP_TIMES - 1):
                return True
    return _UNSPACED_LOOP.search(text) is not None
