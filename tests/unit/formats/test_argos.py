"""Packages for Argos Translate: what is in them. Itself it runs in benchmarks/argos.py."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import ctranslate2
import numpy as np
import onnxruntime
import pytest
import sentencepiece

from dragoman import Translator
from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.cli import main
from dragoman.corpus.directions import Direction
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.normalize import INVISIBLE, UNICODE_SPACES, normalize
from dragoman.corpus.subword import Subword
from dragoman.distributed.world import join_world
from dragoman.evaluation.sentences import split_sentences
from dragoman.formats.argos import argos_code, check_for_argos, translate_as_argos, write_argos
from dragoman.formats.ctranslate2 import write_ctranslate2
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.normalizing_pieces import with_normalization
from dragoman.importing.folder import read_folder
from dragoman.importing.tokenizer import Languages
from dragoman.training.durable import DIGESTS_FILE, publish
from foreign_models import m2m100_folder, marian_folder
from known_ends import known_paragraphs
from own_folder import own_folder
from real_text import real_lines
from small_run import small_run

UNTIDY = [
    "  Cafe\u0301\u00a0 a\tb \r", "\ufeffHello\u2009 \u3000World", "A\u0308 e\u0323\u0302",
    "e\u0302\u0323 \u1100\u1161\u11a8 \uac01", "x\u2581y a\u200bb", "\ufb01 \u00bd \u212b",
    "\u00c9COLE I\u0307 \u0130", f"a{UNICODE_SPACES}b", 
    f"a{INVISIBLE}b", "e\u00ad\u200b ភ្នំ\u200bពេញ", "", " ", "A B",
]  # fmt: skip


@cache
def unpacked() -> tuple[Path, Path]:
    """The folder of an export, and that of its package's content."""
    folder = own_folder("argos")
    with join_world() as world:
        path = export(small_run(), Request(to="argos", output=folder / "export"), world).path
    zipfile.ZipFile(path / "en_de.argosmodel").extractall(folder)
    return path, folder / "translate-en_de"


@pytest.mark.system
def test_a_package_has_the_files_that_argos_translate_looks_for() -> None:
    export_folder, package = unpacked()
    names = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    assert names == {
        "README.md", "metadata.json", "minisbd/sentence_ends.onnx", "model/config.json",
        "model/model.bin", "model/shared_vocabulary.json", "sentencepiece.model",
    }  # fmt: skip
    metadata = json.loads((package / "metadata.json").read_bytes())
    assert (metadata["from_code"], metadata["from_name"]) == ("en", "English")
    assert (metadata["to_code"], metadata["to_name"]) == ("de", "German")
    card = (package / "README.md").read_text()
    assert card == (export_folder / "README.md").read_text()
    assert "length^0.2" in card
    assert "weights in int8" in card


def test_a_package_translates_as_the_run_does_but_for_the_search() -> None:
    _, package = unpacked()
    lines = (small_run().prepared() / "valid" / "source.txt").read_text().splitlines()[:40]
    search = (
        "search.length_penalty=power", "search.length_penalty_alpha=0.2",
        "search.max_length_ratio=0", "search.max_length_extra=256",
    )  # fmt: skip
    with Translator(small_run(), quantization="int8", overrides=search) as translator:
        ours = translator.translate(lines)
    theirs = translate_as_argos(package, lines)
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 38


@pytest.mark.system
def test_two_exports_are_the_same_bytes(tmp_path: Path) -> None:
    first, _ = unpacked()
    with join_world() as world:
        export(small_run(), Request(to="argos", output=tmp_path / "again"), world)
    digests = {
        hashlib.sha256((folder / "en_de.argosmodel").read_bytes()).hexdigest()
        for folder in (first, tmp_path / "again")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("lowercase", [False, True])
def test_its_pieces_are_ours_of_normalised_text(lowercase: bool) -> None:
    model = small_run().path / "source.model"
    own = Subword.load(model)
    theirs = sentencepiece.SentencePieceProcessor(
        model_proto=with_normalization(model.read_bytes(), lowercase=lowercase)
    )
    for text in [*UNTIDY, *real_lines("train", "en")[:500], *real_lines("train", "de")[:500]]:
        (expected,) = own.encode([normalize(text, lowercase=lowercase)])
        assert theirs.encode(text) == expected, text


def split_as_minisbd(text: str) -> list[str]:
    """Sentences by the graph, given what MiniSBD gives it for one paragraph."""
    session = onnxruntime.InferenceSession(
        unpacked()[1] / "minisbd" / "sentence_ends.onnx", providers=["CPUExecutionProvider"]
    )
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["config"])["feat_funcs"] == ["capitalized", "numeric"]
    numbers = json.loads(known["vocab"])["_unit2id"]
    units = [numbers.get(one, numbers["<UNK>"]) for one in text]
    features = [[float(one.isupper()), float(one.isdecimal())] for one in text]
    given = {
        "units": np.array([[*units, numbers["<PAD>"]]], dtype=np.int64),
        "features": np.array([[*features, [0.0, 0.0]]], dtype=np.float32),
    }
    (scores,) = session.run(None, given)
    ends: list[int] = (np.flatnonzero(scores[0, :-1].argmax(axis=1) == 2) + 1).tolist()
    bounds = sorted({0, *ends, len(text)})
    return [text[start:end].strip() for start, end in pairwise(bounds)]


