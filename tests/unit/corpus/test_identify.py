"""The languages of a text are those that the recipe names, or the preparation stops."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import CorpusError
from dragoman.base.languages import with_script
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.filters import FilterConfig
from dragoman.corpus.identify import find_wrong_languages, seen_languages
from dragoman.corpus.pairs import TextEntry
from dragoman.corpus.prepare import prepare
from dragoman.corpus.sources import Sources
from dragoman.telemetry.events import Alert, EventWriter, read_events
from parallel_text import sentences, write_lines
from phrases import SENTENCES
from real_text import real_lines

LANGUAGES = tuple(SENTENCES)


def entry_of(
    folder: Path, source: list[str], target: list[str], pair: tuple[str, str], **more: Any
) -> tuple[TextEntry, CorpusConfig]:
    write_lines(folder / "a", source)
    write_lines(folder / "b", target)
    config = CorpusConfig(
        folder=str(folder),
        train=(TextFiles(source="a", target="b"),),
        source_language=pair[0],
        target_language=pair[1],
        valid_pairs=2,
        **more,
    )
    (entry,) = Sources(config, downloads=folder).entries["train"]
    return entry, config


def seen(folder: Path, source: list[str], target: list[str], *pair: str) -> tuple[str, str] | None:
    return seen_languages(*entry_of(folder, source, target, (pair[0], pair[1])))


@pytest.mark.parametrize("code", [code for code in LANGUAGES if code != "en"])
def test_right_languages_pass_and_others_are_named(code: str, tmp_path: Path) -> None:
    english, other = SENTENCES["en"], SENTENCES[code]
    wrong = "de" if code != "de" else "fr"
    assert seen(tmp_path, english, other, "en", code) == ("en", code)
    assert seen(tmp_path, other, english, code, "en") == (code, "en")
    named = {"nb": "no"}.get(code, code)  # as py3langid names it
    assert seen(tmp_path, other, english, "en", code) == (code, "en")  # swapped
    assert seen(tmp_path, english, other, "en", wrong) == ("en", named)
    assert seen(tmp_path, english, other, wrong, "sw") == ("en", named)


@pytest.mark.parametrize(
    ("code", "label"),
    [("nb", "no"), ("nb", "nn"), ("zh", "zh-Hans"), ("pt", "pt-BR"), ("zh", "zho_Hans")],
)
def test_another_code_of_the_language_is_no_other_language(
    code: str, label: str, tmp_path: Path
) -> None:
    assert seen(tmp_path, SENTENCES["en"], SENTENCES[code], "en-GB", label) == ("en-GB", label)


SERBIAN = [
    "Otvorite prozor i sačekajte da se datoteka učita do kraja.",
    "Svaki red teksta mora imati svoj prevod na drugi jezik.",
    "Kliknite na dugme kada želite da sačuvate sve promene.",
    "Ova knjiga govori o životu u malom selu pored reke.",
    "Deca su celo popodne trčala po dvorištu iza kuće.",
]
"""Written for this test."""
CYRILLIC = str.maketrans("abcčdđefghijklmnoprsštuvzžOSKD", "абцчдђефгхијклмнопрсштувзжОСКД")
SCRIPTS = {
    "sr-Latn": SERBIAN * 6,
    "sr-Cyrl": [line.translate(CYRILLIC) for line in SERBIAN] * 6,
    "zh-Hans": ["请打开这个文件，然后选择要翻译的语言。"] * 30,
    "zh-Hant": ["請打開這個檔案，然後選擇要翻譯的語言。"] * 30,
    "az": ["Bütün insanlar ləyaqət və hüquqlarına görə azad və bərabər doğulurlar."] * 30,
    "hi": ["सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।"] * 30,
    "pa": ["ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ, ਸ਼ਾਨ ਅਤੇ ਹੱਕਾਂ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ।"] * 30,
    "mn": ["Хүн бүр төрж мэндлэхэд эрх чөлөөтэй, адилхан нэр төртэй байдаг."] * 30,
    "ja": ["すべての人間は、生まれながらにして自由であり、かつ、平等である。"] * 30,
    "ko": ["모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다."] * 30,
}


@pytest.mark.parametrize(
    ("code", "text", "label"),
    [
        *[("sr-Latn", "sr-Cyrl", "sr-Cyrl"), ("sr-Cyrl", "sr-Latn", "sr-Latn")],
        *[("zh-Hans", "zh-Hant", "zh-Hant"), ("zho_Hant", "zh-Hans", "zh-Hans")],
        *[("srp_Latn", "sr-Latn", "srp_Latn"), ("zh-Hant", "zh-Hant", "zh-Hant")],
        # These codes state no script, but have a likely one.
        *[("sr", "sr-Cyrl", "sr"), ("sr", "sr-Latn", "sr-Latn"), ("sr-RS", "sr-Latn", "sr-Latn")],
        *[("sh", "sr-Latn", "sh"), ("sh", "sr-Cyrl", "sr-Cyrl"), ("sr-ME", "sr-Latn", "sr-ME")],
        *[("sr-ME", "sr-Cyrl", "sr-Cyrl"), ("sr@latin", "sr-Cyrl", "sr-Cyrl")],
        *[("hr", "sr-Latn", "hr"), ("hr", "sr-Cyrl", "sr-Cyrl"), ("bs", "sr-Cyrl", "sr-Cyrl")],
        *[("zh", "zh-Hans", "zh"), ("zh", "zh-Hant", "zh-Hant"), ("zh-CN", "zh-Hant", "zh-Hant")],
        *[("zh-TW", "zh-Hant", "zh-TW"), ("zh-TW", "zh-Hans", "zh-Hans")],
        *[
            ("zh-HK", "zh-Hans", "zh-Hans"),
            ("yue", "zh-Hans", "zh-Hans"),
            ("zt", "zh-Hans", "zh-Hans"),
        ],
        *[("zho_Hani", "zh-Hans", "zho_Hani"), ("zho_Hani", "zh-Hant", "zho_Hani")],
        *[("hi-Latn", "hi", "hi-Deva"), ("hi", "hi", "hi"), ("pa-PK", "pa", "pa-Guru")],
        *[("az-Cyrl", "az", "az-Latn"), ("az", "az", "az"), ("mn-CN", "mn", "mn-Cyrl")],
        *[("ja", "ja", "ja"), ("ko", "ko", "ko"), ("ja-Latn", "ja", "ja-Hira")],
    ],
)
def test_the_script_of_a_code_is_part_of_the_language(
    code: str, text: str, label: str, tmp_path: Path
) -> None:
    english = (SENTENCES["en"] * 2)[:30]
    assert seen(tmp_path, english, SCRIPTS[text], "en", code) == ("en", label)
    assert seen(tmp_path, SCRIPTS[text], english, code, "en") == (label, "en")


@pytest.mark.parametrize("code", ["sr", "hr", "zh", "zh-TW", "yue", "uz", "hi", "mn"])
def test_text_of_no_language_has_no_script_of_one(code: str, tmp_path: Path) -> None:
    english = SENTENCES["en"] * 2
    for text in (CODE, LETTERS, NUMBERS, NAMES, sentences(300)[1]):
        found = seen(tmp_path, english, text[: len(english)], "en", code)
        of_latin = [("en", "und-Latn")] if with_script(code)[-4:] != "Latn" else []
        assert found in (None, ("en", code), *(of_latin if text is not CODE else []))


@pytest.mark.parametrize("code", ["ru", "zh", "be", "ky", "kk", "ka", "hi"])
def test_text_in_latin_letters_is_not_in_a_language_of_other_ones(
    code: str, tmp_path: Path
) -> None:
    """Whatever language it is: Kazakh and Belarusian in Latin letters scatter over many."""
    kazakh = [
        f"Barlyq adamdar tumysynan azat jane qadir-qasieti men quqyqtary ten bolyp {number} dunie"
        for number in range(30)
    ]
    entry, config = entry_of(tmp_path, (SENTENCES["en"] * 2)[:30], kazakh, ("en", code))
    wrong = find_wrong_languages({"train": [entry]}, config)
    assert wrong is not None
    assert "Latin" in wrong.problem
    assert "name the language that the text is in" in wrong.remedy or "-Latn" in wrong.remedy


@pytest.mark.parametrize("code", ["nan", "lad", "kaa", "hak", "mww"])
def test_languages_that_cannot_be_identified_may_be_in_latin_letters(
    code: str, tmp_path: Path
) -> None:
    """CLDR has another likely script for them than many of their texts."""
    words = [f"Lâng lâng seng-lâi pêng-téng tsū-iû {n} chun-giâm khoân-lī" for n in range(30)]
    assert seen(tmp_path, (SENTENCES["en"] * 2)[:30], words, "en", code) == ("en", code)


@pytest.mark.parametrize(("code", "other"), [("sr-Latn", "sr-Cyrl"), ("zh-Hans", "zh-Hant")])
def test_a_side_in_both_scripts_is_not_refused(code: str, other: str, tmp_path: Path) -> None:
    english = (SENTENCES["en"] * 2)[:30]
    text = SCRIPTS[code][:5] + SCRIPTS[other][:25]
    assert seen(tmp_path, english, text, "en", code) == ("en", code)


def test_lines_that_do_not_show_a_script_do_not_hide_the_others(tmp_path: Path) -> None:
    english = (SENTENCES["en"] * 2)[:30]
    text = ["我在家中吃中午的大米和牛肉"] * 8 + SCRIPTS["zh-Hant"][8:]
    assert seen(tmp_path, english, text, "en", "zh") == ("en", "zh-Hant")


def test_another_script_is_named_with_the_code_to_write(tmp_path: Path) -> None:
    english = (SENTENCES["en"] * 2)[:30]
    entry, config = entry_of(tmp_path, english, SCRIPTS["zh-Hant"], ("en", "zh-CN"))
    wrong = find_wrong_languages({"train": [entry]}, config)
    assert wrong is not None
    assert "Chinese (Traditional) (zh-Hant)" in wrong.problem
    assert "the recipe says English (en) and Chinese (Simplified) (zh-CN)" in wrong.problem
    assert 'target_language = "zh-Hant"' in wrong.remedy


@pytest.mark.parametrize("text", ["sr-Latn", "zh-Hant"])
def test_the_remedy_for_another_language_names_its_script(text: str, tmp_path: Path) -> None:
    english = (SENTENCES["en"] * 2)[:30]
    entry, config = entry_of(tmp_path, english, SCRIPTS[text], ("en", "de"))
    wrong = find_wrong_languages({"train": [entry]}, config)
    assert wrong is not None
    (code,) = re.findall(r'target_language = "([^"]*)"', wrong.remedy)
    assert code in {"sr-Latn": ("sr-Latn", "hr", "bs")}.get(text, (text,))
    right = config.model_copy(update={"target_language": code})
    entries = Sources(right, downloads=tmp_path).entries
    assert find_wrong_languages({"train": entries["train"]}, right) is None


def test_a_file_that_names_its_languages_itself_keeps_the_name_of_the_recipe(
    tmp_path: Path,
) -> None:
    units = [
        f"<tu><tuv lang='en'><seg>{one}</seg></tuv><tuv lang='sr'><seg>{other}</seg></tuv></tu>"
        for one, other in zip(SENTENCES["en"] * 2, SCRIPTS["sr-Latn"], strict=False)
    ]
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{''.join(units)}</body></tmx>")
    config = CorpusConfig(
        folder=str(tmp_path),
        train=(TextFiles(tmx="a.tmx"),),
        source_language="en",
        target_language="sr",
        valid_pairs=2,
    )
    wrong = find_wrong_languages(Sources(config, downloads=tmp_path).entries, config)
    assert wrong is not None
    assert wrong.remedy.endswith(": languages en-sr-Latn; or leave the entry out")
    assert "check_languages = false" in wrong.remedy
    filtered = config.model_copy(
        update={"check_languages": False, "filters": FilterConfig(max_language_log_odds=1.5)}
    )
    with pytest.raises(CorpusError) as error:
        prepare(filtered, tmp_path / "shards", workers=1)
    assert error.value.remedy.endswith(": languages en-sr-Latn, or convert the text")
    assert "leave out corpus.filters.max_language_log_odds" in error.value.remedy
    assert "target_language" not in error.value.remedy


@pytest.mark.parametrize(
    ("code", "text", "label"),
    [
        *[("zh", "zh-Hant", "zh-Hant"), ("zh-TW", "zh-Hans", "zh-Hans")],
        *[("sr", "sr-Latn", "sr-Latn"), ("sr-ME", "sr-Cyrl", "sr-Cyrl")],
        ("hr", "sr-Cyrl", "sr-Cyrl"),
    ],
)
@pytest.mark.parametrize("others", [0, 5])
def test_a_language_filter_that_drops_another_script_names_it(
    code: str, text: str, label: str, others: int, tmp_path: Path
) -> None:
    own = {"zh": "zh-Hans", "zh-TW": "zh-Hant", "sr": "sr-Cyrl", "sr-ME": "sr-Latn"}.get(code)
    mine = [SCRIPTS[own or "sr-Latn"][number] + str(number) for number in range(others)]
    changes = {"check_languages": False, "filters": {"max_language_log_odds": 1.5}}
    english = [f"{line} {n}" for n, line in enumerate((SENTENCES["en"] * 2)[:30])]
    target = [*mine, *SCRIPTS[text]][:30]
    _, config = entry_of(
        tmp_path, english, target, ("en", code), subword={"vocab_size": 90}, **changes
    )
    with EventWriter(tmp_path / "events") as events, suppress(CorpusError):
        prepare(config, tmp_path / "shards", workers=1, events=events)
    alerts = [
        event.payload["cause"] + event.payload["remedy"]
        for event in read_events(tmp_path / "events" / "log.jsonl")
        if event.kind == Alert.kind
    ]
    if not others:
        with pytest.raises(CorpusError) as error:
            prepare(config, tmp_path / "shards", workers=1)
        alerts = [str(error.value)]
    assert len(alerts) == 1
    assert f'write target_language = "{label}"' in alerts[0]
    assert "loosen" not in alerts[0]


def test_of_two_close_languages_only_the_wrong_side_is_named(tmp_path: Path) -> None:
    english, norwegian = SENTENCES["en"], SENTENCES["nb"]
    assert seen(tmp_path, norwegian, english, "nb", "nn") == ("nb", "en")
    assert seen(tmp_path, norwegian, NUMBERS[: len(norwegian)], "nb", "nn") in (None, ("nb", "nn"))


def test_a_language_that_cannot_be_identified_is_judged_only_if_sides_are_swapped(
    tmp_path: Path,
) -> None:
    english, polish = SENTENCES["en"], SENTENCES["pl"]
    assert seen(tmp_path, english, polish, "en", "hsb") == ("en", "hsb")
    assert seen(tmp_path, polish, english, "en", "hsb") == ("pl", "en")


def mixed(first: list[str], second: list[str]) -> list[str]:
    """Every line has words of both texts in turn."""
    lines = []
    for one, other in zip(first, second, strict=True):
        words, others = one.split(), other.split()
        lines.append(" ".join(w for pair in zip(words, others, strict=False) for w in pair))
    return lines


NUMBERS = [f"{n * 7919 % 10_007}\t {n}.{n % 13} % ({n})".replace("\t", "") for n in range(300)]
CODE = [
    f"for (int i{n} = {n}; i{n} < x.size(); ++i{n}) sum += f(x[i{n}], &y{n});" for n in range(300)
]
LETTERS = ["".join(random.Random(n).choices("abcdefghijklmnop ", k=60)) for n in range(300)]
NAMES = [f"Anna {n}, Otto {n}" for n in range(300)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (sentences(300)[0], sentences(300)[1]),
        (NUMBERS, NUMBERS[::-1]),
        (CODE, CODE[::-1]),
        (LETTERS, LETTERS[::-1]),
        (NAMES, NAMES[::-1]),
        (SENTENCES["en"][:10], SENTENCES["fr"][:10]),  # too few lines to say
        (mixed(SENTENCES["en"], SENTENCES["de"]), SENTENCES["de"]),
        (
            [f"<2de> <b>{one}</b>" for one in SENTENCES["en"]],
            [f"<i>{x}</i>" for x in SENTENCES["de"]],
        ),
        (SENTENCES["fr"], SENTENCES["fr"]),  # copies, which people add on purpose
        (["", *SENTENCES["en"]], ["", *SENTENCES["de"]]),
    ],
    ids=[
        "made up",
        "numbers",
        "code",
        "letters",
        "names",
        "few",
        "mixed",
        "tagged",
        "copies",
        "gap",
    ],
)
def test_text_of_no_clear_language_is_not_refused(
    source: list[str], target: list[str], tmp_path: Path
) -> None:
    assert seen(tmp_path, source, target, "en", "de") in (None, ("en", "de"))


def test_real_text_of_the_demo_passes(tmp_path: Path) -> None:
    english, german = real_lines("train", "en")[:3000], real_lines("train", "de")[:3000]
    assert seen(tmp_path, english, german, "en", "de") == ("en", "de")
    assert seen(tmp_path, german, english, "en", "de") == ("de", "en")


def test_preparing_wrong_languages_stops_and_names_both(tmp_path: Path) -> None:
    _, config = entry_of(tmp_path, SENTENCES["en"], SENTENCES["fr"], ("en", "de"))
    with pytest.raises(CorpusError) as error:
        prepare(config, tmp_path / "shards", workers=1)
    assert error.value.place == "corpus.train[0]"
    for words in ("source looks like English (en)", "target like French (fr)", "German (de)"):
        assert words in error.value.problem
    assert 'target_language = "fr"' in error.value.remedy
    assert not (tmp_path / "shards" / "manifest.json").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_check_is_for_every_entry_and_split(workers: int, tmp_path: Path) -> None:
    pairs = {"a": ("en", "de"), "b": ("en", "de"), "c": ("de", "en")}
    entries = {}
    for name, (source, target) in pairs.items():
        write_lines(tmp_path / f"{name}.en", SENTENCES[source])
        write_lines(tmp_path / f"{name}.de", SENTENCES[target])
        entries[name] = TextFiles(source=f"{name}.en", target=f"{name}.de")
    config = CorpusConfig(
        folder=str(tmp_path),
        train=(entries["a"], entries["b"]),
        valid=(entries["c"],),
    )
    with pytest.raises(CorpusError, match=r"^corpus\.valid\[0\].*swap source and target") as error:
        prepare(config, tmp_path / "shards", workers=workers)
    assert error.value.place == "corpus.valid[0]"
    right = config.model_copy(update={"valid": (entries["b"],)})
    assert find_wrong_languages(Sources(right, downloads=tmp_path).entries, right) is None


def test_a_recipe_can_insist(tmp_path: Path) -> None:
    more = {"check_languages": False, "subword": {"vocab_size": 60, "kind": "bpe"}}
    _, config = entry_of(tmp_path, SENTENCES["en"], SENTENCES["fr"], ("en", "de"), **more)
    assert prepare(config, tmp_path / "shards", workers=1).train.pairs > 0


def test_a_language_filter_that_drops_most_says_what_it_saw(
    tmp_path: Path,
) -> None:
    languages = {"check_languages": False, "filters": {"max_language_log_odds": 1.5}}
    english, french = SENTENCES["en"], SENTENCES["fr"]
    _, config = entry_of(tmp_path, english, french, ("en", "de"), **languages)
    with pytest.raises(CorpusError) as error:
        prepare(config, tmp_path / "shards", workers=1)
    assert "target fr " in str(error.value)
    german = SENTENCES["de"][: len(french) // 3]
    more = {**languages, "subword": {"vocab_size": 90, "kind": "bpe"}}
    source, target = [*english, *english[: len(german)]], [*french, *german]
    _, config = entry_of(tmp_path, source, target, ("en", "de"), **more)
    with EventWriter(tmp_path / "events") as events:
        prepare(config, tmp_path / "most", workers=1, events=events)
    written = read_events(tmp_path / "events" / "log.jsonl")
    causes = [event.payload["cause"] for event in written if event.kind == Alert.kind]
    said = [cause for cause in causes if "the language filter drops" in cause]
    assert len(said) == 1
    assert "target fr " in said[0]


def test_the_sentences_are_parallel() -> None:
    assert len({len(lines) for lines in SENTENCES.values()}) == 1
