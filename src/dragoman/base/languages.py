"""One table of language codes, for recipes, corpora, detection, scores, imports and the server.

Programs name a language in many ways: `no`, `nb`, `nor`, `nob_Latn`, `nb-NO`. Here each code is
read as a BCP 47 tag with the aliases and likely scripts of Unicode's CLDR, through langcodes. A
script makes another language (`sr-Latn`, `sr-Cyrl`), a region does not (`pt-BR`, `pt-PT`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dragoman.base.errors import ConfigError

LONGEST_CODE: Final = 35
"""Characters of a code that are read; RFC 5646 advises room for 35."""
_CACHED: Final = 10_000
_LOCALE: Final = re.compile(r"([^.@]*)(?:\.[^@]*)?(?:@(.*))?")
"""A name of a POSIX locale: de_DE.UTF-8, sr_RS@latin."""
_MODIFIERS: Final = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "iqtelif": "Latn"}
"""The modifiers of locales that name a script."""
_OF_NLLB: Final = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
_NO_REGION: Final = re.compile(r"[-_]XX$")
"""How mBART writes that a language has no region: en_XX."""
_OF_PROGRAMS: Final = {"pb": "pt-BR", "zt": "zh-Hant", "ns": "nso"}
"""Codes of Argos Translate and M2M100 that are in no standard."""
_OLD_CODES: Final = {"zh-chs": "zh-Hans", "zh-cht": "zh-Hant", "es-es-tradnl": "es-ES"}
"""Codes of older programs, such as translation memories have."""
_ALSO: Final = {"nb": "no", "fil": "tl", "pbt": "ps", "quy": "qu", "knc": "kr", "dik": "din"}
"""Codes that programs use for one language, but CLDR keeps apart or does not know as one."""
_SCRIPTS: Final = {"crh": "Latn", "grc": "Grek", "hbo": "Hebr", "azb": "Arab", "ksw": "Mymr"}
"""Usual scripts of languages for which CLDR has none, or another one than texts."""
_USUAL_REGIONS: Final = frozenset(
    ("pt-BR", "pt-PT", "zh-CN", "zh-HK", "zh-TW", "en-GB", "en-US", "es-419", "es-MX", "de-AT")
)
"""Their regions are not codes of languages that corpora have, so that no pair hides in them."""
_PARTS: Final = {
    "Hani": {"Hans", "Hant"},
    "Hrkt": {"Hira", "Kana"},
    "Jpan": {"Hani", "Hira", "Hrkt", "Kana"},
    "Kore": {"Hang", "Hani"},
}
"""Scripts of ISO 15924 that are made of others."""


@dataclass(frozen=True, slots=True)
class Language:
    """A language code, read.

    language: the shortest ISO 639 code, for a member of a macrolanguage that of the macrolanguage
    (`arb` -> `ar`, `nob` -> `no`). script: ISO 15924, the stated or else the likely one; "" if
    unknown. region: ISO 3166-1 as stated, or "". tag: the BCP 47 tag, such as `pt-BR` for `por_BR`.
    """

    language: str
    script: str
    region: str
    tag: str


def parse_language(code: str, *, place: str = "") -> Language:
    """The language of a code; raises ConfigError with the nearest code if it names none.

    Reads ISO 639-1, -2 and -3, BCP 47, NLLB's `eng_Latn`, mBART's `en_XX` and names of locales.
    Codes for private use (`qaa` to `qtz`, `x-...`) are languages, too.
    """
    found = _parse(code)
    if found is None:
        near = _code_of_name(code)
        raise ConfigError(
            f"{code!r} is not a language code",
            place=place,
            remedy=f"did you mean {near}?"
            if near
            else "write an ISO 639 or BCP 47 code such as en, de or pt-BR",
        )
    return found


def is_language(code: str) -> bool:
    """Whether `parse_language` reads the code."""
    return _parse(code) is not None


def same_language(code: str, other: str) -> bool:
    """Whether two codes name one language in one script; regions may differ.

    A code that is not a language equals only itself.
    """
    first, second = _parse(code), _parse(other)
    if first is None or second is None:
        return code == other
    return first.language == second.language and is_one_script(first.script, second.script)


def closest_language(code: str, available: Iterable[str]) -> str | None:
    """The available code for the same language in the same script; None if there is none.

    The same code comes before the same tag, that before the same region, and a code without region
    before another region.
    """
    wanted = _parse(code)

    def distance(other: str) -> int:
        found = _parse(other)
        if other == code or wanted is None or found is None:
            return 0
        if found.region == wanted.region:
            return 1 if found.tag == wanted.tag else 2
        return 4 if found.region else 3

    return min((one for one in available if same_language(code, one)), key=distance, default=None)


def in_other_script(code: str, available: Iterable[str]) -> str | None:
    """The first available code for the same language in another script; None if there is none."""
    wanted = _parse(code)
    if wanted is None:
        return None
    for other in available:
        found = _parse(other)
        if found is None or found.language != wanted.language:
            continue
        if not is_one_script(found.script, wanted.script):
            return other
    return None


def with_script(code: str) -> str:
    """The language of a code and its script, stated or likely: `zh-TW` -> `zh-Hant`."""
    language = parse_language(code)
    return f"{language.language}-{language.script}" if language.script else language.language


def is_other_region(code: str, wanted: str) -> bool:
    """Whether a code of the wanted language names another region, or one where none is wanted."""
    if not (is_language(code) and is_language(wanted)):
        return False
    return parse_language(code).region != parse_language(wanted).region


def is_usual_region(code: str) -> bool:
    """Whether a code has no region, or is one of those that corpora and programs have."""
    language = _parse(code)
    return language is not None and (not language.region or language.tag in _USUAL_REGIONS)


def spelled(code: str) -> str:
    """The code as BCP 47 spells it: `fr_FR` -> `fr-FR`, `EN` -> `en`, `sr@latin` -> `sr-Latn`.

    NLLB's `eng_Latn` and M2M100's `ns` stay, because vocabularies have them, and so does what is
    not a language.
    """
    if _OF_NLLB.fullmatch(code) or code in _OF_PROGRAMS or _parse(code) is None:
        return code
    return str(_langcodes_tag(code, normalize=False).to_tag())


def language_name(code: str) -> str:
    """The English name, such as "Serbian (Latin)"; the code itself if it is not a language."""
    if _parse(code) is None:
        return code
    return str(_langcodes_tag(code).display_name())


def is_one_script(script: str, other: str) -> bool:
    """Whether two scripts of ISO 15924 are one, or one is a part of the other, as Hira of Jpan.

    An unknown script, "", may be any.
    """
    return (
        script == other
        or "" in (script, other)
        or script in _PARTS.get(other, ())
        or other in _PARTS.get(script, ())
    )


def _parse(code: str) -> Language | None:
    return _parsed(code) if len(code) <= LONGEST_CODE else None  # what is kept stays small


@lru_cache(_CACHED)
def _parsed(code: str) -> Language | None:
    from langcodes.tag_parser import LanguageTagError

    try:
        tag = _langcodes_tag(code)
    except LanguageTagError:
        return None
    # 419 is a region, and 1996 a spelling; langcodes takes them for languages, and any three
    # letters behind one for a variety of it: en-fra. Those that are one it has made it, as zh-yue.
    if not tag.is_valid() or tag.extlangs or (tag.language or "und").isdecimal():
        return None
    tag = tag.simplify_script()
    language = tag.prefer_macrolanguage().language or tag.to_tag()
    language = _ALSO.get(language, language)
    return Language(
        language=language,
        script=tag.script or _likely_script(language, tag.territory),
        region=tag.territory or "",
        tag=tag.to_tag(),
    )


def _likely_script(language: str, region: str | None) -> str:
    """CLDR's likely script of a language, in a region if given; "" if CLDR does not know it."""
    if language == "und":
        return ""
    if language in _SCRIPTS:
        return _SCRIPTS[language]
    from langcodes.data_dicts import LIKELY_SUBTAGS

    for key in (f"{language}-{region}", language):
        if key in LIKELY_SUBTAGS:
            return str(LIKELY_SUBTAGS[key].split("-")[1])
    return ""


def _langcodes_tag(code: str, *, normalize: bool = True) -> Any:
    from langcodes import Language as Tag  # 30 ms: only if a code is read

    # langcodes keeps all that it has read, which strangers may send; `_parsed` keeps enough.
    Tag._PARSE_CACHE.clear()
    Tag._INSTANCES.clear()
    locale = _LOCALE.fullmatch(code)
    name, modifier = locale.groups() if locale else (code, None)
    name = _OLD_CODES.get(name.lower().replace("_", "-"), name)
    name = _OF_PROGRAMS.get(name.lower(), _NO_REGION.sub("", name))
    tag = Tag.get(name, normalize=normalize)
    script = _MODIFIERS.get(modifier or "")
    return tag.update_dict({"script": script}) if script else tag


def _code_of_name(name: str) -> str:
    """The code of a language by its English or own name; "" if there is none."""
    from langcodes import find

    if len(name) > LONGEST_CODE:
        return ""
    try:
        return str(find(name).to_tag())
    except LookupError:
        return ""
