"""Writes a model of another tool in the same form, Hugging Face's, with records beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dragoman.base.errors import ConfigError
from dragoman.base.languages import is_language, parse_language
from dragoman.base.version import VERSION
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.manifest import (
    FORMAT_VERSION,
    Manifest,
    OutputFile,
    SplitFacts,
    digest_files,
)
from dragoman.corpus.subword import VOCABULARIES
from dragoman.corpus.vocabulary import Vocabulary, parse_vocabulary
from dragoman.formats.bundle import (
    CARD_FILE,
    INFO_FILE,
    Bundle,
    BundleInfo,
    Verified,
    check_place,
    directions_of,
)
from dragoman.formats.card import model_card
from dragoman.formats.export_job import first_piece
from dragoman.formats.huggingface import write_folder
from dragoman.formats.returned import read_model_folder
from dragoman.importing.config import read_json
from dragoman.importing.folder import UNKNOWN_LANGUAGE
from dragoman.importing.tokenizer import TOKENIZER_FILE, Languages
from dragoman.recipe.recipe import dump_toml
from dragoman.training.durable import publish

_LONGEST_SETTINGS: Final = 1 << 26
_LETTERS: Final = 2
"""A code of two letters always names one language, never a group."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The folder of an imported model."""

    path: Path
    size_bytes: int
    info: BundleInfo


def import_folder(folder: Path, output: Path, languages: Languages, *, licence: str) -> Imported:
    """Write the model of a folder into another, with records. The first stays as it is.

    licence: the licence of the model, in words for its card.
    Raises ConfigError or CheckpointError if the model cannot be imported or the place is taken;
    nothing is left behind then.
    """
    imported = read_model_folder(folder, languages)
    recipe = imported.recipe
    check_place(output, source=folder)
    # What could not be read again is never written.
    source, target = (parse_vocabulary(one, place=folder) for one in imported.vocabularies)
    _check_languages(folder, recipe.corpus, source)
    contents = dict(zip(VOCABULARIES, imported.vocabularies, strict=True))
    manifest = _manifest(recipe.corpus, (source, target), contents)
    directions = recipe.corpus.directions
    info = BundleInfo(
        kind="huggingface",
        name=recipe.name,
        dragoman_version=VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source_language=directions[0].source,
        target_language=directions[0].target,
        directions=directions_of(recipe.corpus),
        licence=licence,
        num_parameters=sum(weight.numel() for weight in imported.model.parameters()),
        quantization="float32",
        vocabularies={name: manifest.files[name].sha256 for name in VOCABULARIES},
        imported=folder.resolve().name,
        verified=Verified(sentences=0, identical=0, chrf=100.0),
    )

    def fill(draft: Path) -> None:
        for name, content in contents.items():
            (draft / name).write_bytes(content)
        (draft / "recipe.toml").write_text(dump_toml(recipe), encoding="utf-8")
        (draft / "manifest.json").write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        write_folder(imported.model, recipe, 0.0, imported.vocabularies, draft)
        (draft / INFO_FILE).write_text(info.model_dump_json(indent=1), encoding="utf-8")
        card = model_card(info, recipe, manifest, first_piece=first_piece(source))
        (draft / CARD_FILE).write_text(card, encoding="utf-8")

    size_bytes = publish(output, fill)
    Bundle.open(output)
    return Imported(output, size_bytes, info)


def _check_languages(folder: Path, corpus: CorpusConfig, source: Vocabulary) -> None:
    """Raises ConfigError if the folder of a MarianMT model names another language for a side.

    If a piece of the source chooses the target, the target is not compared. If the folder's code
    names a group, such as gem or mul, any language is accepted.
    """
    path = folder / TOKENIZER_FILE
    if not isinstance(source, ImportedVocabulary) or source.file.kind != "marian":
        return
    if not path.exists():
        return
    settings = read_json(path, limit=_LONGEST_SETTINGS)
    for side, code in (("source", corpus.source_language), ("target", corpus.target_language)):
        stated = settings.get(f"{side}_lang")
        if (
            not isinstance(stated, str)
            or len(stated) != _LETTERS
            or (side == "target" and source.file.codes)
        ):
            continue
        if code == UNKNOWN_LANGUAGE or not is_language(stated):
            continue
        if (
            not is_language(code)
            or parse_language(code).language != parse_language(stated).language
        ):
            raise ConfigError(
                f"its {side} language is {stated!r}, not {code!r}",
                place=path,
                remedy=f"leave out the {side} language",
            )


def _manifest(
    corpus: CorpusConfig, vocabularies: tuple[Vocabulary, Vocabulary], files: dict[str, bytes]
) -> Manifest:
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
    source, target = vocabularies
    return Manifest(
        format_version=FORMAT_VERSION,
        digest=digest_files(listed),
        config=corpus,
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        sources=(),
        splits={"train": nothing},
        files=listed,
    )
