"""How many pairs of documents with a known alignment does `dragoman align` find, and other tools?

    benchmarks/align.py --data FOLDER [--hunalign FILE] [--bleualign FOLDER [--model RUN]]

--data: the folder with wmt-news, multi30k and ende-mixed.
--hunalign: the program, built from github.com/danielvarga/hunalign.
--bleualign: a checkout of github.com/rsennrich/Bleualign; its dynamic program of lengths alone, and
    with --model, a run from English to German, the whole of it with that model's translations.

Documents of 20 to 200 lines are made from texts whose lines are parallel. On each side a tenth of
the lines is dropped; a twentieth is joined with the next on one side; beside a tenth of them a
heading, the first words of any line, is put on one side. Printed are precision, recall and F1 of
the pairs (strict: both sides are exactly right; lax: some sentence of the pair is).

hunalign learns a dictionary from all documents of a collection as one, then aligns each with it.
The texts are others than those from which the constants of dragoman's scores were estimated.
"""

from __future__ import annotations

import argparse
import importlib
import io
import lzma
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dragoman.corpus.align_documents import DOUBTFUL, DocumentPair, align_documents

Span = tuple[int, int, int, int]
"""The first source, the one after the last, and the same of targets."""


class Known(NamedTuple):
    sources: list[str]
    targets: list[str]
    pairs: list[Span]


Align = Callable[[list[Known]], list[list[Span]]]


