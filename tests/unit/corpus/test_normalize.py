from __future__ import annotations

import time
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.corpus.normalize import INVISIBLE, UNICODE_SPACES, normalize


def test_byte_order_marks_carriage_returns_and_spaces_go() -> None:
    text = "\ufeffone\u00a0 two \r\n\tthree\u3000\u200bfour\u2581\r\n"
    assert normalize(text) == "one two\nthree four\n"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("ភ្នំពេញ\u200bជា\u200bទីក្រុង", "ភ្នំពេញជាទីក្រុង"),  # Khmer
        ("ฉัน\u200bไป\u200bบ้าน", "ฉันไปบ้าน"),  # Thai
        ("ຂ້ອຍ\u200bໄປ\u200bບ້ານ", "ຂ້ອຍໄປບ້ານ"),  # Lao
        ("ကျွန်တော်\u200bသွား\u2060တယ်", "ကျွန်တော်သွားတယ်"),  # Burmese
        ("Donau\u00addampf\u00adschiff", "Donaudampfschiff"),
        ("Chi\u200bến tha\u2060\u0301ng", "Chiến tháng"),  # within a letter: Vietnamese
        ("日本\u200b語\u3164です", "日本語 です"),
        ("f\u2061(x)\u2062y", "f(x)y"),
        ("a\u200b b\ufeff c\u200b\u200b", "a b c"),
    ],
)
def test_what_nobody_sees_is_removed(text: str, normal: str) -> None:
    assert normalize(text) == normal
    assert normalize(text * 400) == normalize(normal * 400)  # a long text is searched otherwise


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",  # Persian: without U+200C the letters join
        "क्\u200dष क्\u200cष",  # Hindi: three forms of one cluster
        "ශ්\u200dරී ലങ്കാവി",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",  # a family, a red heart
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # a flag
        "\u202babc \u05d0\u05d1\u202c 1\u200f2",  # the order of what is seen
        "ᠨᠠᠶᠢᠮᠠ\u180eᠠ",
        "\u1112\u1160",
    ],
)
def test_what_changes_the_look_of_text_stays(text: str) -> None:
    assert normalize(text) == unicodedata.normalize("NFC", text)


def test_no_invisible_character_becomes_visible() -> None:
    """Every character of the categories that hold them, in the first planes and that of tags."""
    for code in [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE1000)]:
        character = chr(code)
        if unicodedata.category(character) in {"Cf", "Mn"} or character in INVISIBLE:
            assert " " not in normalize(f"a{character}b"), hex(code)
    assert normalize(f"a{UNICODE_SPACES}b") == "a b"


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


MARKS = st.text(
    st.sampled_from("\u0301\u0327\u0344\u0f71\u0f72\u0f73\u0f75\u0f81\U0001d165"),
    min_size=25,
    max_size=70,
)


@given(st.lists(st.one_of(MARKS, st.sampled_from(["a", "ế", "\ufeff", " ", "\n", "\u3099"]))))
def test_long_runs_of_marks_are_cut_once_and_for_all(parts: list[str]) -> None:
    normal = normalize("".join(parts))
    assert normalize(normal) == normal
    assert unicodedata.is_normalized("NFC", normal)
    assert normal.split("\n") == [normalize(line) for line in "".join(parts).split("\n")]
    starters = [n for n, c in enumerate(f"a{normal}a") if not unicodedata.combining(c)]
    assert max(end - start for start, end in pairwise(starters)) <= 31


@given(st.text(st.sampled_from("\u0301\u0327\u0344\u05b4\u05bc"), max_size=15))
def test_runs_as_languages_have_them_are_plain_nfc(marks: str) -> None:
    assert normalize(f"שa{marks}b\n") == unicodedata.normalize("NFC", f"שa{marks}b\n")


def test_a_letter_and_its_marks_come_together_across_a_byte_order_mark() -> None:
    assert normalize("gro\ufeff\u0308ßer") == "größer"


@pytest.mark.parametrize(
    "marks",
    [
        *("\u0301\u0327", "\u0f71\u0f72", "\u0344", "\U0001e944\U0001d165"),
        *("\u0f73\u0f73", "\u0f75\u0f81", "\u0f73\u0f71"),  # no marks, but made of them
    ],
)
def test_a_line_of_nothing_but_marks_takes_no_longer_than_others(marks: str) -> None:
    """Sorted in one go these 200,000 marks take minutes."""
    normalize("ä")  # the table of marks is made once
    began = time.process_time()
    normal = normalize(f"a{marks * 100_000}")
    assert time.process_time() - began < 10
    assert normal.count("\u034f") > 3_000
