"""Named corpora against a real HTTP server on this machine, which can also behave badly."""

from __future__ import annotations

import gc
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import threading
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.corpus.catalogue import Catalogue
from dragoman.corpus.config import TextFiles
from dragoman.corpus.download import ATTEMPTS, download
from dragoman.corpus.fetched import fetch

# mtdata builds its index once for each folder; it takes some 15 s.
INDEX_FOLDER = Path(__file__).parents[3] / "build" / "mtdata"
INDEX_FOLDER.mkdir(parents=True, exist_ok=True)
os.environ["MTDATA"] = str(INDEX_FOLDER)

GERMAN = [f"Satz Nummer {n} ist kürzer als der {n + 1}. Satz." for n in range(20_000)]
ENGLISH = [f"Sentence number {n} is shorter than sentence {n + 1}." for n in range(20_000)]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def tarball(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("_", "/").replace("DOT", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("DOT", "."), content)
    return packed.getvalue()


CORPUS = tarball(training_europarlDOTde=text(GERMAN), training_europarlDOTen=text(ENGLISH))


@dataclass
class Page:
    """A file of the server, and how the server misbehaves.

    cuts: at which byte of the whole file each of the first answers breaks off.
    failures: status of each of the first answers.
    length: the stated length, in place of the true one.
    """

    content: bytes
    content_type: str = "application/octet-stream"
    etag: str | None = '"1"'
    cuts: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    with_length: bool = True
    length: str | None = None
    with_ranges: bool = True


class Mirror:
    """An HTTP server on the loopback interface; `asked` holds each request's path and range."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.sent = Counter[str]()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers["Range"]))
                mirror.answer(self)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(request.path)
        if page is None or page.failures:
            request.send_error(page.failures.pop(0) if page else 404)
            return
        start = 0
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers["Range"] or "")
        if wanted and page.with_ranges and request.headers["If-Range"] == page.etag:
            start = int(wanted[1])
        if start and start >= len(page.content):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(page.content)}")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            last = len(page.content) - 1
            request.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        if page.with_length:
            request.send_header("Content-Length", page.length or str(len(page.content) - start))
        if page.etag:
            request.send_header("ETag", page.etag)
        request.send_header("Content-Type", page.content_type)
        request.end_headers()
        end = page.cuts.pop(0) if page.cuts else len(page.content)
        self.sent[request.path] += max(0, end - start)  # before the reader can have all of it
        request.wfile.write(page.content[start:end])


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    mirror = Mirror()
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


@pytest.fixture
def add_entry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put an entry into an index of its own, in the place of mtdata's, for this test."""
    from mtdata import __version__
    from mtdata.entry import Entry

    folder = tmp_path_factory.mktemp("mtdata")
    monkeypatch.setenv("MTDATA", str(folder))

    def add(did: str, **options: Any) -> str:
        line = json.dumps(Entry(did, **options), cls=Entry.JSONEncoder)
        with (folder / f"dragoman.index.{__version__}.jsonl").open("a") as index:
            index.write(f"{line}\n")
        return did

    return add


@pytest.fixture
def europarl(mirror: Mirror, add_entry: Any) -> str:
    mirror.pages["/europarl.tgz"] = Page(CORPUS)
    paths = ["training/europarl.de", "training/europarl.en"]
    url = mirror.url("/europarl.tgz")
    did: str = add_entry("Local-europarl-7-deu-eng", url=url, in_paths=paths, in_ext="txt")
    return did


def get(did: str, directory: Path) -> TextFiles:
    return fetch(did, directory, source_language="en", target_language="de")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files_in(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def test_a_corpus_becomes_two_files_with_the_sides_in_our_order(
    europarl: str, tmp_path: Path, mirror: Mirror
) -> None:
    files = get(europarl, tmp_path)
    assert Path(files.source).read_bytes() == text(ENGLISH)
    assert Path(files.target).read_bytes() == text(GERMAN)
    receipt = json.loads((tmp_path / europarl / "fetched.json").read_text())
    assert receipt["downloads"] == {mirror.url("/europarl.tgz"): sha256(CORPUS)}
    assert receipt["texts"]["text.en"]["sha256"] == sha256(text(ENGLISH))
    assert files_in(tmp_path) == {"europarl.tgz", "text.en", "text.de", "fetched.json"}


def test_present_files_are_not_fetched_again(europarl: str, tmp_path: Path, mirror: Mirror) -> None:
    files = get(europarl, tmp_path)
    del mirror.pages["/europarl.tgz"]
    assert get(europarl, tmp_path) == files
    swapped = fetch(europarl, tmp_path, source_language="de", target_language="en")
    assert (swapped.source, swapped.target) == (files.target, files.source)
    assert len(mirror.asked) == 1


@pytest.mark.parametrize("damage", ["changed", "gone", "receipt"])
def test_a_text_that_has_changed_is_made_again(
    damage: str, europarl: str, tmp_path: Path, mirror: Mirror
) -> None:
    files = get(europarl, tmp_path)
    source = Path(files.source)
    if damage == "changed":
        source.write_bytes(source.read_bytes().replace(b"shorter", b"SHORTER", 1))
    elif damage == "gone":
        source.unlink()
    else:
        (tmp_path / europarl / "fetched.json").write_text("{}")
    assert get(europarl, tmp_path) == files
    assert source.read_bytes() == text(ENGLISH)
    assert len(mirror.asked) == 1  # the archive was still there


def test_a_touched_text_is_not_made_again(europarl: str, tmp_path: Path) -> None:
    source = Path(get(europarl, tmp_path).source)
    os.utime(source, (1, 1))
    get(europarl, tmp_path)
    assert source.stat().st_mtime == 1


@pytest.mark.parametrize("kind", ["zip", "tsv.gz", "two files"])
def test_other_forms_of_the_same_text(
    kind: str, tmp_path: Path, mirror: Mirror, add_entry: Any
) -> None:
    pairs = [f"{german}\t{english}" for german, english in zip(GERMAN, ENGLISH, strict=True)]
    if kind == "zip":
        mirror.pages["/x.zip"] = Page(zipped(aDOTde=text(GERMAN), aDOTen=text(ENGLISH)))
        options = {"url": mirror.url("/x.zip"), "in_paths": ["*.de", "*.en"], "in_ext": "txt"}
    elif kind == "tsv.gz":
        mirror.pages["/x.tsv.gz"] = Page(gzip.compress(text(pairs)))
        options = {"url": mirror.url("/x.tsv.gz")}
    else:
        mirror.pages |= {"/x.de": Page(text(GERMAN)), "/x.en": Page(text(ENGLISH))}
        options = {"url": (mirror.url("/x.de"), mirror.url("/x.en")), "ext": "txt"}
    files = get(add_entry("Local-some-1-deu-eng", **options), tmp_path)
    assert Path(files.source).read_bytes() == text(ENGLISH)
    assert Path(files.target).read_bytes() == text(GERMAN)


def test_an_sgm_test_set_is_read_by_mtdata(tmp_path: Path, mirror: Mirror, add_entry: Any) -> None:
    def sgm(kind: str, *segments: str) -> bytes:
        lines = [f'<seg id="{n}"> {s} </seg>' for n, s in enumerate(segments, 1)]
        doc = "\n".join(['<doc docid="1" genre="news">', "<p>", *lines, "</p>", "</doc>"])
        return f'<{kind} setid="t" srclang="any">\n{doc}\n</{kind}>\n'.encode()

    archive = tarball(
        dev_srcDOTdeDOTsgm=sgm("srcset", "Gut &amp; gern.", "Nein."),
        dev_refDOTenDOTsgm=sgm("refset", "With pleasure.", "No."),
    )
    mirror.pages["/dev.tgz"] = Page(archive)
    paths = ["dev/src.de.sgm", "dev/ref.en.sgm"]
    url = mirror.url("/dev.tgz")
    did = add_entry("Local-newstest-1-deu-eng", url=url, in_paths=paths, in_ext="sgm")
    files = get(did, tmp_path)
    assert Path(files.source).read_text(encoding="utf-8") == "With pleasure.\nNo.\n"
    assert Path(files.target).read_text(encoding="utf-8") == "Gut & gern.\nNein.\n"


def test_an_archive_writes_nothing_outside_its_folder(
    europarl: str, tmp_path: Path, mirror: Mirror
) -> None:
    outside = tmp_path / "home"
    outside.mkdir()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        link = tarfile.TarInfo("d")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("d/.bashrc"))
        for name, lines in (("europarl.de", GERMAN), ("europarl.en", ENGLISH)):
            info = tarfile.TarInfo(f"training/{name}")
            info.size = len(text(lines))
            archive.addfile(info, io.BytesIO(text(lines)))
    mirror.pages["/europarl.tgz"] = Page(packed.getvalue())
    assert Path(get(europarl, tmp_path / "downloads").source).read_bytes() == text(ENGLISH)
    assert not files_in(outside)


def test_a_broken_connection_is_taken_up_where_it_broke(tmp_path: Path, mirror: Mirror) -> None:
    mirror.pages["/x"] = Page(CORPUS, cuts=[1000, 50_000])
    pauses: list[float] = []
    download(mirror.url("/x"), tmp_path / "x", pause=pauses.append)
    assert (tmp_path / "x").read_bytes() == CORPUS
    assert [wanted for _, wanted in mirror.asked] == [None, "bytes=1000-", "bytes=50000-"]
    assert mirror.sent["/x"] == len(CORPUS)
    assert pauses == [2, 4]
    assert files_in(tmp_path) == {"x"}


def test_a_whole_file_without_its_name_is_not_fetched_again(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.pages["/x"] = Page(CORPUS)

    def killed(_from: Path, _to: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        patch.setattr(
            "dragoman.corpus.download.write_whole", lambda path, text: path.write_text(text)
        )
        with pytest.raises(KeyboardInterrupt):
            download(mirror.url("/x"), tmp_path / "x", pause=lambda _: None)
    download(mirror.url("/x"), tmp_path / "x", pause=lambda _: None)
    assert (tmp_path / "x").read_bytes() == CORPUS
    assert mirror.sent["/x"] == len(CORPUS)
    assert files_in(tmp_path) == {"x"}


def test_half_a_file_is_kept_for_the_next_run_and_never_taken_for_whole(
    tmp_path: Path, mirror: Mirror
) -> None:
    mirror.pages["/x"] = Page(CORPUS, cuts=[100 * n for n in range(1, ATTEMPTS + 1)])
    with pytest.raises(MachineError, match="failed 5 times: the connection broke off after 500"):
        download(mirror.url("/x"), tmp_path / "x", pause=lambda _: None)
    assert not (tmp_path / "x").exists()
    download(mirror.url("/x"), tmp_path / "x", pause=lambda _: None)
    assert (tmp_path / "x").read_bytes() == CORPUS
    assert mirror.asked[-1] == ("/x", "bytes=500-")


@pytest.mark.parametrize("how", ["changed", "no ranges", "no version", "weak version", "shrunk"])
def test_a_part_of_another_version_is_thrown_away(how: str, tmp_path: Path, mirror: Mirror) -> None:
    etag = {"no version": None, "weak version": 'W/"1"'}.get(how, '"1"')
    page = mirror.pages["/x"] = Page(CORPUS, etag=etag, cuts=[1000], with_ranges=how != "no ranges")
    other = CORPUS[::-1]

    def change(_: float) -> None:
        if how == "changed":
            page.content, page.etag = b"\x1f\x8b" + other, '"2"'
        elif how == "shrunk":
            page.content = CORPUS[:500]

    download(mirror.url("/x"), tmp_path / "x", pause=change)
    assert (tmp_path / "x").read_bytes() == page.content


def test_a_busy_server_is_asked_again(tmp_path: Path, mirror: Mirror) -> None:
    mirror.pages["/x"] = Page(CORPUS, failures=[503, 429, 500])
    download(mirror.url("/x"), tmp_path / "x", pause=lambda _: None)
    assert (tmp_path / "x").read_bytes() == CORPUS


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (None, "404 Not Found"),
        (Page(b"", failures=[403]), "403 Forbidden"),
        (Page(b"\n<!DOCTYPE html><html>Please log in</html>", "application/x-gzip"), "HTML"),
        (Page(b"Too many requests, solve this", "text/html; charset=utf-8"), "HTML"),
        (Page(text(GERMAN), "text/plain", with_length=False), "does not say how long"),
        (Page(CORPUS, length="many"), "states 'many' bytes, which is not a number"),
    ],
)
def test_answers_without_a_file_are_refused_at_once_and_named(
    page: Page | None, words: str, europarl: str, tmp_path: Path, mirror: Mirror
) -> None:
    mirror.pages.pop("/europarl.tgz")
    if page:
        mirror.pages["/europarl.tgz"] = page
    with pytest.raises(CorpusError, match=words) as error:
        get(europarl, tmp_path)
    assert mirror.url("/europarl.tgz") in str(error.value)
    assert "name its files as source and target" in str(error.value)
    assert len(mirror.asked) == 1
    assert not files_in(tmp_path)


def test_a_packed_file_behind_a_wrong_content_type_is_taken(
    europarl: str, tmp_path: Path, mirror: Mirror
) -> None:
    mirror.pages["/europarl.tgz"].content_type = "text/html"
    mirror.pages["/europarl.tgz"].with_length = False
    assert Path(get(europarl, tmp_path).source).read_bytes() == text(ENGLISH)


@pytest.mark.parametrize("damage", ["flipped byte", "cut, without a length", "not an archive"])
def test_a_damaged_archive_is_removed_and_comes_again(
    damage: str, europarl: str, tmp_path: Path, mirror: Mirror
) -> None:
    middle = len(CORPUS) // 2
    mirror.pages["/europarl.tgz"] = {
        "flipped byte": Page(CORPUS[:middle] + b"\x00\xff\x00\xff" + CORPUS[middle + 4 :]),
        "cut, without a length": Page(CORPUS[:middle], with_length=False),
        "not an archive": Page(b"no archive at all"),
    }[damage]
    with pytest.raises(CorpusError, match=r"cannot be read.*run again") as error:
        get(europarl, tmp_path)
    assert mirror.url("/europarl.tgz") in str(error.value)
    assert not files_in(tmp_path)
    mirror.pages["/europarl.tgz"] = Page(CORPUS)
    assert Path(get(europarl, tmp_path).source).read_bytes() == text(ENGLISH)


def test_sides_of_different_length_are_refused(
    tmp_path: Path, mirror: Mirror, add_entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mirror.pages |= {"/x.de": Page(text(GERMAN)), "/x.en": Page(text(ENGLISH[:-1]))}
    urls = (mirror.url("/x.de"), mirror.url("/x.en"))
    with pytest.raises(CorpusError, match="unequal number"):
        get(add_entry("Local-some-1-deu-eng", url=urls, ext="txt"), tmp_path)
    assert not files_in(tmp_path)
    gc.collect()
    assert not caplog.records, "mtdata logs nothing, not even when its readers are closed"


def test_a_server_that_is_not_there_is_the_machines_matter(tmp_path: Path) -> None:
    mirror = Mirror()
    mirror.server.shutdown()
    mirror.server.server_close()
    with pytest.raises(MachineError, match=r"Connection refused.*check the network"):
        download(mirror.url("/x"), tmp_path / "x", pause=lambda _: None)


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_an_id_with_letters_outside_ascii_is_found(
    ensure_ascii: bool, tmp_path: Path, mirror: Mirror
) -> None:
    did = "ELRC-ud\u00e1ras_na_gaeltachta-1-eng-gle"
    mirror.pages["/a%20b/%C3%A1.tsv"] = Page(text(["Hello.\tDia dhuit."]))
    entry = {"did": did, "url": mirror.url("/a b/\u00e1.tsv"), "ext": "tsv"}
    index = tmp_path / "index.jsonl"
    index.write_text(json.dumps(entry, ensure_ascii=ensure_ascii) + "\n", encoding="utf-8")
    catalogue = Catalogue(index)
    assert [one.did for one in catalogue.of_pair("en", "ga")] == [did]
    for written in (did, unicodedata.normalize("NFD", did)):
        found, _ = catalogue.find(written, source_language="en", target_language="ga")
        assert found.did == did
    files = fetch(
        did, tmp_path / "downloads", source_language="en", target_language="ga", index=index
    )
    assert Path(files.target).read_text(encoding="utf-8") == "Dia dhuit.\n"


@pytest.mark.system
def test_every_id_of_mtdatas_index_with_such_letters_is_found() -> None:
    catalogue = Catalogue()
    with catalogue.index.open(encoding="utf-8") as lines:
        ids = [json.loads(line)["did"] for line in lines if "\\u" in line]
    ids = [did for did in ids if not did.isascii()]
    assert len(ids) > 50
    for did in ids:
        source, target = did.split("-")[3:]
        found, _ = catalogue.find(did, source_language=source, target_language=target)
        assert found.did == did


def test_what_is_no_address_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"^http://\[::1/x: is not an address to download from"):
        download("http://[::1/x", tmp_path / "x")


def test_without_a_home_mtdata_needs_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("MTDATA")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(MachineError, match=r"no home directory.*; set MTDATA to the folder"):
        get("Statmt-europarl_wmt13-7-deu-eng", tmp_path)


@pytest.mark.system
def test_the_corpora_of_the_shipped_recipes_are_known() -> None:
    from dragoman.recipe.recipe import list_recipes, load_recipe

    catalogue = Catalogue()
    recipes = [load_recipe(recipe.name).corpus for recipe in list_recipes()]
    ids = {entry.mtdata for c in recipes for entry in (*c.train, *c.valid, *c.test)} - {""}
    found = [catalogue.find(i, source_language="en", target_language="de") for i in ids]
    assert len(found) == 5


@pytest.mark.system
@pytest.mark.parametrize(
    ("did", "words"),
    [
        ("Statmt-europarl_wmt13-9-deu-eng", "did you mean Statmt-europarl"),
        ("Europarl", "mtdata knows no corpus 'Europarl'"),
        ("Statmt-europarl_wmt13-7-fra-eng", "is not a corpus of en and de; did you mean"),
    ],
)
def test_an_id_that_does_not_fit_is_refused(did: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        get(did, tmp_path)
    with pytest.raises(ConfigError, match="'zz zz' is not a language code"):
        fetch(did, tmp_path, source_language="zz zz", target_language="de")


def test_without_mtdata_the_remedy_is_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mtdata.parser", None)
    with pytest.raises(MachineError, match=re.escape('pip install "dragoman[fetch]"')):
        get("Statmt-europarl_wmt13-7-deu-eng", tmp_path)
