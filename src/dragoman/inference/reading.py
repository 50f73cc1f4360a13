"""The sentences of documents, for aligning them: of text, HTML, Markdown, Word, subtitles, gettext.

A catalogue gives the translations of its messages, or the messages themselves if none is
translated. Messages of two catalogues belong together by their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.base.errors import CorpusError
from dragoman.base.files import read_regular
from dragoman.base.line_files import not_utf8
from dragoman.corpus.normalize import normalize
from dragoman.corpus.stand_ins import PLACEHOLDERS
from dragoman.evaluation.sentences import is_small
from dragoman.inference.catalogue import Catalogue
from dragoman.inference.documents import format_of_file, read_document
from dragoman.inference.text import cut, on_one_line

_LARGEST_BYTES: Final = 64 << 20
_KEPT: Final = frozenset(PLACEHOLDERS)
_LONGEST: Final = 2000
"""Characters of a sentence; a longer one is no text for people."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of a document. keys: those of a catalogue's messages, one for each sentence."""

    texts: Sequence[str]
    keys: Sequence[tuple[str, str]] | None = None


def read_sentences(path: Path, *, place: str, lines: bool = False) -> Sentences:
    """The sentences of a file, normalised. place: its name. lines: in text each line is one.

    Raises: CorpusError or ConfigError if it cannot be read, and MachineError if the package for its
    format is not installed.
    """
    try:
        content = read_regular(path, limit=_LARGEST_BYTES)
        document_format = format_of_file(path)
        if document_format is not None:
            document = read_document(content, document_format, place=place)
            if isinstance(document, Catalogue):
                return _messages(document)
            texts, text_format = document.texts(), document.text_format
            if document_format in ("srt", "vtt"):
                texts = [*_joined(texts)]
        else:
            texts = content.decode("utf-8-sig").splitlines()
            text_format = "line" if lines else "document"
    except OSError as error:
        raise CorpusError(f"cannot be read: {error.strerror}", place=place) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise not_utf8(place, line=line, head=content[:8]) from error
    parts = (
        normalize(on_one_line(part.seen()))
        for text in texts
        for part in cut(text, text_format, stand_ins=_KEPT)
        if part.translated
    )
    return Sentences([sentence for sentence in parts if 0 < len(sentence) <= _LONGEST])


def _joined(cues: Sequence[str]) -> Iterator[str]:
    """The texts of cues; one that begins with a small letter goes on with the one before."""
    text = ""
    for cue in cues:
        if text and is_small(cue[:1]):
            text += f" {cue}"
        else:
            yield text
            text = cue
    yield text


def _messages(document: Catalogue) -> Sentences:
    """The messages that count: neither obsolete nor fuzzy."""
    entries = [one for one in document.catalogue if not (one.obsolete or one.fuzzy)]
    is_translated = any(one.msgstr for one in entries)
    said = {
        (one.msgctxt or "", one.msgid): normalize(one.msgstr if is_translated else one.msgid)
        for one in entries
        if not one.msgid_plural
    }
    kept = {key: " ".join(text.split()) for key, text in said.items() if 0 < len(text) <= _LONGEST}
    return Sentences([*kept.values()], [*kept])
