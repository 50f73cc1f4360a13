"""Where a sentence of running text ends. Nothing is lost: the parts put together are the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Each run of marks or spaces is looked at once, from its start: hostile text stays linear.
_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'»”’)\]]*+\s++   # marks, what closes with them, and space
      | [。！？]++[」』”’）]*+\s*+               # marks that no space follows
      | (?<![^\S\n])[^\S\n]*+\n\s*+            # a line ends what stands on it
    """,
    re.VERBOSE,
)
_ABBREVIATION = re.compile(
    r"""(?:^|[\s(\["'„“«])(?:
        [^\W\d_]                                        # an initial: J. S. Bach
      | (?:[^\W\d_]\.\s?)+[^\W\d_]                        # z. B., e.g., U.S.
      | \d{1,3}                                         # an ordinal: am 3. Mai
      | Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|cf|Fig|No|Vol|pp|approx|dept|est
      | bzw|ca|Nr|Abb|Hr|Fr|Str|Bd|Mio|Mrd|usw|vgl|evtl|ggf|inkl|sog|Tel
      | env|av|chap|éd|fig|Mme|Mlle|M
    )\.$""",
    re.VERBOSE,
)
_SHORTEST_CONTEXT = 20


def split_sentences(text: str) -> Iterator[tuple[str, str]]:
    """(sentence, the space after it) of a text, in order; a sentence may be empty at the start."""
    start = 0
    for match in _END.finditer(text):
        sentence_end = match.end() - (len(match[0]) - len(match[0].rstrip()))
        if match[0].strip() and not _ends(text, start, match):
            continue
        yield text[start:sentence_end], text[sentence_end : match.end()]
        start = match.end()
    if start < len(text):
        rest = text[start:]
        kept = rest.rstrip()
        yield kept, rest[len(kept) :]


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether this mark ends a sentence: not after an abbreviation, not before a small letter."""
    if not match[0].startswith("."):
        return True
    following = text[match.end() : match.end() + 1]
    if following.islower():
        return False
    if "\n" in match[0]:
        return True
    mark = match.start() + 1
    context = text[max(start, mark - _SHORTEST_CONTEXT) : mark]
    return match[0].rstrip() != "." or _ABBREVIATION.search(context) is None
