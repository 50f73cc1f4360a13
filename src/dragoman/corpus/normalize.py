"""One spelling for one character, so that filters, hashes and subwords see the same text.

Byte order marks and carriage returns go, every kind of space becomes one plain space, ends are
stripped, and the text is in Unicode NFC. Nothing that a reader could see is changed.
"""

from __future__ import annotations

import unicodedata

_BYTE_ORDER_MARK = "\ufeff"
_ASCII_SPACES = "\t\r"
UNICODE_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u200b\u2028\u2029\u202f\u205f\u3000"
    "\u2581"  # how SentencePiece writes a space: it would come back as one
)


def normalize(text: str, *, lowercase: bool = False) -> str:
    """The normalised form of text of any number of lines; the number of lines stays.

    Only the newline separates lines. Control characters stay, for a filter to judge.
    """
    if lowercase:
        text = text.lower()
    spaces = _ASCII_SPACES
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).replace(_BYTE_ORDER_MARK, "")
        spaces += UNICODE_SPACES
    for space in spaces:
        text = text.replace(space, " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.replace(" \n", "\n").replace("\n ", "\n").strip(" ")
