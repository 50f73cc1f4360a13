"""Translation memories, good and hostile."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError
from dragoman.base.languages import parse_language, with_script
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.prepare import prepare
from dragoman.corpus.tmx import TmxReader
from dragoman.telemetry.events import Alert, EventWriter, read_events
from real_text import real_lines
from rejected_pairs import read_rejected

LANGUAGES = ("en", "de")
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'


def unit(english: str, german: str, attribute: str = "xml:lang") -> str:
    return (
        f'<tu><tuv {attribute}="en"><seg>{english}</seg></tuv>\n'
        f'<tuv {attribute}="de"><seg>{german}</seg></tuv></tu>\n'
    )


def lines(path: Path, text: str | bytes) -> list[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TmxReader(path, LANGUAGES).take(1000)[0].decode().splitlines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tmx"


def test_units_become_lines_without_codes_and_line_ends(path: Path) -> None:
    text = HEAD + unit(
        'Press <bpt i="1">&lt;b&gt;</bpt>Start<ept i="1">&lt;/b&gt;</ept>\n\tnow '
        "<hi>please</hi> &amp; go",
        "Drücke <ph><sub>verborgen</sub></ph>Start",
    )
    assert lines(path, text + "</body></tmx>") == ["Press Start now please & go\tDrücke Start"]


def test_languages_are_found_by_their_codes_in_any_form(path: Path) -> None:
    text = HEAD + unit("a", "b", "lang") + "<tu><prop>x</prop>"
    for code, segment in (
        ("DE-at", "Jänner"),
        ("fr", "janvier"),
        ("en_GB", "January"),
        ("de", "Januar"),
    ):
        text += f'<tuv xml:lang="{code}"><note>n</note><seg>{segment}</seg></tuv>'
    assert lines(path, text + "</tu><tu/></body></tmx>") == ["a\tb", "January\tJanuar", "\t"]


def test_elements_may_have_the_prefix_of_a_namespace(path: Path) -> None:
    text = (HEAD + unit("a", "b") + "</body></tmx>").replace("<tmx ", '<tmx xmlns:t="urn:x" ')
    for name in ("tu", "tuv", "seg"):
        text = text.replace(f"<{name}>", f"<t:{name}>").replace(f"</{name}>", f"</t:{name}>")
    assert lines(path, text.replace("<tuv ", "<t:tuv ")) == ["a\tb"]


@pytest.mark.parametrize("wanted", ["pt-BR", "pt_br", "PT-br"])
@pytest.mark.parametrize("written", ["pt-BR", "pt_BR", "pt-br"])
def test_the_region_that_is_asked_for_is_found_in_any_form(
    path: Path, wanted: str, written: str
) -> None:
    text = f'{HEAD}<tu><tuv xml:lang="EN"><seg>bus</seg></tuv>'
    for code, segment in (("pt-PT", "autocarro"), (written, "ônibus")):
        text += f'<tuv xml:lang="{code}"><seg>{segment}</seg></tuv>'
    path.write_text(f"{text}</tu></body></tmx>", "utf-8")
    assert TmxReader(path, ("en", wanted)).take(10)[0].decode() == "bus\tônibus\n"


def test_utf_16_and_a_reference_to_a_dtd_are_read(path: Path) -> None:
    text = HEAD.replace("UTF-8", "UTF-16").replace("<tmx", '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx')
    assert lines(path, (text + unit("a&nbsp;b", "ü") + "</body></tmx>").encode("utf-16")) == [
        "a b\tü"
    ]


def test_text_between_units_is_ignored(path: Path) -> None:
    between = "\n" * (3 << 20) + f"<note>{'n' * (3 << 20)}</note>"
    assert lines(path, HEAD + between + unit("a", "b") + between + "</body></tmx>") == ["a\tb"]


def test_the_last_of_many_languages_is_found(path: Path) -> None:
    codes = [f"q{first}{second}" for first in "abcdefghijk" for second in "abcdefghijk"]
    variants = "".join(
        f"<tuv xml:lang='{code}'><seg>x</seg></tuv>" for code in [*codes, *LANGUAGES]
    )
    assert lines(path, f"{HEAD}<tu>{variants}</tu></body></tmx>") == ["x\tx"]


HOSTILE = {
    "entities": (
        '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><tmx><body><tu/></body></tmx>',
        "declares elements or entities of its own",
    ),
    "files": (
        '<!DOCTYPE tmx [<!ENTITY f SYSTEM "file:///etc/passwd">]><tmx>&f;</tmx>',
        "declares elements or entities of its own",
    ),
    "depth": ("<tmx>" + "<x>" * 1000, "nested more than 64 deep"),
    "a long tag": ('<tmx a="' + "x" * (17 << 20), "a tag in it is longer than 16 MiB"),
    "a long segment": (HEAD + "<tu><tuv><seg>" + "x " * (3 << 20), "unit in it has over"),
    "units in a segment": (
        HEAD + unit("a" * 100_000, "<tu/>" * 50_000).replace("\n", "") + "</body></tmx>",
        "has no segments in 'de', but in en",
    ),
    "a unit in a code": (HEAD + unit("a", "b<ph><tu/></ph>"), "a <tu> in it lies in a <seg>"),
    "a segment in a segment": (
        HEAD + unit("one<seg>two</seg>three", "z"),
        "a <seg> in it lies in a <seg>",
    ),
    "a unit in a unit": (HEAD + "<tu><tu/></tu>", "a <tu> in it lies in a <tu>"),
    "a segment in no unit": (HEAD + "<seg>a</seg>", "a <seg> in it lies in no <tu>"),
    "many names of elements": (
        HEAD + "".join(f"<a{number}/>" for number in range(1_000_000)),
        "more than 10000 different names of elements",
    ),
    "many names of attributes": (
        HEAD + "".join(f"<tu a{number}=''/>" for number in range(200_000)),
        "more than 10000 different names of elements",
    ),
    "many variants": (
        f"{HEAD}<tu>" + "".join(f"<tuv lang='{n}'><seg/></tuv>" for n in range(500_000)),
        "a translation unit in it has over 1000 segments",
    ),
    "torn": (HEAD + unit("a", "b"), r"is not XML that can be read: no element found: line"),
    "no XML": ("Dear Sir or Madam", "is not XML that can be read: syntax error"),
    "an unknown encoding": ('<?xml version="1.0" encoding="klingon"?><tmx/>', "is not XML"),
    "other languages": (
        HEAD + "<tu><tuv xml:lang='fr'><seg>a</seg></tuv></tu></body></tmx>",
        "has no segments in 'en', but in fr",
    ),
}


@pytest.mark.system
@pytest.mark.parametrize("kind", HOSTILE)
def test_bad_translation_memories_are_refused_in_bounded_memory(kind: str, path: Path) -> None:
    text, problem = HOSTILE[kind]
    path.write_text(text, "utf-8")
    reader = TmxReader(path, LANGUAGES)
    del text
    tracemalloc.start()
    with pytest.raises(CorpusError, match=rf"a\.tmx: .*{problem}"):
        list(iter(lambda: reader.take(1000)[1], 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20


def test_a_corpus_is_prepared_of_one(path: Path) -> None:
    english, german = real_lines("valid", "en"), real_lines("valid", "de")
    units = [
        unit(*(side.replace("&", "&amp;").replace("<", "&lt;") for side in sides))
        for sides in zip(english, german, strict=True)
    ]
    units.insert(7, "<tu><tuv xml:lang='en'><seg>alone</seg></tuv></tu>")
    path.write_bytes(gzip.compress((HEAD + "".join(units) + "</body></tmx>").encode()))
    config = CorpusConfig.model_validate(
        {
            **{"folder": str(path.parent), "source_language": "en", "target_language": "de"},
            **{"train": [{"tmx": "a.tmx"}], "subword": {"vocab_size": 300}},
        }
    )
    manifest = prepare(config, path.parent / "prepared", workers=1)
    assert manifest.train.pairs_in == 501
    assert manifest.train.pairs > 480
    first = read_rejected(path.parent / "prepared", "train")[0]
    assert first == ("empty", 1.0, "a.tmx", 8, "alone", "")


SIDES = {
    "en": "a house", "de": "ein Haus", "sr-Cyrl": "кућа", "sr-Latn": "kuća", "el": "σπίτι",
    "hi": "घर", "ar": "بيت", "he": "בית", "ka": "სახლი", "zh": "房子", "zh-TW": "房屋",
    "ja": "家", "ko": "집", "th": "บ้าน", "km": "ផ្ទះ", "my": "အိမ်", "am": "ቤት", "pt-BR": "casa",
}  # fmt: skip


def of(**sides: str) -> str:
    """A unit; the codes have underscores for hyphens."""
    variants = "".join(
        f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>\n'
        for code, text in sides.items()
    )
    return f"<tu>\n{variants}</tu>\n"


def read(path: Path, text: str | bytes, *languages: str) -> tuple[list[str], dict[str, int]]:
    """The lines of a file, and the regions that stood in."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = TmxReader(path, (languages[0], languages[1]))
    lines = reader.take(100_000)[0].decode().splitlines()
    return lines, reader.facts().regions


