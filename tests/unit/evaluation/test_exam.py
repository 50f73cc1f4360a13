"""Systems that fail in one way each fail in that subject, and hold in the others."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence

import pytest
from rich.console import Console

from dragoman.api.exam import Exam
from dragoman.cli.exam_view import print_exams
from dragoman.corpus.directions import Direction
from dragoman.corpus.links import WORD
from dragoman.evaluation.exam import SUBJECTS, Format, Glossary, Mark, chrf, examine, terms_of
from dragoman.inference.terms import has_term
from real_text import real_lines

EN_DE = Direction("en", "de")
NAMES = [subject.name for subject in SUBJECTS]


def pairs() -> list[tuple[str, str]]:
    sources, references = (real_lines("test", language) for language in ("en", "de"))
    chosen = [
        (source, reference)
        for source, reference in zip(sources, references, strict=True)
        if re.fullmatch(r"[A-Z][a-z]+( [a-z]+){3,11}\.", source)
    ]
    assert len(chosen) >= 20
    return chosen[:40]


def marks(change: Callable[[str], str]) -> dict[str, Mark]:
    """The marks of a system that gives each text back, but for a change."""

    def system(texts: Sequence[str], _format: Format) -> list[str]:
        return [change(text) for text in texts]

    glossary = Glossary(
        {word: word for pair in pairs() for word in WORD.findall(pair[0])}, system, has_term
    )
    return {mark.subject: mark for mark in examine(system, pairs(), EN_DE, glossary=glossary)}


def without(pattern: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, "", text)


def test_a_system_that_gives_all_back_fails_as_it_is() -> None:
    """Its answers agree with each other, and are no translations."""
    found = marks(str)
    assert list(found) == NAMES
    weak = {name: mark for name, mark in found.items() if mark.rate < 1.0}
    assert [*weak] == ["as it is"]
    assert weak["as it is"].rate < 0.2
    assert weak["as it is"].worst is not None
    assert found["two sentences"].chrf == pytest.approx(100.0)
    assert found["a number alone"].chrf is None


def test_references_are_translations_as_they_are() -> None:
    known = dict(pairs())
    assert marks(lambda text: known.get(text, text))["as it is"].rate > 0.95
    greek = str.maketrans("abcdefghijklmnopqrstuvwxyz", "αβκδεφγηιικλμνοπκρστυβωχψζ")
    worst = marks(lambda text: known.get(text, text).lower().translate(greek))["as it is"].worst
    assert worst is not None
    assert worst.problem == "it is in another script"


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (str.capitalize, {"in capitals"}),
        (without(r"https?://\S*|www\S*"), {"a web address"}),
        (without(r"\S+@\S+"), {"an e-mail address"}),
        (without("[\U0001f300-\U0001ffff]"), {"an emoji"}),
        (without("</?b>"), {"a tag inside"}),
        (without(r"</b>"), {"a tag inside"}),
        (without(r"\{\w+\}|%\(?\w*\)?[sd]|\$USER"), {"a placeholder inside"}),
        (without(r"(?<=\.) .*"), {"two sentences", "a very long line"}),
        (lambda text: text or "Ermittelt.", {"an empty line"}),
        (lambda text: text if text.isascii() else "Ermittelt.", {"another script"}),
        (lambda text: f"{text} {text}" if "www" in text else text, {"a web address"}),
        (lambda text: text + " of the cat" * 4 if " " not in text.strip() else text, {"one word"}),
        (lambda text: text if text[-1:] in ".)" else text + ".", {"no final mark"}),
    ],
)
def test_a_system_fails_in_its_subject(change: Callable[[str], str], fails: set[str]) -> None:
    found = marks(change)
    for name in fails:
        assert found[name].rate < 0.75, found[name]
        worst = found[name].worst
        assert worst is not None
        assert worst.problem
    held = {name for name, mark in found.items() if mark.rate == 1.0}
    assert len(held) >= 10


def test_another_translation_of_a_changed_sentence_is_a_failure() -> None:
    """With typing errors the system says something else, which only its plain translation shows."""
    known = {source for source, _ in pairs()}
    found = marks(lambda text: text if text in known else "Das ist ein ganz anderer Satz hier.")
    assert found["typing errors"].rate == 0.0
    assert found["typing errors"].worst is not None
    assert found["typing errors"].chrf is not None
    assert found["typing errors"].chrf < 50.0
    assert found["typing errors"].cure == "corpus.augment.typos"


@pytest.mark.parametrize("loop", [" und so" * 5, " der Tag" * 4, " es es es.", " Die die, die"])
def test_a_loop_is_named_unless_the_source_has_it(loop: str) -> None:
    found = marks(lambda text: text + loop if text[-1:] > "\U0001f600" else text)
    emoji = found["an emoji"]
    assert emoji.rate < 1.0
    assert emoji.worst is not None
    assert emoji.worst.problem == "it repeats itself"


def test_final_marks_of_other_scripts_count() -> None:
    """A system that always ends in a danda, asked for sentences that do."""

    def system(texts: Sequence[str], _format: Format) -> list[str]:
        return [text.rstrip("।") + "।" for text in texts]

    hindi = [(f"यह घर नंबर {number} है।", f"This is house {number}.") for number in range(20)]
    found = {mark.subject: mark for mark in examine(system, hindi, Direction("hi", "en"))}
    assert found["no final mark"].tried == 20
    assert found["no final mark"].held == 0


def test_terms_are_words_that_come_together_in_the_test_set() -> None:
    found = terms_of([*zip(*(real_lines("test", side) for side in ("en", "de")), strict=True)])
    assert len(found) > 30
    known = {"language": "Sprache", "menu": "Menü", "visible": "sichtbar", "submenu": "Untermenü"}
    assert known.items() <= found.items()
    assert not {"the", "with", "from"} & found.keys()


def test_a_system_is_examined_in_terms_only_if_it_takes_them() -> None:
    """Given a term, one system writes it and another one does not; a third one takes none."""
    sources = [
        (f"House {number} has a cellar.", f"Haus {number} hat Keller.") for number in range(9)
    ]

    def plain(texts: Sequence[str], _format: Format) -> list[str]:
        return [*texts]

    def with_terms(texts: Sequence[str], _format: Format) -> list[str]:
        return [text.replace("cellar", "Keller") for text in texts]

    terms = {"cellar": "Keller"}
    for system, held in ((with_terms, 9), (plain, 0)):
        glossary = Glossary(terms, system, has_term)
        found = {one.subject: one for one in examine(plain, sources, EN_DE, glossary=glossary)}
        assert (found["a term"].tried, found["a term"].held) == (9, held)
        assert found["one word"].tried == 9
    without = {one.subject for one in examine(plain, sources, EN_DE)}
    assert set(NAMES) - without == {"a term"}


def test_what_is_right_in_another_form_is_right() -> None:
    """A German decimal comma; several marks at the end; capitals of Greek and Turkish."""

    def system(texts: Sequence[str], _format: Format) -> list[str]:
        return [text.replace("3.14", "3,14").replace("12,500", "12.500") for text in texts]

    sources = [(f"It is loaded {number} times...", "Es lädt.") for number in range(9)]
    found = {one.subject: one for one in examine(system, sources, EN_DE)}
    assert found["a number alone"].rate == 1.0
    assert (found["no final mark"].tried, found["no final mark"].rate) == (9, 1.0)
    assert chrf("ΠΟΥ ΕΙΝΑΙ Ο ΣΤΑΘΜΟΣ;", "Πού είναι ο σταθμός;") == 100.0
    assert chrf("ISTANBUL'DA BİR KIZ", "İstanbul'da bir kız") > 95.0


def test_a_sentence_that_has_the_number_is_not_asked_with_it_once_more() -> None:
    def system(texts: Sequence[str], _format: Format) -> list[str]:
        return [*texts]

    sources = [(f"Made in 42, 365 or 1984, {n} times.", "Da gemacht.") for n in range(5)]
    assert "a number behind it" not in {one.subject for one in examine(system, sources, EN_DE)}


def test_exams_of_other_subjects_stand_beside_each_other() -> None:
    """A server takes no terms: its row is empty."""
    exams = [
        Exam(name, "en-de", "test", tuple(Mark(subject, 4, 4, None, None, "") for subject in taken))
        for name, taken in (("run", ["one word", "a term"]), ("server", ["one word"]))
    ]
    console = Console(file=io.StringIO(), width=100)
    print_exams(exams, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("100.0%") == 3
