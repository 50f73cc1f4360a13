"""Telling languages, on captions that people wrote."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.languages import same_language
from dragoman.corpus.language import (
    check_languages,
    identify_language,
    likely_languages,
    other_language_log_odds,
    script_of_text,
)
from real_text import real_lines

PLACE = "corpus.filters.max_language_log_odds"


@pytest.mark.parametrize(("own", "other"), [("en", "de"), ("de", "en")])
def test_sentences_of_the_other_language_are_found_and_right_ones_stay(
    own: str, other: str
) -> None:
    right, wrong = real_lines("train", own)[:300], real_lines("train", other)[:300]
    assert np.mean(np.array(other_language_log_odds(right, own)) > 1.5) <= 0.01
    assert np.mean(np.array(other_language_log_odds(wrong, own)) > 1.5) >= 0.98


def test_text_without_a_language_passes_as_any_language() -> None:
    assert max(other_language_log_odds(["", "12:30", "1 + 1 = 2"], "de")) < 1


def test_a_region_does_not_count() -> None:
    check_languages("pt-BR", "zh_Hant", "nb", "nob_Latn", "eng_Latn", "ckb", "fil", place=PLACE)
    text = ["Uma frase sobre nada."]
    assert other_language_log_odds(text, "pt-BR") == other_language_log_odds(text, "pt")


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ConfigError, match=r"max_language_log_odds: the language 'tlh' cannot be"):
        check_languages("en", "tlh", place=PLACE)


@pytest.mark.parametrize("own", ["en", "de"])
def test_the_language_of_a_sentence_is_found_among_some(own: str) -> None:
    lines = real_lines("train", own)[:300]
    first = [likely_languages(line, ["fr", "de-AT", "en", "tlh"])[0] for line in lines]
    assert np.mean([code.startswith(own) for code, _ in first]) >= 0.99
    assert all(0 <= probability <= 1 for _, probability in first)


def test_languages_that_cannot_be_recognised_are_left_out() -> None:
    assert [code for code, _ in likely_languages("Ein Hund bellt.", ["tlh", "de"])] == ["de"]
    assert likely_languages("Ein Hund bellt.", ["tlh"]) == []


def test_a_close_variety_is_taken_for_the_expected_language() -> None:
    croatian = (
        "Djevojčica sjedi na klupi i čita knjigu. Dva čovjeka popravljaju krov kuće u ulici. "
        "Vlak za Zagreb kreće u osam sati, a djeca već čekaju na kolodvoru. Nitko ne zna gdje je."
    )
    assert identify_language(croatian, [])[0] in {"bs", "hr", "sr"}
    assert identify_language(croatian, ["sr-Latn"])[0] == "sr-Latn"
    assert identify_language(croatian, ["sl", "de"])[0] in {"bs", "hr", "sr"}


ARTICLE_1 = {
    "eng_Latn": "All human beings are born free and equal in dignity and rights.",
    "nb": "Alle mennesker er født frie og med samme menneskeverd og menneskerettigheter.",
    "DE": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "srp_Cyrl": "Сва људска бића рађају се слободна и једнака у достојанству и правима.",
    "sr-Latn": "Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima.",
    "uz_UZ@cyrillic": "Барча одамлар эркин, қадр-қиммат ва ҳуқуқларда тенг бўлиб туғиладилар.",
    "uzn_Latn": "Barcha odamlar erkin, qadr-qimmat va huquqlarda teng bo'lib tug'iladilar.",
    "zho_Hans": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。",
    "zh-TW": "人人生而自由,在尊嚴和權利上一律平等。他們賦有理性和良心。",
    "arb_Arab": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "prs": "تمام ابنای بشر آزاد به دنیا آمده و از لحاظ منزلت و حقوق با هم برابرند.",
    "ckb": "هەموو مرۆڤەکان بە ئازادی و بە یەکسانی لە ڕێز و مافدا لە دایک دەبن.",
    "iw": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "hin_Deva": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।",
    "ell": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "kat_Geor": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა.",
    "kor_Hang": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "jpn": "すべての人間は、生まれながらにして自由であり、かつ、平等である。",
    "tha_Thai": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "khm": "មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងភាពស្មើៗគ្នាក្នុងសិទ្ធិ",
    "mya_Mymr": "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း",
    "amh": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "khk_Cyrl": "Хүн бүр төрж мэндлэхэд эрх чөлөөтэй, адилхан нэр төртэй байдаг.",
}
"""Article 1 of the Universal Declaration of Human Rights, by codes of many programs."""


@pytest.mark.parametrize("code", ARTICLE_1)
def test_a_language_is_found_by_any_of_its_codes_and_in_its_script(code: str) -> None:
    text = ARTICLE_1[code]
    assert likely_languages(text, ARTICLE_1)[0][0] == code
    assert identify_language(text, [code])[0] == code
    assert other_language_log_odds([text], code)[0] < 0
    other = "eng_Latn" if code != "eng_Latn" else "DE"
    assert identify_language(text, [other])[0] != other
    assert other_language_log_odds([text], other)[0] > 1.5


@pytest.mark.parametrize(
    ("code", "other"),
    [("sr-Latn", "sr"), ("srp_Cyrl", "sr-Latn"), ("zho_Hans", "zh-TW"), ("zh-TW", "zh")],
)
def test_the_same_language_in_another_script_is_another_one(code: str, other: str) -> None:
    text = ARTICLE_1[code]
    (first, probability), *rest = likely_languages(text, [other])
    assert same_language(first, code)
    assert probability > 0.5
    assert rest == [(other, 0)]
    assert likely_languages(text, [other, code])[0][0] == code
    assert other_language_log_odds([text], other)[0] > 1.5
    assert identify_language(text, [other])[0] != other


@pytest.mark.parametrize("code", ["zh", "ja", "ko", "ar", "he", "hi", "ru", "el", "ka", "th"])
def test_text_without_a_letter_of_a_language_is_not_in_it(code: str) -> None:
    for word in ("Copy", "State", "Archive", "OK", "Menu", "True", "Day"):
        assert dict(likely_languages(word, [code, "en"]))[code] == 0, word
    assert dict(likely_languages("12:30", [code, "en"]))[code] > 0  # no letter at all


def test_a_language_that_is_not_given_does_not_win_by_a_little() -> None:
    for text in (
        "Ni mogoče premakniti datoteke na njeno izvorno mesto.",
        "Na ustrezno tipko tipkovnice Qwerty.",
    ):
        assert likely_languages(text, ["sr", "sl", "en"])[0][0] == "sl"
    for name in ("OK", "https://example.com/foo"):
        assert {code for code, _ in likely_languages(name, ["sr", "sl", "en"])} == {
            "sr",
            "sl",
            "en",
        }


@pytest.mark.parametrize("code", ["zho_Hans", "zh-TW"])
def test_a_code_for_han_of_both_kinds_fits_both(code: str) -> None:
    assert other_language_log_odds([ARTICLE_1[code]], "zho_Hani")[0] < 0


@pytest.mark.parametrize(
    ("code", "script"),
    [
        *[("zh-TW", "Hant"), ("zho_Hans", "Hans"), ("jpn", "Hira"), ("hin_Deva", "Deva")],
        *[("srp_Cyrl", "Cyrl"), ("sr-Latn", "Latn"), ("amh", "Ethi"), ("kor_Hang", "Hang")],
    ],
)
def test_the_script_of_a_text_is_that_of_most_letters(code: str, script: str) -> None:
    assert script_of_text(code, ARTICLE_1[code]) == script
    assert script_of_text(code, "12, 3.") == ""


def test_a_script_in_which_a_language_is_not_known_is_refused() -> None:
    for code in ("hi-Latn", "pa-PK", "az-Cyrl", "french", "x-mine", "zxx"):
        with pytest.raises(ConfigError, match="cannot be identified"):
            check_languages(code, place=PLACE)


ASKED_AT_ONCE = """
import threading
from concurrent.futures import ThreadPoolExecutor
from py3langid.langid import LanguageIdentifier
from dragoman.corpus.language import likely_languages
loads, load = [], LanguageIdentifier.from_model_file
LanguageIdentifier.from_model_file = lambda *a, **named: loads.append(a) or load(*a, **named)
begin = threading.Barrier(4)
def ask(text):
    begin.wait()
    return likely_languages(text, ["de", "en"])[0][0]
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(ask, ["Ein Hund und eine Katze."] * 4)) == ["de"] * 4
assert len(loads) == 1, len(loads)
"""


def test_threads_that_ask_at_once_load_one_model() -> None:
    """A model takes 100 MB."""
    subprocess.run([sys.executable, "-c", ASKED_AT_ONCE], check=True)


def test_the_remedy_for_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(MachineError, match="pip install py3langid"):
        check_languages("en", place=PLACE)
