"""Archives in Moses format as OPUS has them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.moses import MosesText
from dragoman.corpus.prepare import prepare
from dragoman.formats.public import public_corpus
from real_text import real_lines


def archive(
    folder: Path, german: str = "Books.de-en.de", packing: int = zipfile.ZIP_DEFLATED
) -> Path:
    path = folder / "de-en.txt.zip"
    with zipfile.ZipFile(path, "w", packing) as opened:
        opened.writestr("README", "about")
        opened.writestr(
            "Books.de-en.en", "".join(f"{line}\n" for line in real_lines("valid", "en"))
        )
        opened.writestr(german, "".join(f"{line}\n" for line in real_lines("valid", "de")))
        opened.writestr("Books.de-en.xml", "<links/>")
    return path


def prepared(folder: Path, **entry: Any) -> Manifest:
    config = CorpusConfig.model_validate(
        {
            "folder": str(folder),
            "train": [entry],
            "source_language": "en",
            "target_language": "de",
            "subword": {"vocab_size": 300},
        }
    )
    return prepare(config, folder / "prepared", workers=1)


def test_a_moses_archive_makes_the_corpus_that_its_texts_make(tmp_path: Path) -> None:
    path = archive(tmp_path)
    with zipfile.ZipFile(path) as opened:
        opened.extractall(tmp_path)
    from_zip = prepared(tmp_path, moses=path.name)
    assert [source.sha256 for source in from_zip.sources] == [file_sha256(path)] * 2
    assert [source.lines for source in from_zip.sources] == [500, 500]
    assert [source.name for source in from_zip.sources] == [f"{path.name}:en", f"{path.name}:de"]
    assert prepared(tmp_path, moses=path.name) == from_zip
    from_texts = prepared(tmp_path, source="Books.de-en.en", target="Books.de-en.de")
    assert from_texts.digest == from_zip.digest
    with zipfile.ZipFile(path, "a") as opened:  # as macOS packs it
        opened.writestr("__MACOSX/._Books.de-en.en", "a resource")
    assert prepared(tmp_path, moses=path.name).digest == from_zip.digest


def test_an_archive_without_one_text_in_each_language_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path, german="Books.de-en.fra")
    with pytest.raises(CorpusError, match=r"zip: is not .* one text in 'de': .*\*\.en, \*\.fra, "):
        prepared(tmp_path, moses=path.name)


def test_damaged_archives_and_other_files_are_named(tmp_path: Path) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"text", whole[:-60], whole[:9000] + b"\xff" * 50 + whole[9050:]):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"is not an archive with one text in 'en'"):
            prepared(tmp_path, moses=path.name)


@pytest.mark.parametrize("offset", [2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_that_lead_out_of_an_archive_are_one_line_that_names_it(
    offset: int, tmp_path: Path
) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    at = whole.index(b"PK\1\2")
    name, extra = b"Books.de-en.en", struct.pack("<HHQ", 1, 8, offset)
    lengths = struct.pack("<HH", len(name), len(extra))
    member = whole[at : at + 28] + lengths + whole[at + 32 : at + 42] + b"\xff" * 4 + name + extra
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(member), at, 0)
    path.write_bytes(whole[:at] + member + end)
    with pytest.raises(CorpusError, match=r"de-en\.txt\.zip: (is not an archive|cannot be read)"):
        prepared(tmp_path, moses=path.name)


def test_packings_without_bounds_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, packing=zipfile.ZIP_BZIP2)
    with pytest.raises(CorpusError, match="not packed with deflate"):
        prepared(tmp_path, moses=path.name)


def test_an_export_keeps_the_names_without_folders() -> None:
    entries = [{"moses": "x/a.zip"}, {"tmx": "y/b.tmx"}]
    config = CorpusConfig.model_validate(
        {"train": entries, "source_language": "en", "target_language": "de"}
    )
    assert [entry.model_dump() for entry in public_corpus(config).train] == [
        {"moses": "a.zip"},
        {"tmx": "b.tmx"},
    ]


@pytest.mark.parametrize(
    ("wanted", "there", "counted"),
    [
        ("pt-BR", "pt_BR", False),
        ("pt-BR", "pt", True),
        ("pt", "pt_BR", True),
        ("nb", "no", False),
        ("deu_Latn", "de", False),
        ("zh", "zh_CN", True),
        ("zh-TW", "zh_TW", False),
        ("zh-Hant", "zh_TW", True),
        ("sr-Latn", "sr_Latn", False),
        ("he", "iw", False),
        ("arb_Arab", "ar", False),
        ("fil", "tl", False),
        ("kor_Hang", "ko", False),
    ],
)
def test_a_text_is_found_by_any_code_of_its_language(
    wanted: str, there: str, counted: bool, tmp_path: Path
) -> None:
    path = archive(tmp_path, german=f"Books.en-{there}.{there}")
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr("Books.en-xx.yue", "another")
    reader = MosesText("a", path, wanted).open()
    assert reader.take(1000)[0].decode().splitlines() == real_lines("valid", "de")
    assert reader.facts().regions == ({f"{there} for {wanted}": 500} if counted else {})


@pytest.mark.parametrize(
    ("wanted", "there"), [("sr-Latn", "sr"), ("sr", "sr_Latn"), ("zh", "zh_TW"), ("nb", "nn")]
)
def test_a_text_in_another_script_is_not_taken(wanted: str, there: str, tmp_path: Path) -> None:
    path = archive(tmp_path, german=f"Books.en-{there}.{there}")
    with pytest.raises(CorpusError, match=rf"one text in '{wanted}': .*\*\.{there}") as error:
        MosesText("a", path, wanted).open().take(1)
    is_script = wanted != "nb"
    assert (f"{there} is another script" in error.value.remedy) == is_script