@pytest.mark.parametrize("language", [code for code in SIDES if code != "en"])
def test_a_unit_of_any_language_is_read(language: str, path: Path) -> None:
    text = HEAD + of(**{"en": SIDES["en"], language.replace("-", "_"): SIDES[language]}) * 3
    found, regions = read(path, text + "</body></tmx>", "EN", language.replace("-", "_"))
    assert found == [f"a house\t{SIDES[language]}"] * 3
    assert not regions


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ("sr-Latn", "sr-Cyrl"),
        ("sr-Latn", "sr"),
        ("zh", "zh-TW"),
        ("zh-TW", "zh-CN"),
        ("uz", "uz-Cyrl"),
        ("kk", "kk-Arab"),
        ("ja", "ja-Latn"),
        ("pa", "pa-PK"),
        ("az-Cyrl", "az"),
        ("hi", "hi-Latn"),
        ("nb", "nn"),
        ("zh", "yue"),
        ("ks-Deva", "ks-Arab"),
    ],
)
def test_another_script_is_another_language(wanted: str, there: str, path: Path) -> None:
    text = HEAD + of(**{"en": "a", there.replace("-", "_"): "x"}) * 3 + "</body></tmx>"
    with pytest.raises(CorpusError, match=f"has no segments in '{wanted}', but in .*{there}"):
        read(path, text, "en", wanted)
    both = of(**{"en": "b", there.replace("-", "_"): "x", wanted.replace("-", "_"): "y"})
    found, regions = read(path, text.replace("</body>", both + "</body>"), "en", wanted)
    is_same = parse_language(there).language == parse_language(wanted).language
    left_out = f"other_script_{with_script(there)} x" if is_same else "a\t"
    assert (found, regions) == ([left_out] * 3 + ["b\ty"], {})


