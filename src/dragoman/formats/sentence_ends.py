"""An ONNX graph for MiniSBD that finds the ends of sentences; Argos Translate splits text with it.

MiniSBD (Argos Translate's splitter since 1.10) gives a graph the code points of a paragraph's
characters and some features of each, and takes the likeliest class for each: nothing ends, a word
ends, a sentence ends. Its own graphs are trained, one for each language. This one has the rules of
`evaluation.sentences`: they are patterns of some dozen characters, and a convolution with a filter
for each pattern finds them. Of runs it sees no more than two closing marks, and letters only of
scripts that have capitals, and Georgian ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.evaluation.sentences import (
    ABBREVIATIONS,
    BEFORE_NUMBERS,
    CLOSING,
    LONGEST_SHORT_WORD,
    MARKS,
    OPENING,
    STOPS,
    SURE_CLOSING,
    SURE_MARKS,
    WIDE_STOPS,
    YEARS,
    is_small,
)
from dragoman.formats.onnx import Graph, save_graph

FEATURES: Final = ("capitalized", "numeric")
"""MiniSBD's features of each character beside its code point."""
_PAD: Final = "<PAD>"
_UNKNOWN: Final = "<UNK>"
_SMALL: Final = "".join(filter(is_small, map(chr, range(0x10000))))
_CLASSES: Final = {
    "mark": MARKS,
    "stop": STOPS,
    "closing": CLOSING,
    "sure": SURE_MARKS + WIDE_STOPS,
    "sure or closing": SURE_MARKS + WIDE_STOPS + SURE_CLOSING,
    "after sure": SURE_MARKS + WIDE_STOPS + SURE_CLOSING + MARKS,
    "wide stop": WIDE_STOPS,
    "quote": "\"'",
    "before a word": OPENING + " ",
    "before an abbreviation": OPENING + " -",
    "before a number": BEFORE_NUMBERS,
    "Roman": "IVX",
    "after Roman": f" {MARKS}{CLOSING},;:",
    "space": " ",
    "small": _SMALL,
    "letter": "".join(one for one in map(chr, range(0x10000)) if one.islower() or one.isupper()),
    "year": YEARS,
    "Greek": "".join(filter(str.isalpha, map(chr, [*range(0x370, 0x400), *range(0x1F00, 0x2000)]))),
    "Armenian": "".join(map(chr, range(0x531, 0x588))),
    "Ethiopic colon": "\u1361",
}
"""The characters of each class."""
_PADDED: Final = ("before a word", "before an abbreviation", "after Roman")
"""Classes that padding is of, too: it is what stands before a paragraph, and after it."""
_LONGEST_ROMAN: Final = 4

Place = tuple[str, ...]
"""What holds of a character: classes, features, and a character itself, in either case."""
Pattern = tuple[tuple[str | Place, ...], int]
"""What holds at each place, and the index of the place that the pattern decides."""


def write_sentence_ends(path: Path) -> None:
    """Write the graph; raises MachineError if onnx is not installed."""
    groups = [list(patterns) for patterns in (_ends(), _no_ends(), _ends_after_all())]
    letters = sorted({one.lower() for word in ABBREVIATIONS for one in word} | set(".;:»-\u1361"))
    numbers = {letter: number for number, letter in enumerate(letters, start=1)}
    known = {one for text in _CLASSES.values() for one in text}
    known |= {one for letter in letters for one in (letter, letter.upper()) if len(one) == 1}
    characters = [_PAD, _UNKNOWN, *sorted(known)]
    channels = {name: number for number, name in enumerate([*_CLASSES, *FEATURES])}
    # Two more columns tell letters apart: the number of each and its square, see `_filters`.
    table = np.zeros((len(characters), len(_CLASSES) + 2), dtype=np.float32)
    for row, character in enumerate(characters):
        for column, members in enumerate(_CLASSES.values()):
            table[row, column] = character in members
        number = numbers.get(character.lower(), 0)
        table[row, -2:] = number, number**2
    table[0, [channels[name] for name in _PADDED]] = 1.0

    graph = Graph()
    units = graph.input("units", np.int64, ["rows", "characters"])
    features = graph.input("features", np.float32, ["rows", "characters", len(FEATURES)])
    patterns = [pattern for group in groups for pattern in group]
    before = max(place for _, place in patterns)
    after = max(len(places) - place - 1 for places, place in patterns)
    units = graph.add("Pad", units, graph.vector([0, before, 0, after]))
    features = graph.add("Pad", features, graph.vector([0, before, 0, 0, after, 0]))
    of_each = graph.add("Gather", graph.constant(table), units)
    cells = graph.add("Concat", of_each, features, axis=2)
    cells = graph.add("Transpose", cells, perm=[0, 2, 1])
    channels |= {name: number + 2 for name, number in channels.items() if name in FEATURES}
    found = []
    for group in groups:
        weights, bias = _filters(group, channels, numbers, before=before, after=after)
        sums = graph.add("Conv", cells, graph.constant(weights), graph.constant(bias))
        found.append(graph.add("ReduceMax", graph.add("Relu", sums), axes=[1], keepdims=1))
    is_end = graph.add("Add", graph.add("Sub", found[0], found[1]), found[2])
    # Nothing ends: 0.5. A word: 0. A sentence: 1 or more if it ends.
    end_weights = np.array([0.0, 0.0, 1.0], dtype=np.float32).reshape(3, 1, 1)
    end_bias = np.array([0.5, 0.0, 0.0], dtype=np.float32)
    scores = graph.add("Conv", is_end, graph.constant(end_weights), graph.constant(end_bias))
    scores = graph.add("Transpose", scores, perm=[0, 2, 1])
    graph.output(scores, "scores", ["rows", "characters", 3])
    save_graph(graph, path, metadata=_metadata(characters))


