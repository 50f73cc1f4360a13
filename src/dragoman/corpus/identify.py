"""Whether the text of an entry is in the languages that the recipe names.

Both sides of a sample of lines are identified, line by line. A side clearly is in another language
if the lines' mean probability of its own is next to nothing, and that of one other is over a half.
Tables, codes, made-up words and languages that py3langid does not know scatter over many languages,
and a side of two languages has a share of its own: these are not refused. A side that has its own
language is in another one, too, if nearly all lines are in another script than that of its code.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from dragoman.base.errors import CorpusError
from dragoman.base.languages import (
    is_one_script,
    language_name,
    parse_language,
    same_language,
    with_script,
)
from dragoman.corpus.clean import clean_block
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.directions import Direction
from dragoman.corpus.filters import EMPTY
from dragoman.corpus.language import (
    NO_LANGUAGE,
    are_close,
    in_script,
    in_script_of,
    is_known,
    language_probabilities,
    script_of_text,
)
from dragoman.corpus.pairs import BlockReader, TextEntry
from dragoman.corpus.workers import parallel_map

_SIDES: Final = ("source", "target")
_LINES: Final = 200
"""Lines that are identified of each side of an entry; fewer of each if there are many entries."""
_FEWEST_LINES: Final = 20
"""With fewer that have enough letters, nothing is said of an entry."""
_ALL_LINES: Final = 2000
_READ_LINES: Final = 8192
"""The sample is drawn evenly from the first lines of an entry, which a file often sorts."""
_MOST_NAMED: Final = 3
"""Entries whose languages a message names."""
_LONGEST: Final = 1000
"""Characters of a line that are identified: the search for addresses takes the square of them."""
_UNKNOWN: Final = "und"
"""A language of which only the script is clear."""
_LETTER_BYTES: Final = 25
"""Shorter lines are names and labels, which are alike in many languages."""
_OWN_SHARE: Final = 0.1
_OTHER_SHARE: Final = 0.5
"""Labels and messages of an interface, which are harder than sentences, have at least 0.5 of their
own language and those close to it: Django's, in the 80 of its languages that py3langid knows."""
_NOT_TEXT: Final = re.compile(r"<[^>]*>|\{[^}]*\}|\S*(?:://|@|%)\S*")
"""Markup, tags, placeholders, addresses."""


class SeenInText(NamedTuple):
    """The languages of a text in words; remedy: if its script is not the recipe's, else ""."""

    words: str
    remedy: str


class WrongLanguages(NamedTuple):
    """An entry that clearly is in other languages than it should be: the parts of its error."""

    problem: str
    place: str
    remedy: str


def refuse_wrong_languages(
    splits: Mapping[str, Sequence[TextEntry]], config: CorpusConfig, *, workers: int
) -> None:
    """Raise CorpusError as `find_wrong_languages` finds; with several workers in a process of its
    own, because it takes 90 MB to identify a language."""
    find = partial(find_wrong_languages, config=config)
    for found in parallel_map(find, [splits], workers=workers):
        if found is not None:
            raise CorpusError(found.problem, place=found.place, remedy=found.remedy)


