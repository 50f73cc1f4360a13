"""An ONNX graph for MiniSBD that finds the ends of sentences; Argos Translate splits text with it.

MiniSBD (Argos Translate's splitter since 1.10) gives a graph the code points of a paragraph's
characters and some features of each, and takes the likeliest class for each: nothing ends, a word
ends, a sentence ends. Its own graphs are trained, one for each language. This one has the rules of
`evaluation.sentences`: they are patterns of at most a dozen characters, and a convolution with a
filter for each pattern finds them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.evaluation.sentences import ABBREVIATIONS
from dragoman.formats.onnx import Graph, save_graph

FEATURES: Final = ("capitalized", "numeric")
"""MiniSBD's features of each character beside its code point."""
_PAD: Final = "<PAD>"
_UNKNOWN: Final = "<UNK>"
_CLASSES: Final = {
    "mark": ".!?…",
    "closing": "\"'»”’)]",
    "wide mark": "。！？",
    "wide end": "。！？」』”’）",
    "before a word": " ([\"'„“«",
    "space": " ",
    "small": "".join(filter(str.islower, map(chr, range(0x10000)))),
}
"""The characters of each class."""
_LETTERS: Final = ("small", "capitalized")

Pattern = tuple[tuple[str, ...], int]
"""A class or a character for each place, and the index of the place that the pattern decides."""


def write_sentence_ends(path: Path) -> None:
    """Write the graph; raises MachineError if onnx is not installed."""
    ends, others = list(_ends()), list(_no_ends())
    names = [*_CLASSES, *sorted({one for word in ABBREVIATIONS for one in word} | {"."})]
    characters = [
        _PAD,
        _UNKNOWN,
        *sorted({one for name in names for one in _CLASSES.get(name, name)}),
    ]
    channels = {name: number for number, name in enumerate([*names, *FEATURES])}
    table = np.zeros((len(characters), len(names)), dtype=np.float32)
    for number, character in enumerate(characters):
        for name in names:
            table[number, channels[name]] = character in _CLASSES.get(name, name)
    table[0, channels["before a word"]] = 1.0  # padding is what stands before a paragraph

    graph = Graph()
    units = graph.input("units", np.int64, ["rows", "characters"])
    features = graph.input("features", np.float32, ["rows", "characters", len(FEATURES)])
    before = max(place for _, place in (*ends, *others))
    after = max(len(classes) - place - 1 for classes, place in (*ends, *others))
    units = graph.add("Pad", units, graph.vector([0, before, 0, after]))
    features = graph.add("Pad", features, graph.vector([0, before, 0, 0, after, 0]))
    of_each = graph.add("Gather", graph.constant(table), units)
    cells = graph.add("Concat", of_each, features, axis=2)
    cells = graph.add("Transpose", cells, perm=[0, 2, 1])
    found = []
    for patterns in (ends, others):
        filters = _filters(patterns, channels, before=before, after=after)
        # A filter sums to its pattern's length if and only if every place fits: then 1 is left.
        bias = np.array([1.0 - len(classes) for classes, _ in patterns], dtype=np.float32)
        sums = graph.add("Conv", cells, graph.constant(filters), graph.constant(bias))
        found.append(graph.add("ReduceMax", graph.add("Relu", sums), axes=[1], keepdims=1))
    is_end = graph.add("Sub", *found)
    # Nothing ends: 0.5. A word: 0. A sentence: 1 if a pattern of an end fits and no other.
    weights = np.array([0.0, 0.0, 1.0], dtype=np.float32).reshape(3, 1, 1)
    bias = np.array([0.5, 0.0, 0.0], dtype=np.float32)
    scores = graph.add("Conv", is_end, graph.constant(weights), graph.constant(bias))
    scores = graph.add("Transpose", scores, perm=[0, 2, 1])
    graph.output(scores, "scores", ["rows", "characters", 3])
    save_graph(graph, path, metadata=_metadata(characters))


def _ends() -> Iterator[Pattern]:
    """Patterns that end a sentence."""
    for closing in range(3):
        yield ("mark", *["closing"] * closing, "space"), closing
        yield ("wide mark", *["wide end"] * closing), closing


def _no_ends() -> Iterator[Pattern]:
    """Patterns that do not end a sentence, even if one of `_ends` fits."""
    yield ("wide end", "wide end"), 0
    for closing in range(3):
        yield (".", *["closing"] * closing, "space", "small"), closing
    words = [*ABBREVIATIONS, *([letter] for letter in _LETTERS)]
    words += [["numeric"] * digits for digits in range(1, 4)]
    for word in words:
        yield ("before a word", *word, ".", "space"), len(word) + 1
    for letter in _LETTERS:
        yield (".", letter, ".", "space"), 2


def _filters(
    patterns: list[Pattern], channels: dict[str, int], *, before: int, after: int
) -> NDArray[np.float32]:
    """Weights (patterns, channels, places): 1 if the pattern has the class at the place, else 0."""
    shape = (len(patterns), len(channels), before + 1 + after)
    filters = np.zeros(shape, dtype=np.float32)
    for number, (classes, behind) in enumerate(patterns):
        for place, name in enumerate(classes):
            filters[number, channels[name], before - behind + place] = 1.0
    return filters


def _metadata(characters: list[str]) -> dict[str, str]:
    """The settings that MiniSBD reads beside the graph."""
    config = {
        "feat_funcs": FEATURES, "batch_size": 32, "max_seqlen": 1000, "skip_newline": False,
        "no_ssplit": False, "use_dictionary": False, "num_dict_feat": 0,
    }  # fmt: skip
    numbers = {character: number for number, character in enumerate(characters)}
    vocab = {"lang": "", "lower": False, "_unit2id": numbers, "_id2unit": characters}
    return {"config": json.dumps(config), "vocab": json.dumps(vocab), "lexicon": "null"}
