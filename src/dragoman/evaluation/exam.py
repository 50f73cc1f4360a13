"""An exam: sentences changed as people change them, and what must hold of their translations.

A score on clean sentences says nothing of capitals, typing errors, a web address or a line that is
in the target language already. For each of them this asks a system for translations, and counts how
many are still what its translation of the plain sentence is, or have what must be kept.
"""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final, Literal, NamedTuple

from sacrebleu.metrics.chrf import CHRF

from dragoman.corpus.augment import FINAL_MARK, KINDS
from dragoman.corpus.directions import Direction
from dragoman.corpus.language import likely_languages
from dragoman.corpus.links import WORD

LEAST_CHRF: Final = 50.0
"""A translation with a lower chrF against the expected one counts as another one.

Translations of the same sentence by two different models of Multi30k have 60 to 80.
"""
_LEAST_OF_REFERENCE: Final = 15.0
"""A translation with a lower chrF against the reference has hardly a word of it. Two sentences of
one language that have nothing to do with each other have 10 to 20, so some of them pass."""
_MOST_WORDS: Final = 3
"""Words that translate one word, at most."""
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_CLEARLY: Final = 9
"""How much likelier a language is than all others if a translation is taken to be in it."""
_SEPARATORS: Final = re.compile(r"[.,:'’\s]")
"""Marks between the digits of a number; which one is a matter of the language."""
_LOOP: Final = re.compile(
    r"""
    (\S.{1,40}?)(?:\s?\1){3}                          # letters or words, four times in a row
    | (?<!\w)([^\W\d_]+)(?:[\s,.]+(?i:\2)){2}(?!\w)  # a word, three times
    """,
    re.VERBOSE,
)
"""Matches what is repeated in a text that loops, if the source does not."""
_LONGEST_LOOP: Final = 4000
"""Characters of a translation in which a loop is looked for."""
_LENGTHS: Final = (0.5, 2.0)
"""The length of a translation over that of the expected one."""
_TOGETHER: Final = 8
"""Sentences of a very long line."""
_LEAST_TOGETHER: Final = 3
"""Sentences in which the words of a term occur together."""
_LEAST_DICE: Final = 0.8
_SHORTEST_TERM: Final = 4
"""Letters of a word of a term."""
System = Callable[[Sequence[str], "Format"], Sequence[str]]
"""Translates any number of texts of one line."""
Format = Literal["text", "markup"]
"""text: one or more sentences. markup: HTML or XML."""
Check = Callable[[str], str]
"""Says in words what is wrong with a translation; "" if nothing is."""


class Glossary(NamedTuple):
    """Translations of words, the system that is given them, and whether a text has such a word in
    any form."""

    terms: Mapping[str, str]
    system: System
    has_term: Callable[[str, str], bool]


class Sentence(NamedTuple):
    """A sentence, its reference, what the system makes of the sentence as it is, and what must hold
    if it is given a term for a word of it; None if there is no term."""

    source: str
    reference: str
    translation: str
    has_term: Check | None = None


class Planted(NamedTuple):
    """A changed text, the translation that is expected of it ("": unknown), and what must hold.

    is_reference: the expected one is by people, so that a good translation may be quite another.
    """

    text: str
    expected: str
    checks: tuple[Check, ...] = ()
    format: Format = "text"
    is_reference: bool = False


