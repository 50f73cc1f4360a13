"""One export under way, and the interface of a format's writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.corpus.directions import Direction, target_of, token_for
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import vocabulary_digests
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.formats.bundle import Bundle, BundleInfo
from dragoman.formats.kinds import FORMATS, NOT_STATED, Kind, Quantization
from dragoman.formats.trained_model import TranslationModel
from dragoman.model.config import SearchConfig, power_search
from dragoman.model.search import Hypothesis, translate_batch
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Request:
    """The options of an export.

    output: the new folder; None: in the run. An imported model needs one.
    quantization: the type of the weights; None: the first that the format has.
    licence: the licence of the model, in words for its card.
    sentences: a file of source text to check the export on; the run's dev set if it is None.
    target: the target language of a package for Argos Translate, if the model has several.
    languages: the right languages of a model that was trained under wrong ones, such as "en-fr".
    overrides: settings to change in the recipe's section search, such as "search.beam_size=2".
    onnxruntime_web: the package of that name for browsers; None: npm fetches it.
    """

    to: Kind
    checkpoint: str = "best"
    output: Path | None = None
    quantization: Quantization | None = None
    licence: str = NOT_STATED
    sentences: Path | None = None
    target: str = ""
    languages: str = ""
    overrides: Sequence[str] = ()
    onnxruntime_web: Path | None = None

    @property
    def bits(self) -> Quantization:
        """The wanted quantization, or the default of the format."""
        return self.quantization or FORMATS[self.to].quantizations[0]


@dataclass(frozen=True, slots=True)
class ExportJob:
    """An export under way.

    checkpoint: its directory, or that of an imported model.
    recipe, manifest: those written into it, with public keys alone.
    """

    origin: RunDirectory | Bundle
    checkpoint: Path
    recipe: Recipe
    manifest: Manifest
    model: TranslationModel
    request: Request

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the export's target languages; raises ConfigError for an unknown target."""
        tokens = self.recipe.corpus.language_tokens
        if not FORMATS[self.request.to].has_one_direction:
            return tokens
        token = token_for(self.request.target, self.recipe.corpus.directions, tokens)
        return (token,) if token else ()

    @property
    def direction(self) -> Direction:
        """The first direction that the export is for."""
        directions = self.recipe.corpus.directions
        if not self.request.target:
            return directions[0]
        target = target_of(self.request.target, directions)
        return next(one for one in directions if one.target == target)

    @property
    def transformer(self) -> Transformer:
        """The model whose weights are written."""
        return self.model.models[0]

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the vocabularies, to be written beside the weights."""
        return vocabulary_digests(self.origin.path)

    @property
    def first_piece(self) -> str:
        """The piece of a language that an imported vocabulary puts before each text, or ""."""
        return first_piece(self.model.subwords[0])

    def ids(self, texts: list[str]) -> list[list[int]]:
        """The ids of the texts, normalised."""
        return self.model.subwords[0].encode([self.normalized(text) for text in texts])

    def hypotheses(self, texts: list[str], search: SearchConfig) -> list[Hypothesis]:
        """The best hypothesis of our own search for each text."""
        return [best for best, *_ in translate_batch(self.model.models, self.ids(texts), search)]

    def ours(self, texts: list[str], search: SearchConfig) -> list[str]:
        """Translations by our own search."""
        return self.decoded([found.ids for found in self.hypotheses(texts, search)])

    def power_search(self) -> SearchConfig:
        """The recipe's search in the form that transformers has."""
        length = self.manifest.train.mean_target_tokens
        return power_search(self.recipe.search.without_guard(), length)

    def decoded(self, ids: list[list[int]]) -> list[str]:
        """The text of translations."""
        return self.model.subwords[1].decode(ids)

    def normalized(self, text: str) -> str:
        """The text in the form of training text."""
        return normalize(text, lowercase=self.model.lowercase)


class Writer(ABC):
    """Writes the weights of a job in one format."""

    def __init__(self, job: ExportJob) -> None:
        self.job = job

    @staticmethod  # noqa: B027
    def check_recipe(recipe: Recipe) -> None:
        """Raises ConfigError, before a model is loaded, if the format has no such model."""

    def check(self) -> None:  # noqa: B027
        """Raises ConfigError, before anything is written, if the format cannot express the job."""

    @abstractmethod
    def write(self, texts: list[str], draft: Path) -> list[str]:
        """Write the weights into a folder that has the vocabularies; returns translations of the
        texts by the exported model.

        The caller checks them against our own search if the weights are not quantized. If they are,
        the writer makes a check of its own. Raises CheckpointError if the export is wrong.
        """

    def search(self) -> SearchConfig | None:
        """The recipe's search, as near as the format has it; None: the format has its own rules.

        If the weights are not quantized, our own search must find the same translations.
        """
        search = self.job.recipe.search
        return greedy(search) if FORMATS[self.job.request.to].is_greedy else search

    def finish(self, draft: Path, info: BundleInfo, card: str) -> None:  # noqa: B027
        """Called when all other files of the export are in the draft."""


def first_piece(source: Vocabulary) -> str:
    """The piece of a language that an imported vocabulary puts before each text, or ""."""
    if isinstance(source, ImportedVocabulary):
        return "".join(source.pieces([*source.file.prefix]))
    return ""


def greedy(search: SearchConfig) -> SearchConfig:
    """The search of an export that is checked without a beam."""
    return search.without_guard().model_copy(update={"beam_size": 1, "end_at_limit": False})
