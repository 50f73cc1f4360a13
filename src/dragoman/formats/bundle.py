"""A trained model as one directory that needs nothing else. Free of torch.

model.safetensors config.json vocab.json *.spm ...   for dragoman and transformers (huggingface)
model.bin config.json *_vocabulary.json   for CTranslate2                         (ctranslate2)
source.model target.model   SentencePiece
recipe.toml manifest.json   how it was trained, and on what
encoder.onnx decoder.onnx   for ONNX runtimes                                        (onnx)
EN_DE.argosmodel            for Argos Translate and LibreTranslate                  (argos)
index.html encoder.onnx decoder.onnx onnxruntime-web.wasm ...   for browsers         (web)
bundle.json README.md       what it is, for programs and for people
digests.json                size and SHA-256 of all the others
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, DragomanError
from dragoman.base.files import read_regular
from dragoman.base.settings import Section
from dragoman.corpus.config import LANGUAGE, CorpusConfig
from dragoman.corpus.directions import Direction, language_token, listed
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.subword import VOCABULARIES, vocabulary_digests
from dragoman.corpus.vocabulary import Vocabulary, load_vocabulary
from dragoman.formats.kinds import FORMATS, Kind, Quantization
from dragoman.recipe.recipe import NAME, Recipe, load_recipe
from dragoman.training.durable import DIGESTS_FILE, read_digests, verify

INFO_FILE: Final = "bundle.json"
CARD_FILE: Final = "README.md"
NUM_SENTENCES: Final = 100
"""Sentences that an export must translate like our own search."""
_M2M100: Final = ("config.json", "tokenizer_config.json", "sentencepiece.bpe.model")
"""The files of M2M100 or NLLB."""
_COMMON: Final = (*VOCABULARIES, "recipe.toml", "manifest.json", INFO_FILE, CARD_FILE)
_LONGEST_DESCRIPTION: Final = 1 << 20
"""Bytes of bundle.json or of the card."""
_MOST_DIRECTIONS: Final = 10_000
"""A hundred languages into each other."""
_ALIKE_IDENTICAL: Final = 0.98
_ALIKE_CHRF: Final = 99.0
_REMEDY: Final = "copy it here again, or make it again: export the run, or import the model"


class BundleScore(Section):
    """A score of the exported weights; text: the translated text."""

    text: str
    value: float
    low: float | None
    high: float | None
    signature: str


class Verified(Section):
    """The result of the check of an export: its translations compared with our own search's.

    chrf: chrF of its translations against ours; 100 if all are equal.
    """

    sentences: int
    identical: int
    chrf: float

    @property
    def warning(self) -> str:
        """A warning for the user if the export does not translate alike, else "".

        It translates alike if 98 of 100 translations are equal, or if chrF between the two is at
        least 99. The type of the weights and the program that searches make no difference.
        """
        if self.identical >= _ALIKE_IDENTICAL * self.sentences or self.chrf >= _ALIKE_CHRF:
            return ""
        return (
            f"warning: only {self.identical} of {self.sentences} translations are equal to our "
            f"own search's (98% are usual), and chrF between them is {self.chrf:.1f} (99 is "
            "usual). That says nothing of quality: dragoman evaluate EXPORT --source TEXT "
            "--reference TEXT does. An export to ctranslate2 in float32 "
            "translates alike"
        )


class BundleDirection(Section):
    """One direction of a model that has several, or the only one of a model with a token.

    token: the token before a source that chooses the target; "" if the model has no tokens.
    zero_shot: whether it had no training text.
    """

    source: str = Field(pattern=LANGUAGE, max_length=35)
    target: str = Field(pattern=LANGUAGE, max_length=35)
    token: str = Field(default="", max_length=40)
    zero_shot: bool = False


def directions_of(corpus: CorpusConfig) -> tuple[BundleDirection, ...]:
    """The directions of a model of several, or the only one of a model with a token; else none."""
    tokens, directions = corpus.language_tokens, corpus.directions
    if len(directions) == 1 and not tokens:
        return ()
    return tuple(
        BundleDirection(
            source=one.source,
            target=one.target,
            token=language_token(one.target) if tokens else "",
            zero_shot=one not in corpus.train_directions,
        )
        for one in directions
    )


class BundleInfo(Section):
    """The description of a bundle; vocabularies: SHA-256 by file name.

    directions: those of a model that has several or needs a token; the first has source_language
    and target_language. Empty for other models.
    """

    format_version: Literal[1] = 1
    kind: Annotated[Kind, AfterValidator(FORMATS.known)]
    name: str = Field(pattern=NAME, max_length=100)
    dragoman_version: str
    created: str
    source_language: str = Field(pattern=LANGUAGE, max_length=35)
    target_language: str = Field(pattern=LANGUAGE, max_length=35)
    directions: tuple[BundleDirection, ...] = Field(default=(), max_length=_MOST_DIRECTIONS)
    licence: str
    run: str = ""
    checkpoint: str = ""
    step: int | None = None
    num_parameters: int
    quantization: Quantization
    vocabularies: dict[str, str]
    imported: str = Field(default="", max_length=1000)
    """The name of the folder that an imported model came from; "" if it was trained here."""
    scores: tuple[BundleScore, ...] = ()
    verified: Verified

    @property
    def languages(self) -> tuple[str, ...]:
        """Every language that it reads or writes."""
        named = [code for one in self.directions for code in (one.source, one.target)]
        return tuple(dict.fromkeys((self.source_language, self.target_language, *named)))

    @property
    def title(self) -> str:
        """The pairs of languages in words, such as en to de."""
        pairs = [(one.source, one.target) for one in self.directions]
        return listed(
            Direction(*pair) for pair in pairs or [(self.source_language, self.target_language)]
        )

    @property
    def weights_name(self) -> str:
        """The name of the file with the weights."""
        return FORMATS[self.kind].weights.format(
            source=self.source_language, target=self.target_language
        )


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files have not changed since the export.

    new_card: its card after its languages were corrected; "": that of its file.
    """

    path: Path
    info: BundleInfo
    recipe: Recipe
    manifest: Manifest
    new_card: str = ""

    @classmethod
    def open(cls, path: Path) -> Self:
        """The bundle in this directory.

        Raises CheckpointError that names the part that is missing, altered, or foreign.
        """
        try:
            _check_kinds_of_files(path)
            _check_digests(path)
            info = BundleInfo.model_validate_json(
                read_regular(path / INFO_FILE, limit=_LONGEST_DESCRIPTION)
            )
            _check_listed(path, *_COMMON, info.weights_name)
            recipe, manifest = (
                load_recipe(path / "recipe.toml", is_recorded=True),
                Manifest.load(path),
            )
            own = FORMATS[info.kind].files
            is_imported = recipe.corpus.subword.kind == "imported"
            if info.kind == "huggingface" and is_imported and recipe.model.norm == "pre":
                own = _M2M100
            _check_listed(path, *own)
        except (OSError, ValidationError) as error:
            raise CheckpointError(
                "cannot be read by this version", place=path / INFO_FILE, remedy=_REMEDY
            ) from error
        except DragomanError as error:
            raise CheckpointError(error.problem, place=error.place, remedy=_REMEDY) from error
        bundle = cls(path, info, recipe, manifest)
        try:
            bundle._check_vocabularies()
        except CorpusError as error:
            raise CheckpointError(error.problem, place=error.place, remedy=_REMEDY) from error
        return bundle

    @property
    def weights_file(self) -> Path:
        """The weights, in the format of the bundle's kind."""
        return self.path / self.info.weights_name

    def card(self) -> str:
        """The model card as Markdown; raises CheckpointError if it cannot be read."""
        if self.new_card:
            return self.new_card
        file = self.path / CARD_FILE
        try:
            return read_regular(file, limit=_LONGEST_DESCRIPTION).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                "cannot be read as UTF-8 text of at most a megabyte", place=file, remedy=_REMEDY
            ) from error

    def subwords(self) -> tuple[Vocabulary, Vocabulary]:
        """The subword models of the source and of the target."""
        source, target = (load_vocabulary(self.path / name) for name in VOCABULARIES)
        return source, target

    def _check_vocabularies(self) -> None:
        """Raises CheckpointError if weights and vocabularies do not belong together: such a model
        translates wrongly, without an error."""
        digests = vocabulary_digests(self.path)
        sizes = tuple(subword.vocab_size for subword in self.subwords())
        try:
            self.recipe.model.check_start_ids(sizes[1])
        except ValueError as error:
            raise CheckpointError(
                str(error), place=self.path / "recipe.toml", remedy=_REMEDY
            ) from error
        said = (self.manifest.source_vocab_size, self.manifest.target_vocab_size)
        if sizes != said or digests != self.info.vocabularies:
            raise CheckpointError(
                "its vocabulary is not the one that the weights were trained with",
                place=self.path,
                remedy=_REMEDY,
            )


