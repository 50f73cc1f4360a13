"""Text from outside, made safe for a terminal: nothing in it can steer the terminal.

Such text is a host's name, its messages, or a file that came from it. An escape sequence there
could clear the screen, set the title, hide the text after it, or write to the clipboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

INSTEAD: Final = "\N{REPLACEMENT CHARACTER}"
# Control characters (C0, DEL, C1), line separators, the marks that turn the direction of what
# follows, and halves of surrogate pairs. Joiners stay: Persian and emoji are written with them.
_STEERING: Final = "\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
# Patterns are compiled when they are first used: `dragoman --help` uses none.
_IN_LINE: Final = f"[{_STEERING}]"
_IN_TEXT: Final = f"(?![\n\t])[{_STEERING}]"


def printable_line(text: str) -> str:
    """The text as one line: each character that would steer a terminal is shown as U+FFFD."""
    return re.sub(_IN_LINE, INSTEAD, text)


def printable(text: str) -> str:
    """As `printable_line`, but line breaks and tabs stay."""
    return re.sub(_IN_TEXT, INSTEAD, text)


def clipped(text: str, longest: int) -> str:
    """The text, or its first characters and an ellipsis if it is longer."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def first_of(texts: Iterable[str], most: int = 3, between: str = ", ") -> str:
    """The first of some texts, and how many more there are."""
    known = list(texts)
    more = len(known) - most
    return between.join(known[:most]) + (f" and {more} more" if more > 0 else "")
