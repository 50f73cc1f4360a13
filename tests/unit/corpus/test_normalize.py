from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.normalize import normalize


def test_byte_order_marks_carriage_returns_and_spaces_go() -> None:
    text = "\ufeffone\u00a0 two \r\n\tthree\u3000\u200bfour\u2581\r\n"
    assert normalize(text) == "one two\nthree four\n"


def test_text_becomes_nfc() -> None:
    assert normalize("gro\u0308ßer") == "größer"


def test_lowercase_is_an_option() -> None:
    assert normalize("ÄRGER mit İ") == "ÄRGER mit İ"
    assert normalize("ÄRGER mit I", lowercase=True) == "ärger mit i"


def test_control_characters_stay_for_the_filter() -> None:
    assert normalize("a\x00b\x0bc\x85d\n") == "a\x00b\x0bc\x85d\n"


@given(st.text(), st.booleans())
def test_lines_stay_lines_and_once_is_enough(text: str, lowercase: bool) -> None:
    normal = normalize(text, lowercase=lowercase)
    assert normal.count("\n") == text.count("\n")
    assert normalize(normal, lowercase=lowercase) == normal
    assert unicodedata.is_normalized("NFC", normal)
    assert all(line == line.strip(" ") for line in normal.split("\n"))


@given(st.lists(st.text(st.characters(blacklist_characters="\n"))))
def test_a_line_is_normalised_the_same_alone_and_among_others(lines: list[str]) -> None:
    assert normalize("\n".join(lines)).split("\n") == ([normalize(line) for line in lines] or [""])