@pytest.mark.system
@pytest.mark.parametrize(
    "text",
    [
        "A man. A dog runs!", "He said “Stop.” Then he left.", "Dr. Who met J. S. Bach.",
        "Am 3. Mai, z. B. hier. Und dort.", "It costs 3.50 euros. Cheap!", "一。二！」三",
        "Really?! Yes… No", "version 1. and more", "No end", "The U.S. is (see Fig. 3) large. Yes.",
        "Mr. X (Dr. Y.) left. \"He did.\" 'Oh.' Éric.",
        "In vol. 4, on Jan. 5. MR. X et al. (2020).",
        "w 2014 r. Potem. Votes were counted. 20 were lost. L-art. 5. Bachstr. 7 „Halt!“ Er",
        "“Really?” he asked. ３．５です。１．はじめ．次．終",
        *(paragraph for paragraph, _ in known_paragraphs().values()),
    ],
)  # fmt: skip
def test_sentences_end_there_as_they_do_here(text: str) -> None:
    assert split_as_minisbd(text) == [sentence for sentence, _ in split_sentences(text)]


def test_so_they_do_in_real_paragraphs() -> None:
    lines = [normalize(line) for line in real_lines("train", "de")[:400]]
    for start in range(0, len(lines), 8):
        paragraph = " ".join(lines[start : start + 8])
        assert split_as_minisbd(paragraph) == [one for one, _ in split_sentences(paragraph)]


def test_its_export_translates_here_as_argos_translate_does() -> None:
    path, package = unpacked()
    # A longer text is cut here.
    lines = [line for line in real_lines("valid", "en") if len(line) < 80][:40] + UNTIDY
    with Translator(path) as translator:
        ours = translator.translate(lines)
    theirs = [text.strip() for text in translate_as_argos(package, lines)]
    # A text of which the model knows no letter stays as it is here, and Argos translates it.
    known = [n for n, line in enumerate(lines) if normalize(ours[n]) != normalize(line)]
    # A sentence in capitals is translated here as one in small letters.
    known = [n for n in known if not (lines[n].isupper() and " " in lines[n])]
    assert len(known) > len(lines) - 8
    assert [ours[n] for n in known] == [theirs[n] for n in known]
    with pytest.raises(ConfigError, match="'de' alone"):
        Translator(path, target_language="fr")
    with pytest.raises(ConfigError, match="no weights for PyTorch"):
        Translator(path, engine="torch")


