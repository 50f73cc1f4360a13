"""A package of our model for Argos Translate and LibreTranslate: one zip archive, EN_DE.argosmodel.

translate-EN_DE/metadata.json         languages and versions
translate-EN_DE/model/                the model, for CTranslate2
translate-EN_DE/sentencepiece.model   cuts a text into pieces, and joins those of a translation
translate-EN_DE/minisbd/              a graph for MiniSBD that finds where sentences end
translate-EN_DE/README.md             the model card

Argos Translate's handling of a text is fixed (`translate.apply_packaged_translation` of version
1.11): it splits a paragraph into sentences, cuts them with SentencePiece, searches with a beam of
at least 4 and the length penalty length^0.2, and joins the pieces of all sentences. A package can
change how sentences are split and text is normalised, but not the search.
"""

from __future__ import annotations

import base64
import json
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.base.files import write_json
from dragoman.base.languages import is_language, language_name, parse_language, same_language
from dragoman.corpus.directions import Direction
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.distributed.wire import FP32_BYTES
from dragoman.formats.bundle import Bundle
from dragoman.formats.ctranslate2 import ctranslate2_settings, write_ctranslate2
from dragoman.formats.kinds import Quantization

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer

MODEL_FOLDER: Final = "model"
_PIECES_FILE: Final = "sentencepiece.model"
_BEAM_SIZE: Final = 4
_LENGTH_PENALTY: Final = 0.2
ARGOS_SEARCH: Final = (
    f"search.beam_size={_BEAM_SIZE}",
    "search.length_penalty=power",
    f"search.length_penalty_alpha={_LENGTH_PENALTY}",
    "search.max_length_ratio=0",
    "search.max_length_extra=256",
)
"""Settings with which our search finds what Argos Translate finds."""
_OLDEST_ARGOS: Final = "1.10"
"""The first Argos Translate that knows MiniSBD."""
_MODEL_FILES: Final = (
    "model.bin",
    "shared_vocabulary.json",
    "source_vocabulary.json",
    "target_vocabulary.json",
)
_MOST_OTHER_BYTES: Final = 1 << 28
"""Bytes of a file beside the weights: tables of positions, lists of pieces."""
_REMEDY: Final = "export it again from its run"
_CODES_OF_INDEX: Final = {"no": "nb"}
"""Codes of languages in Argos Translate's index that are not those of our table."""
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""A fixed time makes equal archives; it is the earliest time of zip."""


def check_for_argos(subwords: tuple[Vocabulary, Vocabulary]) -> None:
    """Raises ConfigError if Argos Translate could not give the model its language tokens."""
    source, target = subwords
    problem = remedy = ""
    if target.prefix("")[0]:
        problem = "its translations begin with a token for the language, which stays in the text"
        remedy = "export to ctranslate2, and serve it with dragoman serve"
    elif isinstance(source, ImportedVocabulary) and source.file.codes and not source.file.prefix:
        problem = "a text begins with the code of its target language, which is never added"
        remedy = "import the model again for one target language"
    if problem:
        raise ConfigError(f"{problem} in Argos Translate", place="argos", remedy=remedy)


def write_argos(
    model: Transformer,
    subwords: tuple[Vocabulary, Vocabulary],
    source_vocabulary: bytes,
    folder: Path,
    *,
    direction: Direction,
    token: str,
    lowercase: bool,
    quantization: Quantization,
) -> None:
    """Write the files of a package but its README into a new folder.

    source_vocabulary: the content of the run's source.model.
    direction: the languages of the package. token: stands before every text of it; "" if the model
    has one target language. lowercase: whether it reads lower-cased text.
    Raises MachineError if a library is missing. The model must have passed `check_for_argos`.
    """
    # These import protobuf and torch, which are not needed to translate with a package.
    from dragoman.formats.normalizing_pieces import with_normalization
    from dragoman.formats.sentence_ends import write_sentence_ends

    source, _ = subwords
    (folder / MODEL_FOLDER).mkdir(parents=True)
    write_ctranslate2(model, subwords, folder / MODEL_FOLDER, quantization=quantization)
    if isinstance(source, ImportedVocabulary):
        pieces = base64.b64decode(source.file.encoding)
        (token,) = source.pieces([*source.file.prefix]) or [""]
    else:
        pieces = with_normalization(source_vocabulary, lowercase=lowercase)
    if token:
        _add_prefix(folder / MODEL_FOLDER / "config.json", token)
    (folder / _PIECES_FILE).write_bytes(pieces)
    (folder / "minisbd").mkdir()
    write_sentence_ends(folder / "minisbd" / "sentence_ends.onnx")
    metadata = {"type": "translate", "package_version": "1.0", "argos_version": _OLDEST_ARGOS}
    for side, code in zip(("from", "to"), direction, strict=True):
        metadata |= {f"{side}_code": argos_code(code), f"{side}_name": language_name(code)}
    write_json(folder / "metadata.json", metadata)


def pack(folder: Path, package: Path) -> None:
    """Pack a folder with all its files into a package, and remove the folder."""
    with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            name = f"translate-{package.stem}/{path.relative_to(folder).as_posix()}"
            if path.is_file():
                entry = zipfile.ZipInfo(name, _ZIP_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes())
    shutil.rmtree(folder)


def unpack_model(bundle: Bundle, folder: Path) -> None:
    """Write the model of an exported package into a folder, as our CTranslate2 engine reads it.

    The engine cuts texts itself, so the package's prefix of every text is left out.
    Raises CheckpointError if the package is damaged or too large.
    """
    package, manifest = bundle.weights_file, bundle.manifest
    num_parameters = bundle.recipe.model.num_parameters(
        source_vocab_size=manifest.source_vocab_size, target_vocab_size=manifest.target_vocab_size
    )
    # The file may come from a stranger.
    most_bytes = 2 * FP32_BYTES * num_parameters + _MOST_OTHER_BYTES
    top = f"translate-{package.stem}/{MODEL_FOLDER}/"
    try:
        with zipfile.ZipFile(package) as archive:
            for entry in archive.infolist():
                name = entry.filename.removeprefix(top)
                if name in _MODEL_FILES and entry.filename == top + name:
                    if entry.file_size > most_bytes:
                        raise CheckpointError(f"{name} is too large", place=package, remedy=_REMEDY)
                    (folder / name).write_bytes(archive.read(entry))
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise CheckpointError(
            f"cannot be unpacked: {error}", place=package, remedy=_REMEDY
        ) from error
    _, target = bundle.subwords()
    settings = ctranslate2_settings(target, bundle.recipe.model.start_ids[0])
    write_json(folder / "config.json", {"bos_token": settings["decoder_start_token"]} | settings)


def translate_as_argos(folder: Path, sentences: list[str]) -> list[str]:
    """Translations with the files in a package's folder, as Argos Translate makes them."""
    import ctranslate2
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / _PIECES_FILE))
    translator = ctranslate2.Translator(str(folder / MODEL_FOLDER))
    found = translator.translate_batch(
        [processor.encode(sentence, out_type=str) for sentence in sentences],
        replace_unknowns=True,
        max_batch_size=32,
        batch_type="tokens",
        beam_size=_BEAM_SIZE,
        length_penalty=_LENGTH_PENALTY,
    )
    texts = [processor.decode_pieces(one.hypotheses[0]) for one in found]
    return [text.replace("▁", " ").replace("_", " ").removeprefix(" ") for text in texts]


def _add_prefix(config: Path, code: str) -> None:
    """Have CTranslate2 begin every text with the piece that names the target language."""
    values: dict[str, Any] = json.loads(config.read_bytes())
    write_json(config, values | {"bos_token": code, "add_source_bos": True})


def argos_code(code: str) -> str:
    """The one code of a language in packages: that of Argos Translate's index, by which clients ask
    for it, or else the shortest of ISO 639, with the script if it is not the usual one."""
    if not is_language(code):
        return code
    language = parse_language(code)
    if language.language == "zh":
        return "zt" if language.script == "Hant" else "zh"
    if (language.language, language.region) == ("pt", "BR"):
        return "pb"
    short = _CODES_OF_INDEX.get(language.language, language.language)
    return short if same_language(short, code) else f"{short}-{language.script}"