def test_a_unit_that_lacks_one_of_two_scripts_is_a_unit_without_that_side(path: Path) -> None:
    text = HEAD + of(sr_Cyrl="x") + of(sr_Cyrl="x", sr_Latn="y") + "</body></tmx>"
    assert read(path, text, "sr-Latn", "sr")[0] == ["\tx", "y\tx"]


def test_units_that_have_another_script_alone_have_a_reason_that_names_it(path: Path) -> None:
    english, german = real_lines("valid", "en")[:300], real_lines("valid", "de")[:300]
    sides = [
        [side.replace("&", "&amp;").replace("<", "&lt;") for side in pair]
        for pair in zip(english, german, strict=True)
    ]
    units = [of(en=one, sr_Latn=other) for one, other in sides[:100]]
    units += [of(en=one, sr_Cyrl="кућа") for one, _ in sides[100:]]
    path.write_text(HEAD + "".join(units) + "</body></tmx>")
    config = CorpusConfig.model_validate(
        {
            **{"folder": str(path.parent), "check_languages": False},
            **{"source_language": "en", "target_language": "sr-Latn", "valid_pairs": 2},
            **{"train": [{"tmx": "a.tmx"}], "subword": {"vocab_size": 300}},
        }
    )
    with EventWriter(path.parent / "events") as events:
        manifest = prepare(config, path.parent / "prepared", workers=1, events=events)
    assert manifest.train.dropped["other_script_sr-Cyrl"] == 200
    assert "empty" not in manifest.train.dropped
    first = read_rejected(path.parent / "prepared", "train")[0]
    assert first == ("other_script_sr-Cyrl", 1.0, "a.tmx", 101, "other_script_sr-Cyrl кућа", "")
    written = read_events(path.parent / "events" / "log.jsonl")
    (alert,) = [one.payload for one in written if one.kind == Alert.kind]
    assert "other script sr-Cyrl 200" in alert["cause"]
    assert "write sr-Cyrl in place of sr-Latn" in alert["remedy"]
    assert "loosen" not in alert["remedy"]