def find_wrong_languages(
    splits: Mapping[str, Sequence[TextEntry]], config: CorpusConfig
) -> WrongLanguages | None:
    """The first entry that clearly is in other languages than the recipe says; None if none is.

    splits: the entries by their key, such as "train". An entry that cannot be read is passed over:
    who reads it whole has more to say.
    """
    for split, entries in splits.items():
        num_lines = min(_LINES, max(_FEWEST_LINES, _ALL_LINES // max(1, len(entries))))
        for entry in entries:
            try:
                seen = seen_languages(entry, config, num_lines=num_lines)
            except CorpusError:
                continue
            if seen is None or seen == entry.direction:
                continue
            sides = zip(entry.direction, seen, strict=True)
            source, target = (_named_beside(*side) for side in sides)
            return WrongLanguages(
                f"the source looks like {_named(seen.source)} and the target like "
                f"{_named(seen.target)}, but the recipe says {source} and {target} "
                f"({', '.join(file.name for file in entry.files)})",
                f"corpus.{split}[{entry.number}]",
                _remedy(seen, entry.direction, getattr(config, split)[entry.number]),
            )
    return None


def seen_languages(
    entry: TextEntry, config: CorpusConfig, *, num_lines: int = _LINES
) -> Direction | None:
    """The languages that a sample of an entry seems to have; a side's own if it is not clear.

    None if too few lines have enough letters. Raises CorpusError as `BlockReader`.
    """
    expected = entry.direction
    samples = _samples(entry, config, num_lines)
    if min(map(len, samples)) < _FEWEST_LINES:
        return None
    shares = [_shares(lines) for lines in samples]
    others = [_other(*side) for side in zip(shares, expected, strict=True)]
    found = [_as_written(code, lines) for code, lines in zip(others, samples, strict=True)]
    scripts = [_in_other_script(*side) for side in zip(samples, shares, expected, strict=True)]
    found = [code or other for code, other in zip(found, scripts, strict=True)]
    # A language that cannot be identified is judged if the sides seem to be swapped.
    for side, other in () if are_close(*expected) else ((0, 1), (1, 0)):
        of_other = [_share(expected[other], shares[number]) for number in (side, other)]
        if of_other[0] >= _OTHER_SHARE and of_other[1] < _OWN_SHARE:
            found[side], found[other] = expected[other], found[other] or expected[side]
    return Direction(*(seen or code for seen, code in zip(found, expected, strict=True)))


def languages_seen_in_words(entries: Sequence[TextEntry], config: CorpusConfig) -> SeenInText:
    """The languages of a sample of the first entries, such as "the text seems to be in:
    corpus.train[0] (a.en, a.fr): source en 93%; target fr 95%"."""
    parts, remedies = [], []
    for entry in entries[:_MOST_NAMED]:
        sides = []
        samples = _samples(entry, config, _LINES)
        written = [*entry.direction]
        for side, lines, expected in zip(_SIDES, samples, entry.direction, strict=True):
            shares = _shares(lines, by_script=True)
            top = [*shares.items()][:2]
            if not top:
                continue
            sides.append(f"{side} {', '.join(f'{code} {share:.0%}' for code, share in top)}")
            script = parse_language(top[0][0]).script
            if are_close(top[0][0], expected) and not _is_script_of(script, expected):
                code = written[_SIDES.index(side)] = in_script(expected, script)
                remedies.append(f'write {side}_language = "{code}", for {language_name(code)}')
        if written != [*entry.direction] and _names_its_languages(config.train[entry.number]):
            remedies[-1] = (
                "leave out corpus.filters.max_language_log_odds, because the file itself calls its "
                "languages so, and name the right ones when you export the model: "
                f"languages {Direction(*written)}"
            )
        files = ", ".join(file.name for file in entry.files)
        parts.append(f"corpus.train[{entry.number}] ({files}): {'; '.join(sides)}")
    remedy = f"{' and '.join(dict.fromkeys(remedies))}, or convert the text" if remedies else ""
    return SeenInText(f"the text seems to be in: {'. '.join(parts)}", remedy)


def _samples(entry: TextEntry, config: CorpusConfig, num_lines: int) -> list[list[str]]:
    """Lines with enough letters of each side of an entry, evenly from its beginning."""
    block = next(iter(BlockReader([replace(entry, tag="")], block_lines=_READ_LINES)))
    cleaned = clean_block(block, config, filters=(EMPTY,))
    pairs = zip(cleaned.sources, cleaned.targets, strict=True)
    differing = [pair for pair in pairs if pair[0] != pair[1]]  # people add copies on purpose
    samples = []
    for side in (0, 1):
        texts = [_NOT_TEXT.sub(" ", pair[side][:_LONGEST]) for pair in differing]
        fitting = [text for text in texts if _letter_bytes(text) >= _LETTER_BYTES]
        samples.append(fitting[:: max(1, len(fitting) // num_lines)][:num_lines])
    return samples


def _letter_bytes(text: str) -> int:
    return len("".join(filter(str.isalpha, text)).encode())


def _shares(lines: Sequence[str], *, by_script: bool = False) -> dict[str, float]:
    """The mean probability of each language, the likeliest first.

    by_script: a language in its two scripts is two languages.
    """
    shares = defaultdict[str, float](float)
    for line in lines:
        for label, probability in language_probabilities(line).items():
            code = in_script_of(label, line) if by_script else label
            shares[code] += float(probability) / len(lines)
    shares.pop(NO_LANGUAGE, None)
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def _share(code: str, shares: Mapping[str, float]) -> float:
    """The share of a language and of those that are close to it."""
    return sum(share for one, share in shares.items() if are_close(one, code))


def _other(shares: Mapping[str, float], expected: str) -> str:
    """The language that lines clearly have and should not; "" if it is their own or not clear."""
    if not is_known(expected) or _share(expected, shares) >= _OWN_SHARE:
        return ""
    code = next(iter(shares))
    return code if _share(code, shares) >= _OTHER_SHARE else ""


def _as_written(code: str, lines: Sequence[str]) -> str:
    """A code as it is, or with the script that most lines have if it is not the likely one."""
    if not code:
        return ""
    ((script, _),) = Counter(script_of_text(code, line) for line in lines).most_common(1)
    return code if _is_script_of(script, code) else in_script(code, script)


def _in_other_script(lines: Sequence[str], shares: Mapping[str, float], expected: str) -> str:
    """The language in the script that lines clearly have, if its code is for another one; "" if it
    is not."""
    scripts = Counter(script_of_text(expected, line) for line in lines)
    script, count = scripts.most_common(1)[0]
    num_own = sum(scripts[one] for one in scripts if one and _is_script_of(one, expected))
    if not script or num_own >= _OWN_SHARE * len(lines) or count < _OTHER_SHARE * len(lines):
        return ""
    if _share(expected, shares) >= (_OTHER_SHARE if script == "Latn" else _OWN_SHARE):
        return in_script(expected, script)
    # Codes are in Latin letters, whatever the language.
    are_words = sum(map(_has_words, lines)) >= _OTHER_SHARE * len(lines)
    # CLDR has one script of a language. py3langid's languages are in it, others may be in several.
    is_sure = script == "Latn" and are_words and is_known(expected)
    return f"{_UNKNOWN}-{script}" if is_sure else ""


def _has_words(line: str) -> bool:
    """Whether most of a line are words of a text: several, in letters alone."""
    words = line.split()
    return len(words) > 2 and 2 * sum(map(str.isalpha, words)) > len(words)


def _is_script_of(script: str, code: str) -> bool:
    """Whether a script, if it is known, is that of a code, stated or likely."""
    return is_one_script(script, parse_language(code).script)


def _remedy(seen: Direction, expected: Direction, files: TextFiles) -> str:
    insist = "set corpus.check_languages = false"
    if any(code.startswith(_UNKNOWN) for code in seen):
        return f"name the language that the text is in; if it is right as it is, {insist}"
    if _names_its_languages(files):
        return (
            f"the file itself has these languages, so {insist}, and name the right ones when you "
            f"export the model: languages {seen}; or leave the entry out"
        )
    if same_language(seen.source, expected.target) and same_language(seen.target, expected.source):
        how = "swap source and target, or source_language and target_language"
    else:
        how = f'write source_language = "{seen.source}" and target_language = "{seen.target}"'
    return f"{how}; if the text is right as it is, {insist}"


def _names_its_languages(files: TextFiles) -> bool:
    """Whether the text is found by codes that the file itself has."""
    return bool(files.tmx or files.moses or files.mtdata or files.hf)


def _is_one_language(code: str, other: str) -> bool:
    """Whether two codes name one language, in any script."""
    return parse_language(code).language == parse_language(other).language


def _named_beside(code: str, seen: str) -> str:
    """The name of a code, with its script if another script of the language was seen."""
    if _is_one_language(code, seen) and not same_language(code, seen):
        return f"{language_name(with_script(code))} ({code})"
    return _named(code)


def _named(code: str) -> str:
    return f"{language_name(code)} ({code})"
