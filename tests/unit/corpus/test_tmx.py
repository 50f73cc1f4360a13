"""Translation memories, good and hostile."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.prepare import prepare
from dragoman.corpus.tmx import TmxReader
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
        r"a <tu> in it lies in a <seg>, but <tu> holds <tuv>, which holds <seg> \(line 3\)",
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
        {"folder": str(path.parent), "train": [{"tmx": "a.tmx"}], "subword": {"vocab_size": 300}}
    )
    manifest = prepare(config, path.parent / "prepared", workers=1)
    assert manifest.train.pairs_in == 501
    assert manifest.train.pairs > 480
    first = read_rejected(path.parent / "prepared", "train")[0]
    assert first == ("empty", 1.0, "a.tmx", 8, "alone", "")