Plant = Callable[[Sequence[Sentence], Direction, Random], Planted | None]
"""Makes a text of a sentence and those that follow; None if it cannot be made of this one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A translation of which something does not hold."""

    text: str
    translation: str
    problem: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of text. cure: the key of a recipe that teaches it; "" if there is none.

    with_terms: whether the system is given terms.
    """

    name: str
    plant: Plant
    cure: str = ""
    with_terms: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """The result in one subject.

    tried, held: texts, and translations of which all holds. chrf: the mean chrF of translations
    against the expected ones; None if none is known. worst: the failure with the lowest chrF.
    """

    subject: str
    tried: int
    held: int
    chrf: float | None
    worst: Failure | None
    cure: str

    @property
    def rate(self) -> float:
        """The share that held."""
        return self.held / self.tried if self.tried else 1.0


def examine(
    system: System,
    pairs: Sequence[tuple[str, str]],
    direction: Direction,
    *,
    glossary: Glossary | None = None,
    on_subject: Callable[[str], object] = bool,
) -> Iterator[Mark]:
    """Examine a system with some sentences and their references, subject by subject.

    glossary: None if the system takes no terms: then it is not examined in them.
    on_subject: is called with the name of each subject before it is examined.
    """
    on_subject("the sentences as they are")
    plain = system([source for source, _ in pairs], "text")
    sentences = [
        Sentence(source, reference, translation, glossary and _term_check(source, glossary))
        for (source, reference), translation in zip(pairs, plain, strict=True)
    ]
    for subject in SUBJECTS:
        on_subject(subject.name)
        planted = []
        for number in range(len(sentences)):
            following = sentences[number : number + _TOGETHER]
            random = Random(f"{subject.name} {number}")  # noqa: S311
            if (one := subject.plant(following, direction, random)) is not None:
                planted.append(one)
        if planted:
            asked = glossary.system if glossary and subject.with_terms else system
            yield _marked(subject, planted, asked)


def _marked(subject: Subject, planted: Sequence[Planted], system: System) -> Mark:
    translations = system([one.text for one in planted], planted[0].format)
    chrfs: list[float] = []
    failures: list[tuple[float, Failure]] = []
    for one, translation in zip(planted, translations, strict=True):
        similarity = None
        if one.expected:
            similarity = chrf(translation, one.expected)
            chrfs.append(similarity)
        if problem := _problem(one, translation, similarity):
            failures.append((similarity or 0.0, Failure(one.text, translation, problem)))
    return Mark(
        subject=subject.name,
        tried=len(planted),
        held=len(planted) - len(failures),
        chrf=statistics.fmean(chrfs) if chrfs else None,
        worst=min(failures, key=lambda failure: failure[0])[1] if failures else None,
        cure=subject.cure,
    )


def _problem(planted: Planted, translation: str, similarity: float | None) -> str:
    """The first thing that does not hold of a translation; "" if all does."""
    for check in planted.checks:
        if problem := check(translation):
            return problem
    if planted.text.strip() and not translation.strip():
        return "it is empty"
    if _loops(translation) and not _loops(planted.text):
        return "it repeats itself"
    if similarity is None:
        return ""
    if planted.is_reference:
        return "it has nothing of the reference" if similarity < _LEAST_OF_REFERENCE else ""
    least, most = (share * len(planted.expected) for share in _LENGTHS)
    if not least <= len(translation) <= most:
        return "it is much shorter" if len(translation) < least else "it is much longer"
    return "it is another translation" if similarity < LEAST_CHRF else ""


def chrf(translation: str, expected: str) -> float:
    """chrF (Popović 2015) of two texts, 0 to 100; case and accents of letters do not count."""
    score = CHRF().sentence_score(_as_capitals(translation), [_as_capitals(expected)]).score
    return float(score)


def _as_capitals(text: str) -> str:
    """A text in capitals without accents: Greek leaves them out there, and Turkish dots an I."""
    return _ACCENTS.sub("", unicodedata.normalize("NFD", text.upper()))


def _loops(text: str) -> bool:
    return _LOOP.search(text[:_LONGEST_LOOP]) is not None


def _has_once(part: str) -> Check:
    def check(translation: str) -> str:
        count = translation.count(part)
        return (
            ""
            if count == 1
            else f"{part} is there {count} times"
            if count
            else f"{part} is missing"
        )

    return check


def _is(text: str) -> Check:
    return lambda translation: "" if translation.strip() == text.strip() else "it was changed"


def _is_number(text: str) -> Check:
    def check(translation: str) -> str:
        same = _SEPARATORS.split(translation.strip()) == _SEPARATORS.split(text)
        return "" if same else "it was changed"

    return check


def _is_in(direction: Direction) -> Check:
    """Whether a translation is in the target language and not in that of the source."""

    def check(translation: str) -> str:
        probabilities = dict(likely_languages(translation, direction))
        if len(probabilities) < 2 or not any(map(str.isalpha, translation)):
            return ""  # py3langid does not know both
        if not any(probabilities.values()):
            return "it is in another script"
        source, target = (probabilities.get(code, 0.0) for code in direction)
        is_source = source > _CLEARLY * max(target, 1 - source)
        return "it is in the language of the source" if is_source else ""

    return check


def _is_in_capitals(translation: str) -> str:
    letters = [letter for letter in translation if letter.upper() != letter.lower()]
    capitals = sum(letter.isupper() for letter in letters)
    return "" if capitals >= 0.8 * len(letters) else "it is not in capitals"


def _has_no_mark(translation: str) -> str:
    return "it has a final mark" if FINAL_MARK.search(translation.rstrip()) else ""


def _changed(kind: str, *checks: Check) -> Plant:
    """A sentence changed as `corpus.augment` changes it, whose translation stays alike."""

    def plant(
        sentences: Sequence[Sentence], direction: Direction, random: Random
    ) -> Planted | None:
        first = sentences[0]
        changed = KINDS[kind]((first.source, first.reference), direction, random)
        return None if changed is None else Planted(changed[0], first.translation, checks)

    return plant


def _as_it_is(sentences: Sequence[Sentence], direction: Direction, _random: Random) -> Planted:
    """The others are compared with these translations, so these have to be some."""
    first = sentences[0]
    checks = () if first.source == first.reference else (_is_in(direction),)
    return Planted(first.source, first.reference, checks, is_reference=True)


def _no_final_mark(
    sentences: Sequence[Sentence], _direction: Direction, _random: Random
) -> Planted | None:
    text = sentences[0].source
    without = _without_mark(text)
    if without == text.rstrip():
        return None
    return Planted(without, _without_mark(sentences[0].translation), (_has_no_mark,))


def _without_mark(text: str) -> str:
    """A text without the marks that end it, of which there may be several."""
    text = text.rstrip()
    while FINAL_MARK.search(text):
        text = text[:-1].rstrip()
    return text


def _doubled_spaces(
    sentences: Sequence[Sentence], _direction: Direction, _random: Random
) -> Planted | None:
    source = sentences[0].source
    return Planted(source.replace(" ", "  "), sentences[0].translation) if " " in source else None


def _one_word(
    sentences: Sequence[Sentence], _direction: Direction, random: Random
) -> Planted | None:
    words = [word for word in sentences[0].source.split() if word.isalpha() and len(word) > 3]
    if not words:
        return None

    def is_short(translation: str) -> str:
        is_long = len(translation) > 40 or len(translation.split()) > _MOST_WORDS
        return "it is more than a word" if is_long else ""

    return Planted(random.choice(words), "", (is_short,))


def _alone(numbers: Sequence[str]) -> Plant:
    """A number whose digits stay as they are."""

    def plant(_sentences: Sequence[Sentence], _direction: Direction, random: Random) -> Planted:
        text = random.choice(numbers)
        return Planted(text, "", (_is_number(text),))

    return plant


def _behind(parts: Sequence[str]) -> Plant:
    """A sentence with something behind it that stays."""

    def plant(
        sentences: Sequence[Sentence], _direction: Direction, random: Random
    ) -> Planted | None:
        part = random.choice(parts)
        if part in sentences[0].source:
            return None
        expected = f"{sentences[0].translation} {part}"
        return Planted(f"{sentences[0].source} {part}", expected, (_has_once(part),))

    return plant


def _reference(sentences: Sequence[Sentence], _direction: Direction, _random: Random) -> Planted:
    return Planted(sentences[0].reference, sentences[0].reference)


def _other_script(_sentences: Sequence[Sentence], direction: Direction, random: Random) -> Planted:
    of = {"ru": _CYRILLIC, "uk": _CYRILLIC, "bg": _CYRILLIC, "el": _GREEK, "ka": _GEORGIAN}
    known = {of.get(code.partition("-")[0]) for code in direction}
    texts = next(texts for texts in (_GEORGIAN, _GREEK, _CYRILLIC) if texts not in known)
    text = random.choice(texts)
    return Planted(text, "", (_is(text),))


def _tags(sentences: Sequence[Sentence], _direction: Direction, random: Random) -> Planted | None:
    words = sentences[0].source.split(" ")
    if len(words) < 3 or "<b>" in words:
        return None
    place = random.randrange(len(words) - 1)
    words[place] = f"<b>{words[place]}</b>"
    checks = (_has_once("<b>"), _has_once("</b>"))
    return Planted(" ".join(words), sentences[0].translation, checks, "markup")


def _placeholder(
    sentences: Sequence[Sentence], _direction: Direction, random: Random
) -> Planted | None:
    words = sentences[0].source.split(" ")
    if len(words) < 3:
        return None
    mark = random.choice(("{name}", "%s", "%(count)d", "{0}", "$USER"))
    if mark in sentences[0].source:
        return None
    words.insert(random.randrange(1, len(words)), mark)
    return Planted(" ".join(words), sentences[0].translation, (_has_once(mark),))


def _joined(number: int) -> Plant:
    def plant(
        sentences: Sequence[Sentence], _direction: Direction, _random: Random
    ) -> Planted | None:
        if len(sentences) < number:
            return None
        some = sentences[:number]
        return Planted(
            " ".join(one.source for one in some), " ".join(one.translation for one in some)
        )

    return plant


def terms_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Words of the sources with those of the references that translate them.

    Two words are a term if they occur together nearly as often as each occurs (Dice 1945).
    """
    together, ours, theirs = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    for pair in pairs:
        source, reference = (
            {word for word in WORD.findall(text) if _is_term(word)} for text in pair
        )
        ours.update(source)
        theirs.update(reference)
        together.update(product(source, reference))
    found = sorted(
        (2 * count / (ours[word] + theirs[wanted]), word, wanted)
        for (word, wanted), count in together.items()
        if count >= _LEAST_TOGETHER and word != wanted
    )
    return {word: wanted for alike, word, wanted in found if alike >= _LEAST_DICE}


