"""Sentences of some forty languages whose ends are known, written for these tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

UNSPACED = ("zh", "ja")
"""Languages that write no space between sentences."""


def known_sentences() -> dict[str, list[str]]:
    """The sentences of each language."""
    sentences: dict[str, list[str]] = defaultdict(list)
    for line in Path(__file__).with_suffix(".tsv").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            language, sentence = line.split("\t")
            sentences[language].append(sentence)
    return sentences


def known_paragraphs() -> dict[str, tuple[str, list[str]]]:
    """A paragraph of each language, and its sentences."""
    return {
        language: (("" if language in UNSPACED else " ").join(sentences), sentences)
        for language, sentences in known_sentences().items()
    }
