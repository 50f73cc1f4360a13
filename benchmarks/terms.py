"""How often a model uses the terms it is given, and in which form.

    benchmarks/terms.py RUN [OTHER_RUN ...] [--lines 500] [--show 50]

Each run is one of the demo (`dragoman run demo`).

In held-out sentences of LibreOffice's help (the demo's test and dev text; the dev text chose the
checkpoint) one word of the source is the term, and the word of the reference that translates it is
wanted. The words are linked by the lexical table of the first run's training text, as in tags.py;
words that are the same on both sides, and the 100 commonest ones of the source, are no terms.
Prints for each run

- used: translations with the wanted word, in its own form or in another one (a word of the training
  text with the same beginning)
- the same of the sentences whose translation without terms has it in neither form: there only the
  term tells
- other form given: the term has another form of the word, and the translation must have that of the
  reference, as it does if the model inflects terms
- BLEU (sacreBLEU) without terms and with them

`--show` writes so many sentences whose term was used in another form, to be judged by eye.
"""

from __future__ import annotations

import argparse
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import dragoman
from dragoman.corpus.links import WORD
from dragoman.inference.terms import has_term
from tags import Table, bleu, demo_text, share

COMMONEST = 100
LEAST_LETTERS = 4


@dataclass(frozen=True)
class Wanted:
    """A sentence, and the word of its reference that is to translate a word of it.

    other: another form of the target word; the same if the text has none.
    """

    sentence: str
    reference: str
    source: str
    target: str
    other: str


def words_of(text: str) -> list[str]:
    """The words of a text, without case."""
    return [word.casefold() for word in WORD.findall(text)]


def choose(pairs: Sequence[tuple[str, str]], table: Table, lines: int) -> list[Wanted]:
    """One term for each sentence that has one."""
    training = demo_text("train")
    counts = Counter(word for source, _ in training for word in words_of(source))
    common = {word for word, _ in counts.most_common(COMMONEST)}
    words = sorted({word for _, target in training for word in WORD.findall(target)})
    chosen = []
    for number, (sentence, reference) in enumerate(pairs):
        generator = random.Random(number)
        linked = table.linked(sentence, reference)
        candidates = []
        for source, target in linked.links:
            (start, end), (first, last) = linked.words[0][source], linked.words[1][target]
            word, wanted = sentence[start:end], reference[first:last]
            if (
                min(len(word), len(wanted)) >= LEAST_LETTERS
                and word.isalpha()
                and wanted.isalpha()
                and word.casefold() not in common
                and word.casefold() != wanted.casefold()
                and words_of(sentence).count(word.casefold()) == 1
                and linked.counterpart(source, source) == (target, target)
            ):
                candidates.append((word, wanted))
        if candidates:
            word, wanted = generator.choice(candidates)
            other = another_form(wanted, words, generator)
            chosen.append(Wanted(sentence, reference, word, wanted, other))
    return chosen[:lines]


def another_form(word: str, words: Sequence[str], generator: random.Random) -> str:
    """Another form of a word among some, the word if there is none."""
    stem = word[: max(LEAST_LETTERS, len(word) - len(word) // 4)]
    near = words[bisect_left(words, stem) : bisect_left(words, f"{stem}\U0010ffff")]
    forms = [one for one in near if one != word and has_term(one, word)]
    return generator.choice(forms) if forms else word


@cache
def known_words() -> frozenset[str]:
    """The words of the training text on the target side: of no others is it known that they are
    words."""
    return frozenset(word for _, target in demo_text("train") for word in words_of(target))


def has_form(translation: str, word: str) -> str:
    """ "own", "another" or "no": which form of a word a translation has."""
    words = words_of(translation)
    if word.casefold() in words:
        return "own"
    known = known_words().intersection(words)
    return "another" if any(has_term(one, word) for one in known) else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    pairs = demo_text("test") + demo_text("valid")
    wanted = choose(pairs, Table(options.runs[0]), options.lines)
    print(f"{len(wanted)} sentences with a term")
    for run in options.runs:
        with dragoman.Translator(run) as translator:
            report(run, translator, wanted, options.show)


def report(run: Path, translator: dragoman.Translator, wanted: Sequence[Wanted], show: int) -> None:
    """Print the figures of one run."""
    print(f"\n{run.name}")
    references = [one.reference for one in wanted]
    without = translator.translate([one.sentence for one in wanted], text_format="document")
    print(f"without terms: {bleu(without, references)}")
    print_uses("  used", without, wanted)
    given = [
        *(translator.translate([one.sentence], terms={one.source: one.target})[0] for one in wanted)
    ]
    print(f"with terms: {bleu(given, references)}")
    print_uses("  used", given, wanted)
    needed = [
        number for number, one in enumerate(wanted) if has_form(without[number], one.target) == "no"
    ]
    print_uses(
        "  used where it is missing without terms",
        [given[number] for number in needed],
        [wanted[number] for number in needed],
    )
    inflected = [one for one in wanted if one.other != one.target]
    in_other_form = [
        translator.translate([one.sentence], terms={one.source: one.other})[0] for one in inflected
    ]
    print_uses("  used, other form given", in_other_form, inflected)
    shown = [
        (one, translation)
        for one, translation in zip(inflected, in_other_form, strict=True)
        if has_form(translation, one.target) != "no"
    ]
    for one, translation in random.Random(1).sample(shown, min(show, len(shown))):
        print(f"\n{one.source} -> {one.other} ({one.target}): {one.sentence}\n  {translation}")


def print_uses(what: str, translations: Sequence[str], wanted: Sequence[Wanted]) -> None:
    """How many translations have the wanted words."""
    counts = Counter(
        has_form(translation, one.target)
        for translation, one in zip(translations, wanted, strict=True)
    )
    used, total = counts["own"] + counts["another"], len(wanted)
    print(
        f"{what}: {share(used, total)}, in the form of the reference {share(counts['own'], total)}"
    )


if __name__ == "__main__":
    main()