def _is_term(word: str) -> bool:
    return word.isalpha() and len(word) >= _SHORTEST_TERM


def _term_check(source: str, glossary: Glossary) -> Check | None:
    """What must hold of a translation if the first word of the source that is a term is given."""
    wanted = next(
        (glossary.terms[one] for one in WORD.findall(source) if one in glossary.terms), ""
    )

    def check(translation: str) -> str:
        return "" if glossary.has_term(translation, wanted) else f"{wanted} is missing"

    return check if wanted else None


def _term(sentences: Sequence[Sentence], _direction: Direction, _random: Random) -> Planted | None:
    """A sentence as it is, to be translated with a term; the rest of its translation may change."""
    first = sentences[0]
    return None if first.has_term is None else Planted(first.source, "", (first.has_term,))


def _empty(_sentences: Sequence[Sentence], _direction: Direction, random: Random) -> Planted:
    text = " " * random.randrange(3)
    return Planted(text, "", (_is(text),))


_CYRILLIC: Final = ("Здравствуйте, как ваши дела?", "Сегодня хорошая погода.", "Где вокзал?")
_GREEK: Final = ("Καλημέρα, τι κάνετε;", "Σήμερα ο καιρός είναι καλός.", "Πού είναι ο σταθμός;")
_GEORGIAN: Final = ("გამარჯობა, როგორ ხართ?", "დღეს კარგი ამინდია.", "სად არის სადგური?")
_EMOJI: Final = ("😀", "😂", "👍", "🎉", "🔥", "🦜")
_ADDRESSES: Final = ("https://www.w3.org/TR/xml", "http://localhost:8080/a?b=c", "www.debian.org")
_MAIL: Final = ("office@example.org", "jane.doe@mail.test")
SUBJECTS: Final = (
    Subject("as it is", _as_it_is),
    Subject("in capitals", _changed("upper_case", _is_in_capitals), "corpus.augment.upper_case"),
    Subject("each word with a capital", _changed("title_case"), "corpus.augment.title_case"),
    Subject("in small letters", _changed("lower_case"), "corpus.augment.lower_case"),
    Subject("typing errors", _changed("typos"), "corpus.augment.typos"),
    Subject("no final mark", _no_final_mark, "corpus.augment.final_punctuation"),
    Subject("doubled spaces", _doubled_spaces),
    Subject("one word", _one_word),
    Subject("a number alone", _alone(("7", "1984", "3.14", "12,500", "10:30"))),
    Subject("a number behind it", _behind(("42", "1984", "365")), "corpus.augment.kept"),
    Subject("a web address", _behind(_ADDRESSES), "corpus.augment.placeholders"),
    Subject("an e-mail address", _behind(_MAIL), "corpus.augment.placeholders"),
    Subject("an emoji", _behind(_EMOJI), "corpus.augment.kept"),
    Subject("the target language", _reference, "corpus.augment.copied"),
    Subject("another script", _other_script),
    Subject("a tag inside", _tags),
    Subject("a placeholder inside", _placeholder, "corpus.augment.placeholders"),
    Subject("a term", _term, with_terms=True),
    Subject("two sentences", _joined(2)),
    Subject("a very long line", _joined(_TOGETHER)),
    Subject("an empty line", _empty),
)
"""The subjects of an exam. To add one, write a function that plants its texts, and list it here."""