def _ends() -> Iterator[Pattern]:
    """Patterns that end a sentence."""
    for closing in range(3):
        closed = ["closing"] * closing
        yield ("mark", *closed, "space"), closing
        yield ("sure", *["sure or closing"] * closing), closing
        yield ("sure", "quote", *closed, "space"), closing + 1
        yield ("Greek", ";", *closed, "space"), closing + 1
        yield ("Armenian", ":", *closed, "space"), closing + 1
        yield ("Ethiopic colon", "\u1361", *closed, "space"), closing + 1
    for mark in (("mark",), ("Greek", ";")):
        yield (*mark, "space", "»", "space"), len(mark) + 1


def _no_ends() -> Iterator[Pattern]:
    """Patterns that do not end a sentence, even if one of `_ends` fits."""
    yield ("sure or closing", "after sure"), 0
    yield ("sure", "space", "sure"), 0
    yield ("sure", "quote", "space"), 0
    yield ("sure", "quote", "closing"), 0
    yield ("wide stop", "numeric"), 0
    yield ("mark", "space", "»", "space"), 0
    yield (("Greek", ";"), "space", "»", "space"), 0
    yield ("mark", "space", "»", "space", "small"), 2
    for closing in range(3):
        yield ("stop", *["closing"] * closing, "space", "small"), closing
    for closing in (1, 2):
        yield ("mark", *["closing"] * closing, "space", "small"), closing
    for word in ABBREVIATIONS:
        first = ("capitalized", word[0]) if word[0].isupper() else (word[0],)
        yield ("before an abbreviation", first, *word[1:].lower(), ".", "space"), len(word) + 1
    yield ("before a word", "letter", ".", "space"), 2
    yield (".", "letter", ".", "space"), 2
    yield (".", "-", "letter", ".", "space"), 3
    yield ("letter", *"str", ".", "space"), 4
    for digits in range(1, 4):
        yield ("before a word", *["numeric"] * digits, ".", "space"), digits + 1
        for before in ("before a word", "sure"):
            yield (before, *["numeric"] * digits, "wide stop"), digits + 1
    for letters in range(1, LONGEST_SHORT_WORD + 1):
        short = ("before an abbreviation", *["letter"] * letters, ".", "space")
        for following in ("numeric", "before a number"):
            yield (*short, following), letters + 1
        for length in range(2, _LONGEST_ROMAN + 1):
            yield (*short, *["Roman"] * length, "after Roman"), letters + 1


def _ends_after_all() -> Iterator[Pattern]:
    """Patterns that end a sentence, even if one of `_no_ends` fits."""
    yield ("numeric", "space", "year", ".", "space", "capitalized"), 3


def _filters(
    patterns: list[Pattern],
    channels: dict[str, int],
    numbers: dict[str, int],
    *,
    before: int,
    after: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (patterns, channels, places) and biases: together they give 1 if the pattern fits,
    and 0 or less if it does not.

    A class that fits adds 1. A letter adds -(x - c)^2 for its number x and the wanted c, which is 0
    if they are the same.
    """
    width = len(channels) + 2
    weights = np.zeros((len(patterns), width, before + 1 + after), dtype=np.float32)
    bias = np.ones(len(patterns), dtype=np.float32)
    letter = channels[FEATURES[0]] - 2
    for row, (places, behind) in enumerate(patterns):
        for place, names in enumerate(places, start=before - behind):
            for name in (names,) if isinstance(names, str) else names:
                if name in channels:
                    weights[row, channels[name], place] = 1.0
                    bias[row] -= 1.0
                else:
                    number = numbers[name.lower()]
                    weights[row, letter : letter + 2, place] = 2 * number, -1.0
                    bias[row] -= number**2
    return weights, bias


def _metadata(characters: list[str]) -> dict[str, str]:
    """The settings that MiniSBD reads beside the graph."""
    config = {
        "feat_funcs": FEATURES, "batch_size": 32, "max_seqlen": 1000, "skip_newline": False,
        "no_ssplit": False, "use_dictionary": False, "num_dict_feat": 0,
    }  # fmt: skip
    numbers = {character: number for number, character in enumerate(characters)}
    vocab = {"lang": "", "lower": False, "_unit2id": numbers, "_id2unit": characters}
    return {"config": json.dumps(config), "vocab": json.dumps(vocab), "lexicon": "null"}