def _check_listed(path: Path, *names: str) -> None:
    for name in names:
        if name not in read_digests(path):
            raise CheckpointError("is missing", place=path / name)


def _check_kinds_of_files(path: Path) -> None:
    """Raises CheckpointError if anything but regular files and folders lies in a bundle.

    Libraries open files by names of their own, and would wait for a pipe or read a device.
    """
    for entry in os.scandir(path):
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            raise CheckpointError(f"cannot be read: {error.strerror}", place=entry.path) from error
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise CheckpointError("is not a regular file", place=entry.path)


def _check_digests(path: Path) -> None:
    """Raises CheckpointError if a file differs from its digest: either of them may be damaged."""
    try:
        verify(path)
    except CheckpointError as error:
        name = Path(error.place).name
        if name == DIGESTS_FILE or error.__cause__ is not None:  # it could not be read at all
            raise
        problem = f"{error.problem}; either {name} or {DIGESTS_FILE} beside it is damaged"
        raise CheckpointError(problem, place=error.place) from error


def check_place(output: Path, *, source: Path) -> None:
    """Raises CheckpointError if an export would replace anything but an older export.

    An older export has every file as it was written, and no other: files that somebody added or
    changed are never lost.
    source: the model that is exported, which is never replaced.
    """
    if output.exists() and output.samefile(source):
        raise CheckpointError(
            "is the model that is read", place=output, remedy="name another place for the output"
        )
    if output.exists() and (problem := _difference_from_export(output)):
        raise CheckpointError(
            problem, place=output, remedy="name another place, or move this one elsewhere"
        )


