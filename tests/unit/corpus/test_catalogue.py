"""mtdata's index without its pickle, and the lines of an index of strangers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import CorpusError
from dragoman.corpus.catalogue import Catalogue, Downloads
from dragoman.corpus.sources import fetch_monolingual
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
