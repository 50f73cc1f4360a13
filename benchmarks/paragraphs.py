"""Whether a model translates paragraphs as well as sentence by sentence, and words more alike.

    apt-get download libreoffice-help-en-us libreoffice-help-de   # unpack both: dpkg-deb -x
    benchmarks/paragraphs.py usr/share/libreoffice/help FOLDER [--show 10] [--runs RUN OTHER]

The demo's text is shuffled; the pages that it comes from are not. The test set is 100 paragraphs of
four neighbouring sentences that stand on no other page, of every tenth page; a further twentieth of
the pages is the dev text. Two models of the demo's size are trained with equal steps on the other
pages, one with `corpus.context.sentences = 4` and one without. FOLDER has their runs; if it is
interrupted, the same command resumes it. `--runs` names two finished ones, the one without context
first. Prints for the model without sentence by sentence, and for
the other one sentence by sentence and by paragraphs:

- chrF (sacreBLEU, a paragraph as a segment), and between the two ways of the second model the
  p-value of sacreBLEU's paired bootstrap
- sentences omitted and added, by `dragoman.score_documents`
- terms translated alike. A term is a word of the source of four letters or more, not one of the 100
  commonest of the training text, that stands in two sentences or more of a paragraph, and that the
  lexical table of the training text links to a word of the translation in at least two of them. It
  is translated alike if these words are forms of one: the same beginning, about the same length
- paragraphs whose translation had all sentences at once; others are translated one by one
"""

from __future__ import annotations

import argparse
import html
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import dragoman
from dragoman.corpus.links import WORD
from dragoman.evaluation.paired import compare_translations
from dragoman.evaluation.sentences import split_sentences
from dragoman.inference.terms import has_term
from dragoman.inference.translator import open_translator
from results import this_commit, this_machine
from tags import Table, share

BLOCK = re.compile(r'<(?:p|h\d) id="((?:par|hd)_id[^"]*)"[^>]*>(.*?)</(?:p|h\d)>', re.DOTALL)
SENTENCES = 4
PARAGRAPHS = 100
COMMONEST = 100
LEAST_LETTERS = 4
RECIPE = """# The demo's model and steps, on whole pages of help.
[corpus]
source_language = "en"
target_language = "de"
train = [{{source = "train.en", target = "train.de"}}]
valid = [{{source = "valid.en", target = "valid.de"}}]
max_pieces = 160

[corpus.context]
sentences = {sentences}

[corpus.subword]
vocab_size = 4000

[data]
batch_tokens = 2048

[model]
d_model = 192
num_heads = 4
d_ffn = 768
encoder_layers = 3
decoder_layers = 2

[schedule]
kind = "linear"
peak_learning_rate = 3e-3
warmup_steps = 200

[optimizer]
clip_norm = 1.0

[train]
max_steps = 1900
log_every_steps = 50
validate_every_steps = 450
validate_at_start = false

[checkpoint]
every_steps = 450

[evaluate]
bleu_pairs = 100
"""
Pair = tuple[str, str]