def _difference_from_export(place: Path) -> str:
    """Its difference from an empty folder or from an export as it was written, in words."""
    if place.is_dir() and not any(place.iterdir()):
        return ""
    # Checkpoints and averages have digests too, but no card.
    if not all((place / name).is_file() for name in (DIGESTS_FILE, CARD_FILE)):
        return "exists already and is not an export"
    try:
        others = {path.name for path in place.iterdir()} - {*read_digests(place), DIGESTS_FILE}
        if others:
            return f"is an export that also holds {min(others)}, which would be lost"
        verify(place)
    except CheckpointError as error:
        return f"is an export whose {Path(error.place).name} is not as it was written"
    return ""


def default_name(kind: Kind, quantization: Quantization) -> str:
    """The folder in a run's `export/` that such an export is written to."""
    return FORMATS[kind].folder.format(kind=kind, quantization=quantization)


def refuse_checkpoint_of_export(path: Path, checkpoints: Sequence[str]) -> None:
    """Raises ConfigError if checkpoints other than the best one are asked of an export."""
    if is_bundle(path) and [*checkpoints] != ["best"]:
        raise ConfigError(
            "an export has the weights of one checkpoint only",
            place=f"checkpoint {','.join(checkpoints)}",
            remedy="leave it out, or name the run",
        )


def is_bundle(path: Path) -> bool:
    """Whether this directory is, or was before it was damaged, a bundle rather than a run."""
    return (path / INFO_FILE).is_file() or (path / DIGESTS_FILE).is_file()