def other_package(folder: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of the export whose package holds other files; its digests are right."""
    path, _ = unpacked()

    def fill(draft: Path) -> None:
        for file in path.iterdir():
            if file.name != DIGESTS_FILE:
                shutil.copyfile(file, draft / file.name)
        with zipfile.ZipFile(path / "en_de.argosmodel") as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        change(files)
        with zipfile.ZipFile(draft / "en_de.argosmodel", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    publish(folder, fill)
    return folder


MODEL = "translate-en_de/model/"


@pytest.mark.system
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda files: files.pop(MODEL + "model.bin"), "CTranslate2 cannot read it"),
        (lambda files: files.pop(MODEL + "shared_vocabulary.json"), "CTranslate2 cannot read it"),
        (lambda files: files.update({MODEL + "model.bin": bytes(1 << 29)}), "is too large"),
        (lambda files: files.update({MODEL + "model.bin": b"pickled"}), "CTranslate2 cannot read"),
    ],
    ids=["no weights", "no pieces", "a bomb", "other weights"],
)
def test_a_package_that_is_not_of_its_bundle_is_refused(
    change: Callable[[dict[str, bytes]], None], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        Translator(other_package(tmp_path / "export", change))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = other_package(tmp_path / "export", lambda files: None)
    content = (path / "en_de.argosmodel").read_bytes()

    def fill(draft: Path) -> None:
        for file in path.iterdir():
            if file.name != DIGESTS_FILE:
                shutil.copyfile(file, draft / file.name)
        (draft / "en_de.argosmodel").write_bytes(content[: len(content) // 2])

    publish(tmp_path / "half", fill)
    with pytest.raises(CheckpointError, match="cannot be unpacked"):
        Translator(tmp_path / "half")


@pytest.mark.system
def test_tokens_for_languages_that_nobody_adds_there_are_refused(tmp_path: Path) -> None:
    m2m100, _ = m2m100_folder(tmp_path / "m2m100")
    codes = (">>deu<<", ">>fra<<")
    opus = marian_folder(tmp_path / "opus", codes=codes)
    for folder, language, problem in (
        (m2m100, "", "translations begin with a token"),
        (opus, "", "begins with the code"),
        (opus, "fra", ""),
    ):
        files = read_folder(folder, Languages(target=language)).vocabularies
        source, target = (ImportedVocabulary.parse(file, place=folder) for file in files)
        if problem:
            with pytest.raises(ConfigError, match=problem):
                check_for_argos((source, target))
        else:
            check_for_argos((source, target))


@pytest.mark.system
def test_the_language_chosen_at_import_is_added_there(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "opus", codes=(">>deu<<", ">>fra<<"), loud=True)
    lines = real_lines("valid", "en")[:20]
    found: dict[str, list[list[list[str]]]] = {}
    for language in ("deu", "fra"):
        imported = read_folder(folder, Languages(target=language))
        files = imported.vocabularies
        source, target = (ImportedVocabulary.parse(file, place=folder) for file in files)
        package = tmp_path / language
        write_argos(
            imported.model, (source, target), files[0], package,
            direction=Direction("eng", language), token="", lowercase=False,
            quantization="float32",
        )  # fmt: skip
        plain = tmp_path / f"{language}-plain"
        plain.mkdir()
        write_ctranslate2(imported.model, (source, target), plain, quantization="float32")
        cut = [source.pieces(row) for row in source.encode_plain(lines)]
        for_argos, by_hand = (
            [one.hypotheses for one in ctranslate2.Translator(str(path)).translate_batch(rows)]
            for path, rows in (
                (package / "model", cut),
                (plain, [[f">>{language}<<", *row] for row in cut]),
            )
        )
        assert for_argos == by_hand
        found[language] = for_argos
    assert found["deu"] != found["fra"]


@pytest.mark.parametrize("library", ["ctranslate2", "onnx"])
def test_without_a_library_it_names_the_extra_that_has_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    library: str,
) -> None:
    small_run()
    monkeypatch.setitem(sys.modules, library, None)
    output = tmp_path / "argos"
    assert main(["export", str(small_run().path), "--to", "argos", "--output", str(output)]) != 0
    assert capfd.readouterr().err == (
        f"dragoman: {library} is not installed; install it: pip install 'dragoman[argos]'\n"
    )
    assert not output.exists()


@pytest.mark.parametrize(
    ("known", "codes"),
    [
        ("de", ["de", "DE", "deu", "ger", "de-AT", "deu_Latn"]),
        ("en", ["en", "eng", "eng_Latn", "en_XX", "en-GB"]),
        ("fr", ["fr", "fra", "fra_Latn", "fr-CA"]),
        ("nb", ["nb", "no", "nob", "nor", "nb-NO", "nob_Latn"]),
        ("nn", ["nn", "nno_Latn"]),
        ("pb", ["pb", "pt-BR", "pt_BR"]),
        ("pt", ["pt", "por", "por_PT"]),
        ("zt", ["zt", "zh-TW", "zh-HK", "zh_Hant", "zho_Hant"]),
        ("zh", ["zh", "zho", "cmn", "zh-CN", "zho_Hans"]),
        ("he", ["he", "iw", "heb_Hebr"]),
        ("tl", ["tl", "fil", "tgl_Latn"]),
        ("ko", ["kor_Hang"]),
        ("ar", ["ar", "arb", "arb_Arab"]),
        ("sr", ["sr", "srp", "srp_Cyrl"]),
        ("sr-Latn", ["sr-Latn", "sh", "sr-ME"]),
        ("x-mine", ["x-mine"]),
        ("french", ["french"]),
    ],
)
def test_a_language_has_one_code_in_packages_that_clients_know(
    known: str, codes: list[str]
) -> None:
    assert {argos_code(code) for code in codes} == {known}


@pytest.mark.system
@pytest.mark.parametrize("pair", ["de-pt_BR", "en-zh_TW", "eng_Latn-fra_Latn", "nob_Latn-zh_Hant"])
def test_the_card_calls_a_package_by_its_codes(pair: str, tmp_path: Path) -> None:
    output = tmp_path / "package"
    with join_world() as world:
        request = Request(to="argos", output=output, languages=pair)
        path = export(small_run(), request, world).path
    (package,) = path.glob("*.argosmodel")
    with zipfile.ZipFile(package) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist()
                 if name.endswith(("metadata.json", "README.md"))}  # fmt: skip
    metadata = json.loads(texts["metadata.json"])
    call = f'"{metadata["from_code"]}", "{metadata["to_code"]}"'
    assert call in texts["README.md"]
    assert call in (path / "README.md").read_text("utf-8")