def blocks(page: Path) -> list[Pair]:
    """The id and the text of each paragraph of a page."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    texts = ((name, html.unescape(re.sub("<[^>]*>", "", text))) for name, text in found)
    return [(name, " ".join(text.split())) for name, text in texts]


def stretches(folder: Path, page: Path) -> Iterator[list[Pair]]:
    """The sentences of a page that follow each other in both languages."""
    sides = [blocks(folder / language / page) for language in ("en-US", "de")]
    if [name for name, _ in sides[0]] != [name for name, _ in sides[1]]:
        return
    run: list[Pair] = []
    for (_, english), (_, german) in zip(*sides, strict=True):
        cut = [[one for one, _ in split_sentences(text)] for text in (english, german)]
        if len(cut[0]) == len(cut[1]) and english != german:
            run += zip(*cut, strict=True)
        elif run:
            yield run
            run = []
    if run:
        yield run


def write_text(help_pages: Path, folder: Path) -> None:
    """Write training text whose documents end with an empty line, a dev set, and paragraphs."""
    english = help_pages / "en-US"
    pages = sorted(path.relative_to(english) for path in english.rglob("*.html"))
    pages = [page for page in pages if (help_pages / "de" / page).exists()]
    splits: dict[str, list[list[Pair]]] = {"train": [], "valid": [], "test": []}
    for page in pages:
        draw = crc32(str(page).encode()) % 20
        split = "test" if draw < 2 else "valid" if draw == 2 else "train"
        splits[split] += stretches(help_pages, page)
    counts = Counter(
        side for runs in splits.values() for run in runs for pair in run for side in pair
    )

    def is_new(pair: Pair) -> bool:
        return all(counts[side] == 1 for side in pair)

    whole = [
        run[start : start + SENTENCES]
        for run in splits["test"]
        for start in range(0, len(run) - SENTENCES + 1, SENTENCES)
    ]
    new = [paragraph for paragraph in whole if all(map(is_new, paragraph))]
    step = len(new) / PARAGRAPHS
    splits["test"] = [new[int(number * step)] for number in range(PARAGRAPHS)]
    splits["valid"] = [[pair] for run in splits["valid"] for pair in run if is_new(pair)]
    folder.mkdir(parents=True, exist_ok=True)
    for split, runs in splits.items():
        between = "" if split == "valid" else "\n"
        for side, language in enumerate(("en", "de")):
            text = between.join("".join(f"{pair[side]}\n" for pair in run) for run in runs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    for sentences in (1, SENTENCES):
        (folder / f"context-{sentences}.toml").write_text(RECIPE.format(sentences=sentences))


def lines_of(folder: Path, split: str) -> list[Pair]:
    """The pairs of a split, with an empty one between paragraphs."""
    sides = [
        (folder / f"{split}.{language}").read_text(encoding="utf-8").split("\n")[:-1]
        for language in ("en", "de")
    ]
    return [*zip(*sides, strict=True)]


def paragraphs_of(lines: Sequence[str]) -> list[list[str]]:
    """Lines cut at the empty ones."""
    text = "\n".join(lines)
    return [paragraph.split("\n") for paragraph in text.split("\n\n")]


def trained(folder: Path, sentences: int) -> Path:
    """The run with this context, which is trained if it is not finished."""
    recipe = f"context-{sentences}"
    command = [sys.executable, "-m", "dragoman", "train", f"{recipe}.toml", "--ranks", "1"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return max((folder / "runs").glob(f"{recipe}-*"))


def num_whole(run: Path, sources: Sequence[str]) -> tuple[int, int]:
    """How many of the paragraphs are translated at once, and of how many."""
    with open_translator(
        run, checkpoints=["best"], overrides=(), engine="auto", threads=None
    ) as opened:
        encoded = opened.with_context().translator.encode(sources, "line")
        rows = [paragraph.row for paragraph in encoded.paragraphs]
        apart = encoded.apart(opened.translator.engine.submit(rows, opened.recipe.search)())
    several = [one for one in encoded.paragraphs if len(one.sentences) > 1]
    return sum(bool(apart[one.sentences[0]]) for one in several), len(several)


class Terms:
    """Finds the words of paragraphs that occur in several sentences, and their translations."""

    def __init__(self, run: Path, training: list[Pair]) -> None:
        self._table = Table(run, training)
        counts = Counter(word for source, _ in training for word in words_of(source))
        self._common = {word for word, _ in counts.most_common(COMMONEST)}

    def translations(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[str]]:
        """For each such word, what translates it in each sentence where this is known."""
        found: dict[str, list[str]] = {}
        for source, target in zip(sources, targets, strict=True):
            linked = self._table.linked(source, target)
            known = dict(linked.links)
            for word in {*words_of(source)}:
                place = next(
                    number
                    for number, (start, end) in enumerate(linked.words[0])
                    if source[start:end].casefold() == word
                )
                if place in known:
                    start, end = linked.words[1][known[place]]
                    found.setdefault(word, []).append(target[start:end])
        return [
            several
            for word, several in found.items()
            if len(several) > 1 and len(word) >= LEAST_LETTERS and word not in self._common
        ]


def words_of(text: str) -> list[str]:
    """The words of a text, without case."""
    return [word.casefold() for word in WORD.findall(text)]


def are_alike(words: Sequence[str]) -> bool:
    """Whether words are forms of one."""
    return all(has_term(word, words[0]) or has_term(words[0], word) for word in words[1:])


def report(
    name: str, sources: Sequence[str], lines: Sequence[str], references: Sequence[str], terms: Terms
) -> None:
    """Print the figures of one way of translating."""
    source, target, reference = map(paragraphs_of, (sources, lines, references))
    scores = dragoman.score_documents(
        ["\n".join(one) for one in target], ["\n".join(one) for one in reference]
    )
    found = [
        words for pair in zip(source, target, strict=True) for words in terms.translations(*pair)
    ]
    alike = sum(map(are_alike, found))
    print(f"{name}: chrF {scores.chrf.value:.2f}")
    print(f"  omitted {scores.omitted}, added {scores.added} of {scores.sentences} sentences")
    print(f"  terms translated alike: {share(alike, len(found))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("help", type=Path, metavar="HELP")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", nargs=2, type=Path, metavar="RUN")
    parser.add_argument("--show", type=int, default=0, help="paragraphs that are printed")
    options = parser.parse_args()
    folder = options.folder
    if not (folder / "test.de").exists():
        write_text(options.help, folder)
    alone, joined = options.runs or [trained(folder, sentences) for sentences in (1, SENTENCES)]
    print(", ".join((*this_machine(), this_commit(), datetime.now(UTC).date().isoformat())))
    sources, references = ([*side] for side in zip(*lines_of(folder, "test"), strict=True))
    terms = Terms(alone, [pair for pair in lines_of(folder, "train") if all(pair)])
    with dragoman.Translator(alone) as translator:
        first = translator.translate(sources)
    with dragoman.Translator(joined) as translator:
        second = translator.translate(sources)
        third = translator.translate(sources, context="paragraph")
    ways = {
        "without context, sentence by sentence": first,
        "with context, sentence by sentence": second,
        "with context, by paragraphs": third,
        "the references": references,
    }
    for name, lines in ways.items():
        report(name, sources, lines, references, terms)
    whole = [
        ["\n".join(one) for one in paragraphs_of(lines)]
        for lines in (second, third, references, sources)
    ]
    paired = compare_translations(*whole[:3], sources=whole[3], language="de").scores["chrf"]
    difference = f"{paired.difference:+.2f} chrF, p {paired.p_bootstrap:.3f}"
    print(f"by paragraphs less sentence by sentence: {difference}")
    print(
        "at once, with all sentences: {:,} of {:,} paragraphs".format(*num_whole(joined, sources))
    )
    for place in random.Random(1).sample(range(len(whole[0])), options.show):
        print("", *(lines[place] for lines in (whole[3], *whole[:3])), sep="\n\n")


if __name__ == "__main__":
    main()