def collections(data: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Parallel lines by the name of their collection."""
    news, captions, mixed = data / "wmt-news", data / "multi30k", data / "ende-mixed"
    packed = (
        lzma.decompress((mixed / f"train.{side}.xz").read_bytes()).decode().split("\n")
        for side in ("src", "en", "de")
    )
    manuals = [rest for tag, *rest in zip(*packed, strict=True) if tag == "doc-kde-help"][:3000]
    return {
        "news, en-de": (lines(news / "newstest2013.en"), lines(news / "newstest2013.de")),
        "captions, en-cs": (
            lines(captions / "test2016.en") + lines(captions / "valid.en"),
            lines(captions / "test2016.cs") + lines(captions / "valid.cs"),
        ),
        "manuals, en-de": ([one for one, _ in manuals], [other for _, other in manuals]),
    }


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def documents(sources: list[str], targets: list[str], random: Random) -> list[Known]:
    """Documents made from parallel lines."""
    made, start = [], 0
    while start + 20 <= len(sources):
        end = min(start + random.randint(20, 200), len(sources))
        made.append(document(sources, targets, start, end, random))
        start = end
    return made


def document(sources: list[str], targets: list[str], start: int, end: int, random: Random) -> Known:
    known = Known([], [], [])
    while start < end:
        if random.random() < 0.1:
            side, texts = random.choice([(known.sources, sources), (known.targets, targets)])
            side.append(" ".join(random.choice(texts).split()[: random.randint(2, 6)]))
        one, other = [sources[start]], [targets[start]]
        start += 1
        if random.random() < 0.05 and start < end:
            one, other = [*one, sources[start]], [*other, targets[start]]
            start += 1
            if random.random() < 0.5:
                one = [" ".join(one)]
            else:
                other = [" ".join(other)]
        else:
            one, other = (side if random.random() > 0.1 else [] for side in (one, other))
        places = len(known.sources), len(known.targets)
        known.sources.extend(one)
        known.targets.extend(other)
        if one and other:
            known.pairs.append((places[0], len(known.sources), places[1], len(known.targets)))
    return known


def ours(made: list[Known]) -> list[list[Span]]:
    """The pairs that pairs.tsv has: those with a score that is not doubtful."""
    aligned = align_documents([DocumentPair(one.sources, one.targets) for one in made])
    return [
        [
            (*bounds(source), *bounds(target))
            for (source, target), score in beads
            if score >= DOUBTFUL
        ]
        for beads in aligned
    ]


def bounds(part: slice) -> tuple[int, int]:
    return part.start, part.stop


def hunalign(program: Path) -> Align:
    def align(made: list[Known]) -> list[list[Span]]:
        with TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "null.dic").write_text("")
            whole = Known([], [], [])
            for one in made:
                whole.sources.extend(one.sources)
                whole.targets.extend(one.targets)
            learnt = place / "learnt.dic"
            ladder(program, place / "null.dic", whole, place, f"-autodict={learnt}")
            return [ladder(program, learnt, one, place) for one in made]

    return align


def ladder(program: Path, dictionary: Path, one: Known, place: Path, *options: str) -> list[Span]:
    """hunalign's pairs of a document, of words in small letters."""
    for name, texts in (("source", one.sources), ("target", one.targets)):
        words = (" ".join(re.findall(r"\w+|[^\w\s]", text.casefold())) for text in texts)
        (place / name).write_text("\n".join(words) + "\n", "utf-8")
    files = (dictionary, place / "source", place / "target")
    command = [str(program.resolve()), "-realign", *options, *map(str, files)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=place)
    rungs = [[*map(int, line.split("\t")[:2])] for line in done.stdout.splitlines()]
    spans = [(first[0], second[0], first[1], second[1]) for first, second in pairwise(rungs)]
    return [span for span in spans if span[0] < span[1] and span[2] < span[3]]


def bleualign(folder: Path, translate: Callable[[list[str]], list[str]] | None) -> Align:
    sys.path.append(str(folder))
    module: Any = importlib.import_module("bleualign.align")

    def align(made: list[Known]) -> list[list[Span]]:
        return [align_one(one) for one in made]

    def align_one(one: Known) -> list[Span]:
        options = {"srcfile": one.sources, "targetfile": one.targets, "verbosity": 0}
        if translate is None:
            options |= {"galechurch": True, "no_translation_override": True}
        else:
            options |= {"srctotarget": [translate(one.sources)]}
        aligner = module.Aligner(options | {"log_to": io.StringIO()})
        aligner.mainloop()
        return [
            (min(source), max(source) + 1, min(target), max(target) + 1)
            for (source, target), _ in aligner.multialign
            if source and target
        ]

    return align


def measure(made: list[Known], found: list[list[Span]]) -> tuple[float, float, float, float, float]:
    """Precision, recall and F1 of the pairs, then precision and recall if an overlap is enough."""
    num_known = sum(len(one.pairs) for one in made)
    num_found = sum(map(len, found))
    right = overlapping = covered = 0
    for one, spans in zip(made, found, strict=True):
        right += len({*one.pairs} & {*spans})
        known = cells(one.pairs)
        ours = cells(spans)
        overlapping += sum(not known.isdisjoint(cells([span])) for span in spans)
        covered += sum(not ours.isdisjoint(cells([span])) for span in one.pairs)
    return (
        right / max(1, num_found),
        right / num_known,
        2 * right / (num_found + num_known),
        overlapping / max(1, num_found),
        covered / num_known,
    )


def cells(spans: list[Span]) -> set[tuple[int, int]]:
    return {
        (source, target)
        for first, last, start, end in spans
        for source in range(first, last)
        for target in range(start, end)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--hunalign", type=Path)
    parser.add_argument("--bleualign", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--documents", type=int, help="of each collection; otherwise all")
    options = parser.parse_args()
    tools: dict[str, Align] = {"dragoman": ours}
    if options.hunalign:
        tools["hunalign"] = hunalign(options.hunalign)
    if options.bleualign:
        tools["Gale-Church of Bleualign"] = bleualign(options.bleualign, None)
    if options.bleualign and options.model:
        from dragoman import Translator

        translator = Translator(options.model)
        tools["Bleualign"] = bleualign(options.bleualign, translator.translate)
    print("precision, recall and F1, strict; precision and recall, lax")
    for name, (sources, targets) in collections(options.data).items():
        made = documents(sources, targets, Random(7))[: options.documents]
        print(f"{name}: {len(made)} documents, {sum(len(one.pairs) for one in made)} pairs")
        for tool, align in tools.items():
            if tool == "Bleualign" and not name.endswith("en-de"):
                continue
            began = time.perf_counter()
            figures = measure(made, align(made))
            took_s = time.perf_counter() - began
            print(f"  {tool:24}", *(f"{figure:.3f}" for figure in figures), f"{took_s:.1f} s")


if __name__ == "__main__":
    main()
