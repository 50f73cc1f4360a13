"""How often tags and placeholders inside a sentence are kept, and stand where they belong.

    benchmarks/tags.py RUN [OTHER_RUN ...] [--help-pages HELP] [--lines 1000] [--show 100]

Each run is one of the demo (`dragoman run demo`), with or without

    corpus.augment.placeholders=0.05

In 1,000 held-out sentences of LibreOffice's help (the demo's test and dev text; the dev text chose
the checkpoint) a span of words whose counterpart in the reference is known is put into <b>...</b>,
and in other copies a word is replaced by {name}. Counterparts are those of the lexical table
(IBM Model 1 in both directions) of the first run's training text. Prints for each run

- kept: the tags and placeholders that are there exactly once
- in place: of the kept tags whose words the table links to words of the translation, those around
  just these; nearly: those around a part of them, or more; the others are in the wrong place
- BLEU (sacreBLEU) of the plain sentences, and of the sentences with tags once those are removed

With `--help-pages usr/share/libreoffice/help` (of Debian's libreoffice-help-en-us and -de: `apt-get
download`, `dpkg-deb -x`), the tags are those that the authors of the help wrote inside sentences:
names of menus and keys, links, code, emphasis. The sentences are not in the demo's training text.

`--show` writes so many pairs with tags, drawn at random, to be judged by eye. There a tag is right
if it stands around just the words that translate its words, or around the compound that they are
a part of; nearly right with a further word, such as an article, or without one of them; else wrong.
It has no counterpart if the translation leaves its words out, or has something else in their place.
"""

from __future__ import annotations

import argparse
import html
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

TAG = re.compile("<(/?)([^<>]*)>")
NAME = "{name}"
BLOCK = re.compile(r'<(?:p|h\d) id="((?:par|hd)_id[^"]*)"[^>]*>(.*?)</(?:p|h\d)>', re.DOTALL)
INLINE = re.compile(r'span class="(emph|literal|menuitem|input|keycode|productname)"|a [^>]*href=')
WORDS = range(4, 41)
"""How many words a sentence of the help pages has."""


@dataclass(frozen=True)
class Tagged:
    """A sentence with tags around spans of words, or with a word replaced."""

    source: str
    plain: str
    reference: str
    spans: list[tuple[str, Span]]
    """Each tag with its span of the plain text."""


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


def plant(pairs: list[tuple[str, str]], table: Table) -> list[Tagged]:
    """The sentences with a tag around words that have a counterpart in the reference."""
    tags = []
    for number, (source, reference) in enumerate(pairs):
        generator = random.Random(number)
        for (start, end), _ in table.linked(source, reference).spans(generator, wanted=1):
            marked = f"{source[:start]}<b>{source[start:end]}</b>{source[end:]}"
            tags.append(Tagged(marked, source, reference, [("b", (start, end))]))
    return tags


def plant_names(pairs: list[tuple[str, str]]) -> list[Tagged]:
    """The sentences with a placeholder in place of a word."""
    names = []
    for number, (source, reference) in enumerate(pairs):
        generator = random.Random(number)
        words = [word.span() for word in re.finditer(r"\w+", source)]
        if len(words) >= 3:
            start, end = generator.choice(words)
            replaced = f"{source[:start]}{NAME}{source[end:]}"
            names.append(Tagged(replaced, source, reference, []))
    return names


def from_pages(help_pages: Path, lines: int) -> list[Tagged]:
    """So many sentences of the help pages with tags inside, spread over all that are usable: whole
    paragraphs of one sentence with the same kinds of tags in both languages, none of them around
    all of it; neither side is in the demo's training text."""
    trained = {side for pair in demo_text("train") for side in pair}
    found: dict[str, Tagged] = {}
    for page in sorted((help_pages / "en-US").rglob("*.html")):
        other = help_pages / "de" / page.relative_to(help_pages / "en-US")
        if not other.exists():
            continue
        sides = [dict(BLOCK.findall(path.read_text(encoding="utf-8"))) for path in (page, other)]
        for block in sides[0].keys() & sides[1].keys():
            both = [" ".join(side[block].split()) for side in sides]
            kinds = [sorted(map(_kind, re.findall("<([^/<>][^<>]*)>", side))) for side in both]
            if not kinds[0] or "" in kinds[0] or kinds[0] != kinds[1]:
                continue
            (plain, spans), (reference, _) = map(read_tags, both)
            if (
                max(end - start for _, (start, end) in spans) < len(plain) - 2
                and len(plain.split()) in WORDS
                and plain != reference
                and not {plain, reference} & trained
                and not re.search(r"[.!?:] [A-Z]", plain)
            ):
                found.setdefault(plain, Tagged(both[0], plain, reference, spans))
    usable = [found[plain] for plain in sorted(found)]
    random.Random(1).shuffle(usable)
    return usable[:lines]


