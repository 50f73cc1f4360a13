"""Small parallel text, different for every seed, for tests of the corpus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles

_SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "tü", "wo")


def sentences(count: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """Made-up source and target sentences; a target says its source word by word, backwards."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices(_SYLLABLES, k=chosen.randint(1, 4))) for _ in range(400)]
    sources = [chosen.choices(words, k=chosen.randint(3, 12)) for _ in range(count)]
    targets = [[word[::-1] for word in source] for source in sources]
    return [" ".join(source) for source in sources], [" ".join(target) for target in targets]


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write lines, a newline after each."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def write_pairs(folder: Path, name: str, pairs: tuple[list[str], list[str]]) -> TextFiles:
    """Write `<name>.en` and `<name>.de`."""
    for language, lines in zip(("en", "de"), pairs, strict=True):
        write_lines(folder / f"{name}.{language}", lines)
    return TextFiles(source=f"{name}.en", target=f"{name}.de")


def small_corpus(folder: Path, **changes: object) -> CorpusConfig:
    """A corpus section that is prepared at once; its 600 training pairs are written here."""
    if "train" not in changes:
        changes["train"] = (write_pairs(folder, "train", sentences(600)),)
    settings: dict[str, object] = {
        "folder": str(folder),
        "source_language": "en",
        "target_language": "de",
        "valid_pairs": 10,
        "test_pairs": 10,
        "subword": SubwordConfig(vocab_size=120),
    }
    return CorpusConfig.model_validate(settings | changes)
