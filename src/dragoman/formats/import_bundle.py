"""Writes a model of another tool, in Hugging Face form, as a bundle."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from safetensors.torch import save_file

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
from dragoman.importing.folder import ImportedModel, read_folder, vocabulary_files
from dragoman.importing.tokenizer import Languages
from dragoman.recipe.recipe import dump_toml
from dragoman.training.durable import publish


@dataclass(frozen=True, slots=True)
class Imported:
    """The bundle of an imported model."""

    path: Path
    size_bytes: int
    info: BundleInfo


def import_bundle(folder: Path, output: Path, languages: Languages, *, licence: str) -> Imported:
    """Write the model of a folder as a bundle. The folder stays as it is.

    licence: of the model, in words for its card.
    Raises ConfigError or CheckpointError if the model cannot be imported or the place is taken;
    nothing is left behind then.
    """
    check_place(output)
    imported = read_folder(folder, languages)
    source, target = vocabulary_files(imported)
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
