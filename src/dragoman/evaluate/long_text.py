"""Texts that are longer than a model was trained for, cut where it hurts least."""

from __future__ import annotations

import re

from dragoman.corpus.subword import Subword

_SENTENCE_END = re.compile(r"(?<=[.!?…]) |(?<=[.!?…][\"'»”’)\]]) |(?<=[。！？])")


def cut_into_chunks(text: str, subword: Subword, *, max_pieces: int) -> list[list[int]]:
    """Ids of the parts of a normalised text, each at most `max_pieces` long and none empty.

    Cut between sentences; inside a sentence that is too long between words, inside such a word
    between pieces. Parts of the text that fit together stay together; nothing of it is lost.
    """
    (ids,) = subword.encode([text])
    if len(ids) <= max_pieces:
        return [ids] if ids else []
    chunks: list[list[int]] = [[]]
    for part in _parts(text, subword, max_pieces):
        if len(chunks[-1]) + len(part) > max_pieces:
            chunks.append([])
        chunks[-1] = chunks[-1] + part
    return [chunk for chunk in chunks if chunk]


def _parts(text: str, subword: Subword, max_pieces: int) -> list[list[int]]:
    """Ids of sentences, of words where a sentence is too long, of slices where a word is."""
    parts: list[list[int]] = []
    sentences = _SENTENCE_END.split(text)
    for sentence, sentence_ids in zip(sentences, subword.encode(sentences), strict=True):
        if len(sentence_ids) <= max_pieces:
            parts.append(sentence_ids)
            continue
        for word_ids in subword.encode(sentence.split(" ")):
            parts.extend(
                word_ids[start : start + max_pieces]
                for start in range(0, len(word_ids), max_pieces)
            )
    return parts