def test_another_region_is_taken_if_the_exact_one_is_missing_and_counted(path: Path) -> None:
    text = HEAD + of(en_US="a", pt_PT="p") * 3 + of(en_GB="b", pt_PT="p", pt_BR="q")
    text += of(en="c", pt="r", pt_PT="p") + "</body></tmx>"
    found, regions = read(path, text, "en", "pt-BR")
    assert found == ["a\tp"] * 3 + ["b\tq", "c\tr"]
    assert regions == {
        "en-US for en": 3,
        "en-GB for en": 1,
        "pt-PT for pt-BR": 3,
        "pt for pt-BR": 1,
    }


def test_codes_of_one_language_are_read_as_one(path: Path) -> None:
    text = HEAD + of(ENG="a", nob_NO="b") + of(en="c", nb="d") + of(en="e", no="f")
    found, _ = read(path, text + "</body></tmx>", "eng_Latn", "nb")
    assert found == ["a\tb", "c\td", "e\tf"]


def test_a_variant_without_a_segment_is_named_as_that(path: Path) -> None:
    bare = "<tu><tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'></tuv></tu>"
    text = HEAD + of(en="b", de="c") + bare + "</body></tmx>"
    assert lines(path, text) == ["b\tc", "a <tuv> in 'de' has no <seg>"]
    path.write_text(f"{HEAD}{bare * 5}</body></tmx>")
    config = CorpusConfig.model_validate(
        {
            **{"folder": str(path.parent), "source_language": "en", "target_language": "de"},
            **{"train": [{"tmx": "a.tmx"}], "subword": {"vocab_size": 300}},
        }
    )
    with pytest.raises(CorpusError, match=r"a\.tmx: has <tuv> in 'de' without a <seg>"):
        prepare(config, path.parent / "prepared", workers=1)
    path.write_text(f"{HEAD}{of(en='b', de='c') * 9}{bare}</body></tmx>")
    with pytest.raises(CorpusError, match=r"a\.tmx: a <tuv> in 'de' has no <seg>; export"):
        prepare(config, path.parent / "prepared", workers=1)


GOOD = of(en="good", de="gut")
DAMAGE = {
    "a control character": of(en="a\x02b", de="c"),
    "a form feed": of(en="a\x0cb", de="c"),
    "an entity of a control character": of(en="a&#x1F;b", de="c"),
    "an entity of NUL": of(en="a&#0;b", de="c"),
    "an entity of half a character": of(en="a&#xD800;b", de="c"),
    "a bare ampersand": of(en="Q & A", de="c"),
    "a bare less-than sign": of(en="1 < 2", de="c"),
    "an unknown entity": of(en="a&euro;b", de="c"),
    "a half entity": of(en="a&amp b", de="c"),
    "bytes that are not UTF-8": of(en="a", de="BYTES"),
    "a character that XML forbids": of(en="a\uffffb", de="c"),
    "an unclosed segment": of(en="a", de="b").replace("</seg>", "", 1),
    "an unclosed variant": of(en="a", de="b").replace("</tuv>", "", 1),
    "an unclosed unit": of(en="a", de="b").replace("</tu>", "", 1),
    "tags that cross": of(en="<b>a<i></b></i>", de="b"),
    "a damaged tag": of(en="a", de="b").replace('xml:lang="en"', "xml:lang=en"),
    "a damaged tag of a unit": of(en="a", de="b").replace("<tu>", "<tu creationid=>"),
    "an open quote": of(en="a", de="b").replace('"en"', '"en'),
    "an attribute twice": of(en="a", de="b").replace('"en"', '"en" xml:lang="en"'),
    "a unit in a unit": f"<tu>{of(en='a', de='b')}".replace("</tu>", "", 1),
    "a comment that is none": of(en="a<!-- -- -->", de="b"),
    "a closing tag too many": of(en="a</i>", de="b"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("place", ["first", "in between", "last"])
def test_a_damaged_unit_is_left_out_with_a_reason(
    kind: str, encoding: str, place: str, path: Path
) -> None:
    if kind == "bytes that are not UTF-8" and encoding == "utf-16":
        pytest.skip("there are none in UTF-16")
    before, after = {"first": (1, 300), "in between": (150, 151), "last": (300, 0)}[place]
    text = HEAD.replace("UTF-8", encoding) + GOOD * before + DAMAGE[kind] + GOOD * after
    content = (text + "</body></tmx>").encode(encoding).replace(b"BYTES", b"\xff\xfe\x80")
    found, _ = read(path, content, "en", "de")
    line = text[: text.index(DAMAGE[kind])].count("\n") + 1
    bad = [one for one in found if "\t" not in one]
    # A unit in which a unit begins is the damaged one; the inner one can be read.
    inner = ["a\tb"] * (kind == "a unit in a unit")
    assert [one for one in found if one not in bad] in (
        ["good\tgut"] * (before + after),
        ["good\tgut"] * before + inner + ["good\tgut"] * after,
        ["good\tgut"] * (before + after - 1),  # it was taken in by the damage
    )
    assert 1 <= len(bad) <= 2
    assert any(bad[0].startswith(f"line {line + more}: ") for more in range(8)), bad


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "windows-1252", "utf-16"])
def test_reading_goes_on_in_the_encoding_of_the_file(encoding: str, path: Path) -> None:
    text = HEAD.replace("UTF-8", encoding) + of(en="a\x01", de="b") + of(en="é", de="ü")
    found, _ = read(path, (text + "</body></tmx>").encode(encoding), "en", "de")
    assert found[1:] == ["é\tü"]