def _kind(tag: str) -> str:
    """The kind of a tag inside a sentence, such as "emph" or "link"; "" for pictures."""
    kind = INLINE.match(tag)
    return "" if kind is None else kind[1] or "link"


def read_tags(text: str) -> tuple[str, list[tuple[str, Span]]]:
    """A text without tags and with characters for references, and its tags with their spans, in the
    order of their ends. Raises ValueError if they are not nested."""
    plain, position = "", 0
    open_tags: list[tuple[str, int]] = []
    spans: list[tuple[str, Span]] = []
    for tag in TAG.finditer(text):
        plain += html.unescape(text[position : tag.start()])
        position = tag.end()
        if not tag[1]:
            open_tags.append((tag[2], len(plain)))
        elif open_tags and open_tags[-1][0].split()[0] == tag[2]:
            name, start = open_tags.pop()
            spans.append((name, (start, len(plain))))
        else:
            raise ValueError(f"</{tag[2]}> ends nothing: {text}")
    return plain + html.unescape(text[position:]), spans


def judge(tagged: Tagged, translation: str, table: Table) -> list[str]:
    """Of each tag "lost", "unknown", "in place", "nearly" or "wrong"."""
    plain, spans = read_tags(translation)
    if sorted(tag for tag, _ in spans) != sorted(tag for tag, _ in tagged.spans):
        return ["lost"] * len(tagged.spans)
    linked = table.linked(tagged.plain, plain)
    # Two equal tags are matched in their order; a translation may need another.
    ordered = [sorted(side) for side in (tagged.spans, spans)]
    return [_verdict(linked, span, place) for (_, span), (_, place) in zip(*ordered, strict=True)]


def _verdict(linked: Linked, span: Span, place: Span) -> str:
    wanted = {target for source, target in linked.links if _touch(linked.words[0][source], span)}
    if not wanted:
        return "unknown"
    around = {target for _, target in linked.links if _touch(linked.words[1][target], place)}
    if around == wanted:
        return "in place"
    return "nearly" if around & wanted else "wrong"


def _touch(word: Span, span: Span) -> bool:
    return word[0] < span[1] and word[1] > span[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--help-pages", type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--show", type=int, default=0)
    options = parser.parse_args()
    table = Table(options.runs[0])
    pairs = (demo_text("test") + demo_text("valid"))[: options.lines]
    if options.help_pages is None:
        tags = plant(pairs, table)
    else:
        tags = from_pages(options.help_pages, options.lines)
    names = plant_names(pairs)
    print(f"{len(tags)} sentences with tags, {len(names)} with a placeholder")
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
    counts = Counter(verdict for several in verdicts for verdict in several)
    known = sum(counts[verdict] for verdict in ("in place", "nearly", "wrong"))
    print(f"tags kept: {share(counts.total() - counts['lost'], counts.total())}")
    for verdict in ("in place", "nearly", "wrong"):
        print(f"  {verdict}: {share(counts[verdict], known)}")
    without = [read_tags(translation)[0] for translation in translations]
    print(f"  without them: {bleu(without, [tagged.reference for tagged in tags])}")
    of_plain = translator.translate([tagged.plain for tagged in tags], text_format="document")
    print(f"  the same plain: {bleu(of_plain, [tagged.reference for tagged in tags])}")

    named = translator.translate([name.source for name in names], text_format="document")
    kept = sum(translation.count(NAME) == 1 for translation in named)
    print(f"placeholders kept: {share(kept, len(names))}")
    for place in random.Random(1).sample(range(len(tags)), min(show, len(tags))):
        print(f"\n{verdicts[place]} {tags[place].source}\n  {translations[place]}")


def bleu(translations: list[str], references: list[str]) -> str:
    """The score in words."""
    return f"{sacrebleu.corpus_bleu(translations, [references]).score:.2f} BLEU"


def share(count: int, total: int) -> str:
    """A count with its share of all."""
    return f"{count:,} of {total:,} ({count / max(1, total):.1%})"


if __name__ == "__main__":
    main()
