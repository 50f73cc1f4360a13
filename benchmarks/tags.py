"""How often tags and placeholders inside a sentence are kept, and stand where they belong.

    benchmarks/tags.py RUN [OTHER_RUN ...] [--lines 1000] [--show 100]

Each run is one of the demo (`dragoman run demo`), with or without

    corpus.augment.placeholders=0.05

In 1,000 held-out sentences of LibreOffice's help (the demo's test and dev text; the dev text chose
the checkpoint) a span of words whose counterpart in the reference is known is put into <b>...</b>,
and in other copies a word is replaced by {name}. Counterparts are those of the lexical table
(IBM Model 1 in both directions) of the first run's training text. Prints for each run

- kept: texts in which each tag and placeholder is there exactly once, in an order that is allowed
- in place: of the kept tags whose words the table links to words of the translation, those around
  just these; nearly: those around a part of them, or more; the others are in the wrong place
- BLEU (sacreBLEU) of the plain sentences, and of the sentences with tags once those are removed

`--show` writes so many pairs with tags, drawn at random, to be judged by eye. There a tag is right
if it stands around just the words that translate its words, or around the compound that they are
a part of; nearly right with a further word, such as an article, or without one of them; else wrong.
It has no counterpart if the translation leaves its words out, or has something else in their place.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sacrebleu

import dragoman
from dragoman.corpus.lexical import ITERATIONS, LexicalTable, OftenMet, met_keys
from dragoman.corpus.links import Linked, Span, by_table
from dragoman.corpus.shards import TokenRows
from dragoman.corpus.subword import Subword
from dragoman.recipe.run_directory import RunDirectory

TAG = re.compile("</?b>")
NAME = "{name}"


@dataclass(frozen=True)
class Tagged:
    """A sentence with a span of words in a tag, or with a word replaced."""

    source: str
    plain: str
    reference: str
    span: Span


class Table:
    """Links words by a table of a run's vocabularies and of its training text, the demo's if no
    other is given."""

    def __init__(self, run: Path, lines: list[tuple[str, str]] | None = None) -> None:
        self.vocabularies = (Subword.load(run / "source.model"), Subword.load(run / "target.model"))
        lines = lines or demo_text("train")
        sources, targets = (
            self._rows(side, number) for number, side in enumerate(zip(*lines, strict=True))
        )
        sizes = (self.vocabularies[0].vocab_size, self.vocabularies[1].vocab_size)
        met = OftenMet()
        met.add(*met_keys(sources, targets, target_vocab_size=sizes[1]))
        table = LexicalTable.uniform(met.keys(), vocab_sizes=sizes)
        for iteration in range(1, ITERATIONS + 1):
            counts = table.counts(sources, targets)
            table = LexicalTable.of(table.keys, counts, last=iteration == ITERATIONS)
        self.table = table

    def _rows(self, lines: tuple[str, ...], side: int) -> TokenRows:
        rows = self.vocabularies[side].encode([*lines])
        ids = np.concatenate([np.array(row, dtype=np.uint16) for row in rows])
        return TokenRows(ids, np.array([len(row) for row in rows], dtype=np.int32))

    def linked(self, source: str, target: str) -> Linked:
        """The words of both sides, and which translate each other."""
        return by_table((source, target), self.table, self.vocabularies)


def demo_text(split: str) -> list[tuple[str, str]]:
    """The pairs of a split of the demo."""
    folder = Path(str(dragoman.__file__)).parent / "recipe" / "shipped" / "demo"
    if split == "train":
        text = lzma.decompress((folder / "train.tsv.xz").read_bytes()).decode()
    else:
        text = (folder / f"{split}.tsv").read_text(encoding="utf-8")
    return [(source, target) for source, target in (line.split("\t") for line in text.splitlines())]


def plant(pairs: list[tuple[str, str]], table: Table) -> tuple[list[Tagged], list[Tagged]]:
    """The sentences with a tag, and those with a placeholder."""
    tags, names = [], []
    for number, (source, reference) in enumerate(pairs):
        generator = random.Random(number)
        for (start, end), _ in table.linked(source, reference).spans(generator, wanted=1):
            marked = f"{source[:start]}<b>{source[start:end]}</b>{source[end:]}"
            tags.append(Tagged(marked, source, reference, (start, end)))
        words = [word.span() for word in re.finditer(r"\w+", source)]
        if len(words) >= 3:
            start, end = generator.choice(words)
            replaced = f"{source[:start]}{NAME}{source[end:]}"
            names.append(Tagged(replaced, source, reference, (start, end)))
    return tags, names


def judge(tagged: Tagged, translation: str, table: Table) -> str:
    """ "lost", "unknown", "in place", "nearly" or "wrong"."""
    if TAG.findall(translation) != ["<b>", "</b>"]:
        return "lost"
    start = translation.index("<b>")
    end = translation.index("</b>") - len("<b>")
    plain = TAG.sub("", translation)
    linked = table.linked(tagged.plain, plain)
    inside = [
        number
        for number, (first, last) in enumerate(linked.words[0])
        if first < tagged.span[1] and last > tagged.span[0]
    ]
    wanted = {target for source, target in linked.links if source in inside}
    if not wanted:
        return "unknown"
    around = {
        number
        for number, (first, last) in enumerate(linked.words[1])
        if first < end and last > start
    }
    linked_around = {target for _, target in linked.links if target in around}
    if linked_around == wanted:
        return "in place"
    return "nearly" if linked_around & wanted else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    table = Table(options.runs[0])
    pairs = (demo_text("test") + demo_text("valid"))[: options.lines]
    tags, names = plant(pairs, table)
    print(f"{len(pairs)} sentences: {len(tags)} with a tag, {len(names)} with a placeholder")
    for run in options.runs:
        with dragoman.Translator(run) as translator:
            report(run, translator, pairs, tags, names, table, options.show)


def report(
    run: Path,
    translator: dragoman.Translator,
    pairs: list[tuple[str, str]],
    tags: list[Tagged],
    names: list[Tagged],
    table: Table,
    show: int,
) -> None:
    """Print the figures of one run."""
    augment = RunDirectory.open(run).recipe().corpus.augment
    print(f"\n{run.name}: placeholders {augment.placeholders:g}")
    references = [reference for _, reference in pairs]
    plain = translator.translate([source for source, _ in pairs], text_format="document")
    print(f"plain sentences: {bleu(plain, references)}")

    translations = translator.translate([tagged.source for tagged in tags], text_format="markup")
    verdicts = [judge(*both, table) for both in zip(tags, translations, strict=True)]
    counts = Counter(verdicts)
    known = sum(counts[verdict] for verdict in ("in place", "nearly", "wrong"))
    print(f"tags kept: {share(len(tags) - counts['lost'], len(tags))}")
    for verdict in ("in place", "nearly", "wrong"):
        print(f"  {verdict}: {share(counts[verdict], known)}")
    without = [TAG.sub("", translation) for translation in translations]
    print(f"  without them: {bleu(without, [tagged.reference for tagged in tags])}")
    of_plain = translator.translate([tagged.plain for tagged in tags], text_format="document")
    print(f"  the same plain: {bleu(of_plain, [tagged.reference for tagged in tags])}")

    named = translator.translate([name.source for name in names], text_format="document")
    kept = sum(translation.count(NAME) == 1 for translation in named)
    print(f"placeholders kept: {share(kept, len(names))}")
    for place in random.Random(1).sample(range(len(tags)), min(show, len(tags))):
        print(f"\n[{verdicts[place]}] {tags[place].source}\n  {translations[place]}")


def bleu(translations: list[str], references: list[str]) -> str:
    """The score in words."""
    return f"{sacrebleu.corpus_bleu(translations, [references]).score:.2f} BLEU"


def share(count: int, total: int) -> str:
    """A count with its share of all."""
    return f"{count:,} of {total:,} ({count / max(1, total):.1%})"


if __name__ == "__main__":
    main()
