"""mtdata's index without its pickle, and the lines of an index of strangers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.corpus.catalogue import Catalogue, Downloads
from dragoman.corpus.fetched import fetch_monolingual
from mirror import add_three_corpora, corpus_mirror


def lines(folder: Path, *entries: dict[str, Any]) -> Catalogue:
    index = folder / "index.jsonl"
    index.write_text("".join(f"{json.dumps(one)}\n" for one in entries))
    return Catalogue(index)


def entry(did: str, **more: Any) -> dict[str, Any]:
    return {"did": did, "url": f"https://example.org/{did}", "ext": "tmx"} | more


@pytest.mark.system
def test_the_index_is_made_without_a_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtdata import __version__

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "exploded",)

    monkeypatch.setenv("MTDATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    planted = tmp_path / f"mtdata.index.{__version__}.pkl"
    planted.write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "mtdata_mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    found = Catalogue().of_pair("en", "de")
    assert len(found) > 200
    assert {"Statmt-europarl-10-deu-eng", "OPUS-europarl-v8-deu-eng"} <= {x.did for x in found}
    assert any(one.licence for one in found)
    assert len(Catalogue().of_language("de")) > 20
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {planted.name, "mtdata_mine.py", f"dragoman.index.{__version__}.jsonl"}


def test_corpora_of_a_pair_are_those_of_either_order_and_region(tmp_path: Path) -> None:
    catalogue = lines(
        tmp_path,
        entry("A-b-1-eng-deu"),
        entry("A-c-1-deu-eng"),
        entry("A-d-1-eng_GB-deu"),
        entry("A-e-1-eng-fra"),
        entry("A-f-1-deu"),
        entry("A-g-1-deu-deu"),
    )
    assert [one.did[2] for one in catalogue.of_pair("en", "de")] == ["b", "c", "d"]
    assert [one.did[2] for one in catalogue.of_language("de")] == ["f"]
    assert catalogue.of_pair("en", "is") == []


FORMS = {
    ("en", "no"): (["nob-eng", "eng-nor", "eng-nob_NO"], ["eng-nno", "eng-dan"], []),
    ("nob_Latn", "eng"): (["nob-eng", "eng-nor"], ["eng-nno"], []),
    ("en", "zh"): (["eng-zho", "eng-zho_CN"], ["eng-yue"], ["eng-zho_Hant", "zho_TW-eng"]),
    ("en", "zh_TW"): (["zho_Hant-eng", "eng-zho_TW"], [], ["eng-zho", "eng-zho_CN", "eng-zho_HK"]),
    ("sr_Latn", "en"): (["eng-srp_Latn"], ["eng-hrv"], ["eng-srp", "srp_Cyrl-eng"]),
    ("pt_BR", "en"): (["eng-por_BR", "por-eng"], [], ["eng-por_PT"]),
    ("pt", "en"): (["eng-por_BR", "por-eng", "por_PT-eng"], [], []),
    ("en", "he"): (["eng-heb"], ["eng-yid"], []),
    ("fa", "en"): (["pes-eng", "fas-eng"], ["eng-tgk"], []),
    ("ar", "en"): (["arb-eng", "eng-ara_EG"], ["arz-eng"], []),
    ("hi", "en"): (["eng-hin"], ["eng-urd"], ["eng-hin_Latn"]),
    ("ko", "en"): (["eng-kor"], ["jpn-eng"], []),
    ("mn", "en"): (["khk-eng", "eng-mon"], [], ["eng-mon_Mong"]),
    ("lv", "en"): (["lvs-eng", "eng-lav"], ["eng-ltg"], []),
    ("my", "km"): (["khm-mya"], ["eng-mya"], []),
    ("el", "ka"): (["kat-ell"], ["kat-grc"], []),
}
"""Pairs, the languages of corpora that are theirs, of others, and of another script or region."""


@pytest.mark.parametrize("pair", FORMS)
def test_corpora_are_found_by_any_code_and_other_forms_are_counted(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    theirs, others, forms = FORMS[pair]
    ids = [f"A-b-1-{languages}" for languages in (*theirs, *others, *forms)]
    catalogue = lines(tmp_path, *(entry(one) for one in ids), entry("A-b-1-eng"))
    assert [one.did for one in catalogue.of_pair(*pair)] == ids[: len(theirs)]
    assert sorted(catalogue.other_forms(*pair)) == sorted(forms)
    for did in ids:
        if did in ids[: len(theirs)]:
            _, swapped = catalogue.find(did, source_language=pair[0], target_language=pair[1])
            back = catalogue.find(did, source_language=pair[1], target_language=pair[0])
            assert back[1] is not swapped
        else:
            with pytest.raises(ConfigError, match="is not a corpus of"):
                catalogue.find(did, source_language=pair[0], target_language=pair[1])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (entry("A-b-1-eng-deu", url="file:///etc/passwd"), "not a web address"),
        (entry("../../x-b-1-eng-deu"), "String should match"),
        (entry("A-B*-1-eng-deu"), "lower cased"),
        ({"did": "A-b-1-eng-deu"}, "Field required"),
    ],
)
def test_a_line_of_a_stranger_is_refused_in_one_line(
    line: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=rf"jsonl:1: is not an entry of .*{problem}") as error:
        lines(tmp_path, line).of_pair("en", "de")
    assert "\n" not in str(error.value)


def test_a_download_stays_in_its_folder_under_any_name(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path)
    for url, name in (("http://x/a", "../../up"), ("http://x/..", None), ("http://../x/", "/etc")):
        place = downloads.place(url, name)
        assert place.resolve().is_relative_to(tmp_path.resolve())


def test_text_of_one_language_is_fetched_once(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        add_three_corpora(mirror, 10)
        text = "Ein Satz.\nNoch ein Satz.\n"
        mirror.add("Local-news-1-deu", "/news.de.txt", text.encode(), ext="txt", in_ext="txt")
        index = tmp_path / "index.jsonl"
        index.write_bytes(mirror.index())
        for _ in range(2):
            path = fetch_monolingual("Local-news-1-deu", tmp_path / "d", language="de", index=index)
            assert path.read_text() == text
        assert mirror.gets["/news.de.txt"] == 1
