"""Writes a model of another tool, in Hugging Face form, as a bundle."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from safetensors.torch import save_file

from dragoman.base.errors import ConfigError
from dragoman.base.version import VERSION
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.manifest import (
    FORMAT_VERSION,
    Manifest,
    OutputFile,
    SplitFacts,
    digest_files,
)
from dragoman.corpus.subword import VOCABULARIES
from dragoman.formats.bundle import CARD_FILE, INFO_FILE, Bundle, BundleInfo, Verified, check_place
from dragoman.formats.card import model_card
from dragoman.importing.config import read_json
from dragoman.importing.folder import UNKNOWN_LANGUAGE, ImportedModel, read_folder, vocabulary_files
from dragoman.importing.tokenizer import TOKENIZER_FILE, Languages
from dragoman.recipe.recipe import dump_toml
from dragoman.training.durable import publish

_LONGEST_SETTINGS: Final = 1 << 26
_LETTERS: Final = 2
"""A code of two letters always names one language, never a group."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The bundle of an imported model."""

    path: Path
    size_bytes: int
    info: BundleInfo


def import_bundle(folder: Path, output: Path, languages: Languages, *, licence: str) -> Imported:
    """Write the model of a folder as a bundle. The folder stays as it is.

    licence: the licence of the model, in words for its card.
    Raises ConfigError or CheckpointError if the model cannot be imported or the place is taken;
    nothing is left behind then.
    """
    imported = read_folder(folder, languages)
    check_place(output, source=folder)
    source, target = vocabulary_files(imported)
    _check_languages(folder, imported)
    for content in (source, target):  # what could not be read again is never written
        ImportedVocabulary.parse(content, place=folder)
    manifest = _manifest(imported, dict(zip(VOCABULARIES, (source, target), strict=True)))
    info = BundleInfo(
        kind="bundle",
        name=imported.recipe.name,
        dragoman_version=VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source_language=imported.recipe.corpus.source_language,
        target_language=imported.recipe.corpus.target_language,
        licence=licence,
        run="",
        checkpoint="",
        step=None,
        num_parameters=sum(weight.numel() for weight in imported.model.parameters()),
        quantization="float32",
        vocabularies={name: manifest.files[name].sha256 for name in VOCABULARIES},
        imported=folder.resolve().name,
        scores=(),
        verified=Verified(sentences=0, identical=0, chrf=100.0),
    )

    def fill(draft: Path) -> None:
        for name, content in zip(VOCABULARIES, (source, target), strict=True):
            (draft / name).write_bytes(content)
        (draft / "recipe.toml").write_text(dump_toml(imported.recipe), encoding="utf-8")
        (draft / "manifest.json").write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        weights = {
            name: weight.detach().contiguous() for name, weight in imported.model.named_parameters()
        }
        save_file(weights, draft / "model.safetensors", metadata=info.vocabularies)
        (draft / INFO_FILE).write_text(info.model_dump_json(indent=1), encoding="utf-8")
        card = model_card(info, imported.recipe, manifest)
        (draft / CARD_FILE).write_text(card, encoding="utf-8")

    size_bytes = publish(output, fill)
    Bundle.open(output)
    return Imported(output, size_bytes, info)


def _check_languages(folder: Path, imported: ImportedModel) -> None:
    """Raises ConfigError if the folder of a MarianMT model names another language for a side.

    If a piece of the source chooses the target, the target is not compared. If the folder's code
    names a group, such as gem or mul, any language is accepted. The user's code of three letters is
    compared if langcodes is installed.
    """
    path = folder / TOKENIZER_FILE
    source, _ = imported.vocabularies
    if source.kind != "marian" or not path.exists():
        return
    settings, corpus = read_json(path, limit=_LONGEST_SETTINGS), imported.recipe.corpus
    for side, code in (("source", corpus.source_language), ("target", corpus.target_language)):
        stated = settings.get(f"{side}_lang")
        if (
            not isinstance(stated, str)
            or len(stated) != _LETTERS
            or (side == "target" and source.codes)
        ):
            continue
        if _standard(code) not in (stated, "") and code != UNKNOWN_LANGUAGE:
            raise ConfigError(
                f"its {side} language is {stated!r}, not {code!r}",
                place=path,
                remedy=f"leave out the {side} language",
            )


def _standard(code: str) -> str:
    """The code of two letters for a language; "" if it is not known."""
    short = re.split("[-_]", code)[0].lower()
    if len(short) == _LETTERS:
        return short
    try:
        from langcodes import standardize_tag
    except ImportError:
        return ""
    try:
        found = standardize_tag(short)
    except ValueError:
        return ""
    return found if len(found) == _LETTERS else ""


def _manifest(imported: ImportedModel, files: dict[str, bytes]) -> Manifest:
    """The manifest of an unknown corpus, with the vocabularies."""
    listed = {
        name: OutputFile(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        for name, content in files.items()
    }
    nothing = SplitFacts(
        stages=(),
        pairs=0,
        source_pieces=0,
        target_pieces=0,
        source_unknown_pieces=0,
        target_unknown_pieces=0,
        truncated=0,
        truncated_share=0.0,
    )
    source, target = imported.vocabularies
    return Manifest(
        format_version=FORMAT_VERSION,
        digest=digest_files(listed),
        config=imported.recipe.corpus,
        source_vocab_size=len(source.pieces),
        target_vocab_size=len(target.pieces),
        sources=(),
        splits={"train": nothing},
        files=listed,
    )