def test_reading_goes_on_in_another_piece_and_with_namespaces(path: Path) -> None:
    filler = "x" * 1000
    units = [of(en=f"a{number}", de=filler) for number in range(2000)]
    units[500] = of(en="\x01", de="b") + f"<!--{filler * 600}-->"
    text = "".join(units).replace("<tu", "<x:tu").replace("</tu", "</x:tu")
    text = text.replace("<seg", "<x:seg").replace("</seg", "</x:seg")
    found, _ = read(path, f"<x:tmx><x:body>{text}</x:body></x:tmx>", "en", "de")
    assert [one.split("\t")[0] for one in found if "\t" in one] == [
        f"a{number}" for number in range(2000) if number != 500
    ]


def test_entities_of_the_standard_stay_known_after_damage(path: Path) -> None:
    head = HEAD.replace("<tmx", '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx')
    text = head + of(en="\x01", de="b") + of(en="a&nbsp;b", de="c") + "</body></tmx>"
    assert lines(path, text)[1:] == ["a b\tc"]


@pytest.mark.parametrize("end", ["", "</body>", "<tu><tuv xml:lang='en'><se", "<tu><tuv", "<!--"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_that_is_cut_off_is_refused(end: str, damaged: bool, path: Path) -> None:
    text = HEAD + GOOD * 200 + of(en="\x01", de="b") * damaged + end
    path.write_text(text)
    reader = TmxReader(path, LANGUAGES)
    with pytest.raises(CorpusError, match=r"a\.tmx: .*(no element|unclosed token|is cut off)"):
        list(iter(lambda: reader.take(1000)[1], 0))


def test_one_damaged_unit_in_a_hundred_is_dropped_and_more_are_refused(path: Path) -> None:
    english, german = real_lines("valid", "en")[:300], real_lines("valid", "de")[:300]
    units = [
        of(**dict(zip(LANGUAGES, (side.replace("&", "&amp;") for side in sides), strict=True)))
        for sides in zip(english, german, strict=True)
    ]
    units.insert(7, of(en="a\x02", de="b"))
    path.write_text(HEAD + "".join(units) + "</body></tmx>")
    config = CorpusConfig.model_validate(
        {
            **{"folder": str(path.parent), "source_language": "en", "target_language": "de"},
            **{"train": [{"tmx": "a.tmx"}], "subword": {"vocab_size": 300}},
        }
    )
    manifest = prepare(config, path.parent / "prepared", workers=1)
    assert manifest.train.dropped["damaged"] == 1
    (first,) = [
        one for one in read_rejected(path.parent / "prepared", "train") if one[0] == "damaged"
    ]
    assert first[2:5] == ("a.tmx", 8, "line 32: not well-formed (invalid token)")
    path.write_text(HEAD + "".join(units) + of(en="a\x02", de="b") * 3 + "</body></tmx>")
    with pytest.raises(CorpusError, match=r"a\.tmx: line 32: not well-formed .*; export the"):
        prepare(config, path.parent / "prepared", workers=1)


def test_a_file_of_damage_alone_takes_linear_time(path: Path) -> None:
    path.write_text(HEAD + of(en="a\x02", de="b") * 30_000 + "</body></tmx>")
    started = time.process_time()
    assert len(TmxReader(path, LANGUAGES).take(40_000)[0].splitlines()) == 30_000
    assert time.process_time() - started < 30
