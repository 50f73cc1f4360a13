"""Dev and test sets by name, from a server that sends what sacreBLEU's index says."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.dataset import DATASETS, base
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset
from sacrebleu.dataset.plain_text import PlainTextDataset

import dragoman
from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.corpus.named_sets import fetch_set
from dragoman.corpus.prepare import prepare
from dragoman.corpus.split import read_text
from parallel_text import small_corpus
from small_run import small_run

ENGLISH = ["A dog sleeps.", "Two  men talk .", "It rains."]
GERMAN = ["Ein Hund schläft.", "Zwei Männer reden.", "Es regnet."]
Known = Callable[..., list[str]]


def tarball(**members: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


def sgml(lines: list[str]) -> str:
    rows = (
        f'<seg id="{number}">{line.replace("&", "&amp;")}</seg>'
        for number, line in enumerate(lines)
    )
    return "<srcset><doc>\n" + "\n".join(rows) + "\n</doc></srcset>\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Known]:
    """Adds a set to sacreBLEU's index, whose archive a server on loopback sends."""
    files: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(files[self.path])))
            self.end_headers()
            self.wfile.write(files[self.path])

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(base, "SACREBLEU_DIR", str(tmp_path / "sacrebleu"))

    def add(
        kind: type[Any], content: bytes, pairs: dict[str, list[str]], *, md5: str = ""
    ) -> list[str]:
        files["/set.tar.gz"] = content
        url = f"http://127.0.0.1:{server.server_port}/set.tar.gz"
        digest = md5 or hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(
            DATASETS, "toy/2016", kind("toy/2016", data=[url], md5=[digest], langpairs=pairs)
        )
        return asked

    yield add
    server.shutdown()
    server.server_close()


def fetched(source: str = "en", target: str = "de") -> tuple[list[str], list[str]]:
    texts = fetch_set("toy/2016", source_language=source, target_language=target)
    first, second = (path.read_text("utf-8").splitlines() for path in texts)
    return first, second


def test_a_set_is_fetched_once_and_read_as_sacrebleu_reads_it(known: Known) -> None:
    content = tarball(src_en_sgm=sgml(ENGLISH), ref_de_sgm=sgml(GERMAN))
    asked = known(FakeSGMLDataset, content, {"en-de": ["src.en.sgm", "ref.de.sgm"]})
    clean = ["A dog sleeps.", "Two men talk .", "It rains."]
    assert fetched() == (clean, GERMAN)
    assert fetched() == (clean, GERMAN)
    assert asked == ["/set.tar.gz"]


def test_the_other_direction_and_other_spellings_are_the_same_set(known: Known) -> None:
    content = tarball(a_en="\n".join(ENGLISH) + "\n", a_de="\n".join(GERMAN) + "\n")
    known(PlainTextDataset, content, {"en-de": ["a.en", "a.de"]})
    sources, targets = fetched("deu", "en-GB")
    assert sources == GERMAN
    assert len(targets) == len(ENGLISH)


def test_a_file_with_another_digest_is_refused_and_removed(known: Known, tmp_path: Path) -> None:
    known(PlainTextDataset, tarball(a_en="x\n"), {"en-de": ["a.en", "a.de"]}, md5="0" * 32)
    with pytest.raises(CorpusError, match=r"set\.tar\.gz: is not the file that sacreBLEU knows"):
        fetched()
    assert not list(tmp_path.rglob("*.tar.gz"))


def test_what_nobody_knows_gets_the_nearest_names(known: Known) -> None:
    known(PlainTextDataset, tarball(a_en="x\n"), {"en-de": ["a.en", "a.de"]})
    with pytest.raises(ConfigError, match=r"no set 'wtm14'; did you mean wmt14"):
        fetch_set("wtm14", source_language="en", target_language="de")
    with pytest.raises(ConfigError, match=r"'toy/2016' is not in en and fr; .*en-de"):
        fetched("en", "fr")


def test_without_a_network_it_is_one_line(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    known(PlainTextDataset, tarball(a_en="x\n"), {"en-de": ["a.en", "a.de"]})
    DATASETS["toy/2016"].data = ["http://127.0.0.1:9/set.tar.gz"]
    monkeypatch.setattr("dragoman.corpus.download.ATTEMPTS", 1)
    with pytest.raises(MachineError, match=r"the download failed 1 times: .*refused"):
        fetched()


def test_a_recipe_takes_a_set_for_dev_and_test_alone(known: Known, tmp_path: Path) -> None:
    content = tarball(a_en="\n".join(ENGLISH) + "\n", a_de="\n".join(GERMAN) + "\n")
    known(PlainTextDataset, content, {"en-de": ["a.en", "a.de"]})
    config = small_corpus(tmp_path, test=[{"set": "toy/2016"}], test_pairs=0)
    manifest = prepare(config, tmp_path / "out", workers=1)
    assert manifest.splits["test"].pairs == 3
    assert [target for _, target in read_text(tmp_path / "out" / "test")] == GERMAN
    with pytest.raises(ValueError, match="a model must not train on it"):
        small_corpus(tmp_path, train=[{"set": "toy/2016"}])


@pytest.mark.system
def test_a_run_is_scored_on_a_set_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SACREBLEU_DIR", str(tmp_path / "sacrebleu"))
    content = tarball(a_en="\n".join(ENGLISH) + "\n", a_de="\n".join(GERMAN) + "\n")
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    url = "http://127.0.0.1:9/set.tar.gz"
    pairs = {"en-de": ["a.en", "a.de"]}
    monkeypatch.setitem(
        DATASETS, "toy", PlainTextDataset("toy", data=[url], md5=[digest], langpairs=pairs)
    )
    fetched_before = tmp_path / "sacrebleu/toy/raw/toy.set.tar.gz"
    fetched_before.parent.mkdir(parents=True)
    fetched_before.write_bytes(content)
    found = dragoman.evaluate(small_run().path, test_set="toy")
    assert found.pairs == len(ENGLISH)
    assert found.scores["bleu"].value >= 0.0
