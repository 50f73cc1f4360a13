"""Real parallel text that every clone has: the demo's sample of the LibreOffice help."""

from __future__ import annotations

import lzma
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

Language = Literal["en", "de"]
Split = Literal["train", "valid", "test"]


@cache
def real_lines(split: Split, language: Language) -> list[str]:
    """The sentences of one side: 21,249 of train, 500 each of valid and test."""
    sample = files("dragoman") / "recipe" / "shipped" / "demo"
    if split == "train":
        text = lzma.decompress((sample / "train.tsv.xz").read_bytes()).decode()
    else:
        text = (sample / f"{split}.tsv").read_text("utf-8")
    column = ("en", "de").index(language)
    return [line.split("\t")[column] for line in text.splitlines()]


def write_real_text(folder: Path, split: Split, count: int | None = None) -> None:
    """Write `<split>.en` and `<split>.de`, whole or their first `count` pairs."""
    languages: tuple[Language, Language] = ("en", "de")
    for language in languages:
        lines = real_lines(split, language)[:count]
        (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", "utf-8")
