"""The files that a plan of a build reads and writes."""

from __future__ import annotations

from pathlib import Path

from dragoman.builds.corpora import Corpus
from dragoman.builds.planning import index_file, save_corpora
from dragoman.corpus.catalogue import Listing
from mirror import corpus_mirror


def test_each_address_of_an_index_has_its_own_file(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        mirror.files |= {"/one": b"one", "/two": b"two"}
        for _ in range(2):
            files = [index_file(mirror.url(path), tmp_path) for path in ("/one", "/two")]
            assert [file.read_bytes() for file in files if file] == [b"one", b"two"]
        assert mirror.gets == {"/one": 1, "/two": 1}
    assert index_file("", tmp_path) is None
    assert index_file("my.jsonl", tmp_path) == Path("my.jsonl")


def test_a_table_of_corpora_cannot_steer_a_terminal(tmp_path: Path) -> None:
    url = "https://example.org/\x1b[31mred"
    listing = Listing(did="A-b-1-eng-deu", url=(url,), ext="txt", meta={"licence": "CC\x070"})
    save_corpora([Corpus(listing, 5, 1, why="small\tand\nnew")], tmp_path)
    line = (tmp_path / "corpora.tsv").read_text().splitlines()[1]
    row = ("A-b-1-eng-deu", "", "5", "1", "CC�0", "https://example.org/�[31mred", "small and new")
    assert line == "\t".join(row)
