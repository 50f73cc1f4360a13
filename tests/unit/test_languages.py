"""Language codes of many programs, read by one table."""

import pytest

from dragoman.base.errors import ConfigError
from dragoman.base.languages import (
    closest_language,
    in_other_script,
    is_language,
    language_name,
    parse_language,
    same_language,
    with_script,
)


@pytest.mark.parametrize(
    "codes",
    [
        ("no", "nb", "nor", "nob", "nob_Latn", "nb-NO", "nb_NO.UTF-8"),
        ("en", "EN", "eng", "eng_Latn", "en_XX", "en-GB", "en_US"),
        ("zh", "zho", "cmn", "zho_Hans", "zh-Hans", "zh-CN", "zh_CN"),
        ("zh-Hant", "zh-TW", "zho_Hant", "cmn_Hant", "zt", "zh-CHT", "zh_cht"),
        ("zh-Hans", "zh-CHS"),
        ("yue", "zh-yue"),
        ("es", "es-ES_tradnl"),
        ("zho_Hani", "zh-Hans"),
        ("zho_Hani", "zh-Hant"),
        ("ar", "arb", "arb_Arab", "ar_AR"),
        ("fa", "pes", "prs", "fas", "per"),
        ("sr", "srp_Cyrl", "sr-RS"),
        ("sr-Latn", "sh", "srp_Latn", "sr@latin", "sr_RS@latin"),
        ("uz@cyrillic", "uz_UZ@cyrillic", "uzn_Cyrl"),
        ("ko", "kor_Hang", "ko-KR", "kor"),
        ("ja", "jpn_Jpan", "jpn_Hira", "jpn_Hani", "ja-JP"),
        ("crh", "crh_Latn"),
        ("grc", "grc-Grek"),
        ("ksw", "ksw_Mymr"),
        ("he", "iw", "heb_Hebr"),
        ("id", "in", "ind_Latn"),
        ("tl", "fil", "tgl_Latn"),
        ("ps", "pbt_Arab", "pus"),
        ("lv", "lvs_Latn", "lav"),
        ("et", "ekk", "est_Latn"),
        ("mn", "khk_Cyrl"),
        ("pt", "pt-BR", "pt_PT", "por_Latn", "pb"),
        ("nso", "nso_Latn", "ns"),
        ("de", "ger", "deu", "de_DE@euro"),
    ],
)
def test_codes_of_one_language_are_the_same(codes: tuple[str, ...]) -> None:
    assert all(same_language(codes[0], code) for code in codes)


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ("sr-Latn", "sr-Cyrl"),
        ("sr", "sr-Latn"),
        ("uz", "uz@cyrillic"),
        ("be", "be_BY@latin"),
        ("ja", "ja-Latn"),
        ("crh", "crh-Cyrl"),
        ("zh", "zh-TW"),
        ("nb", "nn"),
        ("zh", "yue"),
        ("ku", "ckb"),
        ("pa", "pa-PK"),  # Pakistan writes it in Arabic script
        ("x-mine", "x-yours"),
        ("english", "en"),
    ],
)
def test_other_scripts_and_languages_differ(code: str, other: str) -> None:
    assert not same_language(code, other)


@pytest.mark.parametrize(
    ("code", "near"),
    [("french", "fr"), ("Deutsch", "de"), ("xx", ""), ("", ""), ("en fr", "")]
    + [(code, "") for code in ("en-fra", "de-CHT", "zh-eng")],
)
def test_what_is_not_a_code_is_refused(code: str, near: str) -> None:
    assert not is_language(code)
    with pytest.raises(ConfigError) as refused:
        parse_language(code, place="corpus.source_language")
    assert refused.value.place == "corpus.source_language"
    assert not near or f" {near}?" in refused.value.remedy


@pytest.mark.parametrize(
    "code", ["a" * 10**6, "en-" * 10**5, "en@" + "x" * 10**6, "en-x-" + 31 * "a"]
)
def test_a_long_code_is_refused_at_once(code: str) -> None:
    assert not is_language(code)
    assert not same_language(code, "en")
    with pytest.raises(ConfigError):
        parse_language(code)


def test_codes_of_strangers_do_not_fill_the_memory() -> None:
    for number in range(3000):
        assert is_language(f"en-x-{number:08}")
    import langcodes

    assert len(langcodes.Language._PARSE_CACHE) < 10
    assert len(langcodes.Language._INSTANCES) < 100


def test_private_codes_and_unknown_languages_are_codes() -> None:
    assert all(map(is_language, ("x-mine", "qaa", "tlh", "und", "mul")))
    assert not any(map(is_language, ("419", "150", "1996", "1901", "de-1996-419")))


def test_the_closest_code_has_the_script_and_if_possible_the_region() -> None:
    assert closest_language("pt", ["pt-PT", "pt-BR"]) == "pt-PT"
    assert closest_language("pt-BR", ["pt-PT", "pt", "es"]) == "pt"
    assert closest_language("pt-BR", ["pt", "por_BR"]) == "por_BR"
    assert closest_language("nob", ["nn", "no"]) == "no"
    assert closest_language("zh-TW", ["zh", "zho_Hant"]) == "zho_Hant"
    assert closest_language("sr-Latn", ["sr", "sr-Cyrl"]) is None


def test_names_are_those_that_people_read() -> None:
    assert language_name("nb") == "Norwegian Bokmål"
    assert language_name("srp_Latn") == "Serbian (Latin)"
    assert language_name("english") == "english"


def test_a_code_of_the_same_language_in_another_script_is_found() -> None:
    assert in_other_script("sr-Latn", ["en", "sr-RS", "sr-Cyrl"]) == "sr-RS"
    assert in_other_script("zh", ["en", "zh-CN", "zh_TW"]) == "zh_TW"
    assert in_other_script("zho_Hani", ["zh-Hant", "zh-Hans"]) is None
    assert in_other_script("nb", ["nn", "no", "english"]) is None
    assert in_other_script("english", ["en"]) is None
    assert [with_script(code) for code in ("zh-TW", "sr", "x-mine")] == [
        "zh-Hant",
        "sr-Cyrl",
        "x-mine",
    ]
