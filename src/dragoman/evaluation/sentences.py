"""Splits text into sentences, and long texts into parts. No text is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dragoman.corpus.vocabulary import Vocabulary

# Each run of marks or spaces is read once, from its start, so hostile text takes linear time.
_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'»”’)\]]*+\s++   # marks, what closes with them, and space
      | [。！？]++[」』”’）]*+\s*+               # marks that no space follows
      | (?<![^\S\n])[^\S\n]*+\n\s*+            # a line ends what stands on it
    """,
    re.VERBOSE,
)
ABBREVIATIONS: Final = (
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "Sr", "vs", "etc", "cf", "Fig", "No", "Vol", "pp",
    "approx", "dept", "est",
    "bzw", "ca", "Nr", "Abb", "Hr", "Fr", "Str", "Bd", "Mio", "Mrd", "usw", "vgl", "evtl", "ggf",
    "inkl", "sog", "Tel",
    "env", "av", "chap", "éd", "fig", "Mme", "Mlle",
)  # fmt: skip
"""Words that end in a full stop within a sentence."""
_ABBREVIATION = re.compile(
    rf"""(?:^|[\s(\["'„“«])(?:
        [^\W\d_]                                        # an initial: J. S. Bach
      | (?:[^\W\d_]\.\s?)+[^\W\d_]                        # z. B., e.g., U.S.
      | \d{{1,3}}                                       # an ordinal: am 3. Mai
      | {"|".join(ABBREVIATIONS)}
    )\.$""",
    re.VERBOSE,
)
_LONGEST_ABBREVIATION = 20


def split_sentences(text: str) -> Iterator[tuple[str, str]]:
    """(sentence, the space after it), in order; a sentence may be empty at the start."""
    start = 0
    for match in _END.finditer(text):
        sentence_end = match.end() - (len(match[0]) - len(match[0].rstrip()))
        if match[0].strip() and not _ends_sentence(text, start, match):
            continue
        yield text[start:sentence_end], text[sentence_end : match.end()]
        start = match.end()
    if start < len(text):
        rest = text[start:]
        kept = rest.rstrip()
        yield kept, rest[len(kept) :]


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether this match ends a sentence; all do except full stops inside a line after an
    abbreviation or before a lower-case letter."""
    if not match[0].startswith(".") or "\n" in match[0]:
        return True
    if text[match.end() : match.end() + 1].islower():
        return False
    mark = match.start() + 1
    before = text[max(start, mark - _LONGEST_ABBREVIATION) : mark]
    return match[0].rstrip() != "." or _ABBREVIATION.search(before) is None


def cut_into_chunks(text: str, subword: Vocabulary, *, max_pieces: int) -> list[list[int]]:
    """Ids of the parts of a normalised text, each at most `max_pieces` long and none empty.

    The text is cut between sentences, a sentence that is too long between words, and a word that is
    too long between pieces. Parts that fit together stay together. Each part has the whole text's
    prefix.
    """
    prefix, text = subword.prefix(text)
    max_pieces = max(1, max_pieces - len(prefix))
    (ids,) = subword.encode_plain([text])
    if len(ids) <= max_pieces:
        return [prefix + ids] if ids else []
    chunks: list[list[int]] = [[]]
    sentences = [sentence for sentence, _ in split_sentences(text)]
    for sentence, sentence_ids in zip(sentences, subword.encode_plain(sentences), strict=True):
        parts = [sentence_ids]
        if len(sentence_ids) > max_pieces:
            parts = [
                word_ids[start : start + max_pieces]
                for word_ids in subword.encode_plain(sentence.split(" "))
                for start in range(0, len(word_ids), max_pieces)
            ]
        for part in parts:
            if len(chunks[-1]) + len(part) > max_pieces:
                chunks.append([])
            chunks[-1] += part
    return [prefix + chunk for chunk in chunks if chunk]
