"""Makes the demo's text: short plain sentences of LibreOffice's help, English and German.

    python tools/make_demo_sample.py FOLDER

FOLDER holds train.en.xz, train.de.xz and train.src.xz of the mixed corpus, whose part
doc-libreoffice-help was taken from the help pages of the Debian packages libreoffice-help-en-us and
libreoffice-help-de. The same input gives the same bytes.

Whole sentences of few words are learned soonest, so only these are kept; a test sentence is new to
the model on both sides: neither occurs in train or valid, capitals, spaces and signs aside.
"""

from __future__ import annotations

import argparse
import collections
import lzma
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = "doc-libreoffice-help"
SAMPLE = Path(__file__).parents[1] / "src" / "dragoman" / "recipe" / "shipped" / "demo"
WORDS = range(3, 21)
LENGTH_RATIO = (0.6, 2.2)
HELD_OUT = {"test": 500, "valid": 500}
SEED = 1

PLAIN_SENTENCE = re.compile(r"[A-ZÄÖÜ\"“„'(][\w\säöüß,.;:'’\"“”„()/%+\[\]–-]*[.?!]")
CODE = re.compile(r"[A-Z]{2,}\d*\(|;.*;|\w\.[A-Za-z_]")
# Extraction joined the words of two systems' menus: "PreferencesTools", "FolieSeite".
JOINED = re.compile(r"[a-zäöüß][A-ZÄÖÜ]")
REAL_NAMES = re.compile(r"LibreOffice|OpenDocument|JavaScript|MySQL|PostgreSQL|MediaWiki|BeanShell")

Pair = tuple[str, str]


def main() -> None:
    """Read the corpus, write train.tsv.xz, valid.tsv and test.tsv."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("corpus", type=Path, help="folder of the mixed corpus")
    folder = parser.parse_args().corpus
    reasons: collections.Counter[str] = collections.Counter()
    pairs = [pair for pair in read_pairs(folder) if not count(reasons, fault(*pair))]
    splits = split(sorted(set(pairs)))
    SAMPLE.mkdir(parents=True, exist_ok=True)
    for name, chosen in splits.items():
        write(name, chosen)
        print(f"{name:6} {len(chosen):6} pairs")
    for reason, number in reasons.most_common():
        print(f"dropped {number:6}: {reason}")


def read_pairs(folder: Path) -> Iterator[Pair]:
    """The pairs of the one source that we use."""
    sides = (read_lines(folder / f"train.{name}.xz") for name in ("en", "de", "src"))
    for english, german, source in zip(*sides, strict=True):
        if source == SOURCE:
            yield english, german


def read_lines(path: Path) -> Iterator[str]:
    """Lines without their ends."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def fault(english: str, german: str) -> str:
    """Why a pair is no good for the demo; "" for one that is."""
    both = f"{english} {german}"
    if len(english.split()) not in WORDS:
        return "too short or too long"
    if not (PLAIN_SENTENCE.fullmatch(english) and PLAIN_SENTENCE.fullmatch(german)):
        return "not a plain sentence"
    if english[-1] != german[-1] or numbers(english) != numbers(german):
        return "numbers or final signs differ"
    if JOINED.search(REAL_NAMES.sub("", both)) or CODE.search(both):
        return "code or joined words"
    if not LENGTH_RATIO[0] <= len(german) / len(english) <= LENGTH_RATIO[1]:
        return "very different lengths"
    return ""


def numbers(text: str) -> list[str]:
    """The numbers in a text, in order of size as text."""
    return sorted(re.findall(r"\d+", text))


def count(reasons: collections.Counter[str], reason: str) -> bool:
    """Count a reason, and say whether there was one."""
    reasons.update([reason] if reason else [])
    return bool(reason)


def split(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Shuffled splits; no side of a held-out pair is a side of any pair of another split."""
    random.Random(SEED).shuffle(pairs)  # noqa: S311  (a draw of lots, not a secret)
    splits: dict[str, list[Pair]] = {}
    rest = pairs
    for name, number in HELD_OUT.items():
        splits[name] = rest[:number]
        taken = set(keys(splits[name]))
        rest = [pair for pair in rest[number:] if taken.isdisjoint(keys([pair]))]
    return {"train": rest, **splits}


def keys(pairs: Iterable[Pair]) -> Iterator[str]:
    """The letters and digits of each side: sides with the same ones are the same sentence."""
    for pair in pairs:
        for side in pair:
            yield "".join(filter(str.isalnum, side.casefold()))


def write(name: str, pairs: list[Pair]) -> None:
    """A split as tab-separated columns: the large one packed, the others to be looked at."""
    text = "".join(f"{english}\t{german}\n" for english, german in pairs).encode()
    if name == "train":
        packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
        (SAMPLE / f"{name}.tsv.xz").write_bytes(packed)
    else:
        (SAMPLE / f"{name}.tsv").write_bytes(text)


if __name__ == "__main__":
    main()
