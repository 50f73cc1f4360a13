"""Which package finds the ends of sentences best, and how fast?

    benchmarks/sentence_ends.py [--packages DIR] [--sentences DIR]

--packages: made by `pip install --target DIR pysbd sentencex blingfire PyICU`; PyICU needs the
    library of ICU. A candidate that is missing is left out.
--sentences: a folder with a file LANGUAGE.txt for each language, one sentence per line, such as the
    `# text` lines of Universal Dependencies. Without it: the sentences of `tests/known_ends.tsv`,
    which were written for our tests.

Eight sentences at a time become a paragraph, with a space between two of them unless the language
writes none. Lines that do not end in a mark, such as headlines, are left out. Printed are
precision, recall and F1 of the ends inside paragraphs, the characters that a candidate lost, and
its speed on one core. A candidate is told the language, except blingfire and ours: they take none.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from dragoman.evaluation.sentences import split_sentences

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from known_ends import UNSPACED, known_sentences

PARAGRAPH = 8
Split = Callable[[str], list[str]]


def ours(_language: str) -> Split:
    return lambda text: [part for pair in split_sentences(text) for part in pair]


def sentencex(language: str) -> Split:
    module: Any = importlib.import_module("sentencex")
    return lambda text: list(module.segment(language, text))


def pysbd(language: str) -> Split:
    """English rules if it does not know the language."""
    module: Any = importlib.import_module("pysbd")
    known = importlib.import_module("pysbd.languages").LANGUAGE_CODES
    segmenter = module.Segmenter(language=language if language in known else "en", clean=False)
    return lambda text: list(segmenter.segment(text))


def blingfire(_language: str) -> Split:
    module: Any = importlib.import_module("blingfire")
    return lambda text: module.text_to_sentences(text).split("\n")


def icu(language: str) -> Split:
    """With the abbreviations that ICU has for the language."""
    module: Any = importlib.import_module("icu")
    breaks = module.BreakIterator.createSentenceInstance(module.Locale(f"{language}@ss=standard"))

    def split(text: str) -> list[str]:
        units = module.UnicodeString(text)
        breaks.setText(units)
        bounds = [0, *breaks]
        return [str(units[start:end]) for start, end in pairwise(bounds)]

    return split


CANDIDATES: dict[str, Callable[[str], Split]] = {
    one.__name__: one for one in (ours, sentencex, icu, pysbd, blingfire)
}


def bare(text: str) -> str:
    """The text without spaces: where a sentence ends is counted in these characters."""
    return "".join(text.split())


def ends(parts: list[str]) -> set[int]:
    """Where parts end, in characters without spaces."""
    found, place = set(), 0
    for part in parts:
        place += len(bare(part))
        found.add(place)
    return found


def texts_of(folder: Path | None) -> dict[str, list[str]]:
    """The sentences of each language; those without a mark at their end are left out."""
    sentences = known_sentences()
    if folder is not None:
        files = sorted(folder.glob("*.txt"))
        sentences = {file.stem: file.read_text("utf-8").split("\n") for file in files}
    return {
        language: [line for line in lines if line and unicodedata.category(line[-1])[0] == "P"]
        for language, lines in sentences.items()
    }


def measure(split: Split, language: str, sentences: list[str]) -> tuple[int, int, int, int, float]:
    """Ends that are right, found and known; characters that were lost; seconds."""
    right = found = known = lost = 0
    spent_s = 0.0
    for start in range(0, len(sentences), PARAGRAPH):
        paragraph = sentences[start : start + PARAGRAPH]
        text = ("" if language in UNSPACED else " ").join(paragraph)
        began = time.process_time()
        parts = split(text)
        spent_s += time.process_time() - began
        lost += len(bare(text)) - len(bare("".join(parts)))
        inner = {0, len(bare(text))}
        their, true = ends(parts) - inner, ends(paragraph) - inner
        right, found, known = right + len(their & true), found + len(their), known + len(true)
    return right, found, known, lost, spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--sentences", type=Path)
    options = parser.parse_args()
    if options.packages is not None:
        sys.path.append(str(options.packages))
    texts = texts_of(options.sentences)
    characters = sum(len(sentence) for sentences in texts.values() for sentence in sentences)
    summary = []
    print("splitter   language ends  precision  recall   F1 %")
    for name, make in CANDIDATES.items():
        try:
            splits = {language: make(language) for language in texts}
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        f1s, all_lost, all_s = [], 0, 0.0
        for language, sentences in texts.items():
            right, found, known, lost, spent_s = measure(splits[language], language, sentences)
            precision, recall = 100 * right / max(found, 1), 100 * right / max(known, 1)
            f1s.append(200 * right / max(found + known, 1))
            all_lost, all_s = all_lost + lost, all_s + spent_s
            print(f"{name:10} {language:8} {known:4} {precision:9.1f} {recall:8.1f} {f1s[-1]:6.1f}")
        speed = characters / all_s / 1e6
        summary.append(
            f"{name:10} mean F1 {sum(f1s) / len(f1s):5.1f}, worst {min(f1s):5.1f}, "
            f"{all_lost} characters lost, {speed:.2f} million characters/s"
        )
    print("", *summary, sep="\n")


if __name__ == "__main__":
    main()
