"""A run or its export as PyTorch's model: to translate with, or to start another training from.

The vocabulary goes with the weights: the numbers of the pieces are rows of the matrices.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.base.errors import CheckpointError, ConfigError
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import UNK
from dragoman.corpus.subword import VOCABULARIES, read_vocabulary, vocabulary_digests
from dragoman.corpus.vocabulary import Vocabulary, load_vocabulary, parse_vocabulary
from dragoman.distributed.world import World
from dragoman.formats.bundle import INFO_FILE, Bundle, is_bundle
from dragoman.formats.huggingface import read_written
from dragoman.formats.returned import read_model_folder
from dragoman.formats.trained_model import (
    TranslationModel,
    checkpoint_path,
    layout_of,
    layout_to_write,
    new_model,
)
from dragoman.importing.folder import (
    ImportedModel,
    fetching,
    is_foreign,
)
from dragoman.importing.tokenizer import Languages
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe, digest
from dragoman.recipe.run_directory import ORIGIN_FILE, RunDirectory
from dragoman.training.checkpoint import (
    CheckpointStore,
    TrainState,
    load_weights,
)

_SHAPE: Final = (
    "d_model", "num_heads", "d_ffn", "encoder_layers", "decoder_layers", "norm", "activation",
    "tied_embeddings", "attention_bias", "positions", "first_position", "scaled_embeddings",
    "output_bias", "start_ids",
)  # fmt: skip
_SUBWORD: Final = ("kind", "vocab_size", "joint", "byte_fallback")


def load_translation_model(
    path: Path, checkpoints: Sequence[str], world: World
) -> TranslationModel:
    """The model of an export in Hugging Face form, or the models of some checkpoints of a run.

    Raises CheckpointError if it is none of these, is damaged, or holds no weights for PyTorch.
    """
    if not is_bundle(path):
        return TranslationModel.load(run_at(path), checkpoints, world)
    bundle = Bundle.open(path)
    subwords = bundle.subwords()
    model = _model_of(bundle, subwords)
    return TranslationModel(
        models=(model.to(world.device).eval(),),
        subwords=subwords,
        lowercase=bundle.recipe.corpus.lowercase,
        max_source_pieces=bundle.recipe.corpus.max_pieces,
        world=world,
    )


def run_or_imported(path: Path) -> RunDirectory | Bundle:
    """The run at a path, or an imported model; raises CheckpointError."""
    if (path / INFO_FILE).is_file() and (bundle := Bundle.open(path)).info.imported:
        return bundle
    return run_at(path)


def run_at(path: Path) -> RunDirectory:
    """The run at a path; raises CheckpointError that names the thing at the path, if any."""
    if not path.exists():
        raise _absent(path)
    if not RunDirectory(path).recipe_file.is_file() and is_foreign(path):
        raise CheckpointError(
            "is a model of another tool",
            place=path,
            remedy=f"import it first: dragoman import {shlex.quote(str(path))} --to FOLDER",
        )
    if path.is_dir() and not RunDirectory(path).recipe_file.is_file():
        raise CheckpointError(
            "is neither a run nor an export of dragoman: it holds no recipe.toml",
            place=path,
            remedy="give the directory of a run, an export or an imported model",
        )
    return RunDirectory.open(path)


def _absent(path: Path) -> CheckpointError:
    remedy = "check the name"
    if how := fetching(path):
        remedy += f"; if it is one of the Hugging Face Hub, {how}"
    return CheckpointError("does not exist", place=path, remedy=remedy)


def _read_for(folder: Path, recipe: Recipe | None) -> ImportedModel:
    """A model of another tool, read for the languages of the recipe if it has one direction."""
    if recipe is not None and len(recipe.corpus.directions) == 1:
        (direction,) = recipe.corpus.directions
        return read_model_folder(folder, Languages(direction.source, direction.target))
    return read_model_folder(folder, Languages())


def _model_of(bundle: Bundle, subwords: tuple[Vocabulary, Vocabulary]) -> Transformer:
    """PyTorch's model of an export in Hugging Face form."""
    kind = bundle.info.kind
    if kind != "huggingface":
        raise CheckpointError(
            f"has only the weights of an export of kind {kind}, which PyTorch cannot load here",
            place=bundle.path,
            remedy="name the run, or its export to huggingface",
        )
    return read_written(bundle.path, bundle.recipe, subwords)


@dataclass(frozen=True, slots=True)
class Origin:
    """A trained model with the vocabulary it knows.

    vocabulary: the files of source and target; `vocabularies` has their SHA-256 by name.
    """

    path: Path
    kind: str
    recipe: Recipe
    model: Transformer
    vocabulary: tuple[bytes, bytes]

    @classmethod
    def open(cls, path: Path, recipe: Recipe | None = None) -> Origin:
        """The model of our own Hugging Face export, a run's best checkpoint, or a model of another
        tool in Hugging Face form.

        recipe: the recipe of the training to come; a model of another tool takes its languages, if
            it has them.
        Raises CheckpointError if it is none of these, damaged, or has no weights to train, and
        ConfigError if it is a model of another tool that cannot be imported.
        """
        if not is_bundle(path):
            if not path.exists():
                raise _absent(path)
            run = RunDirectory(path)
            if not run.recipe_file.is_file() and is_foreign(path):
                imported = _read_for(path, recipe)
                return cls(path, "imported", imported.recipe, imported.model, imported.vocabularies)
            if not run.recipe_file.is_file():
                raise CheckpointError(
                    "is neither a run, an export of dragoman nor a folder with config.json and "
                    "model.safetensors",
                    place=path,
                    remedy="give a run, its export to huggingface, or a MarianMT, M2M100 or NLLB "
                    "model in Hugging Face form",
                )
            recipe, manifest = run.recipe(), Manifest.load(path)
            checkpoint = checkpoint_path(run, "best", recipe)
            model = new_model(recipe, manifest)
            source, target = (load_vocabulary(path / name) for name in VOCABULARIES)
            layout = layout_of(recipe, (source, target), vocabulary_digests(path))
            load_weights(checkpoint, model, layout)
            return cls(path, "run", recipe, model, _read_vocabulary(path))
        bundle = Bundle.open(path)
        model = _model_of(bundle, bundle.subwords())
        recipe = bundle.recipe.model_copy(update={"model": model.config})
        return cls(path, bundle.info.kind, recipe, model, _read_vocabulary(path))

    @property
    def vocabularies(self) -> dict[str, str]:
        """SHA-256 of the vocabularies by the names that their files have in a run."""
        return {
            name: hashlib.sha256(content).hexdigest()
            for name, content in zip(VOCABULARIES, self.vocabulary, strict=True)
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the weights and vocabularies."""
        whole = hashlib.sha256(json.dumps(self.vocabularies, sort_keys=True).encode())
        for name, weight in sorted(self.model.named_parameters()):
            whole.update(f"\0{name}\0".encode())
            whole.update(weight.detach().contiguous().numpy().tobytes())
        return whole.hexdigest()

    def adapt(self, recipe: Recipe) -> Recipe:
        """A copy of a recipe with this model's shape, vocabulary and handling of padding.

        The vocabulary includes lower-casing and language tokens; everything else stays.
        Raises ConfigError if the vocabulary lacks a token or a tag of the recipe.
        """
        model = {name: getattr(self.recipe.model, name) for name in _SHAPE}
        subword = {name: getattr(self.recipe.corpus.subword, name) for name in _SUBWORD}
        self._check_targets(recipe)
        self._check_tags(recipe)
        corpus = {
            "lowercase": self.recipe.corpus.lowercase,
            "subword": recipe.corpus.subword.model_copy(update=subword),
            "language_token": bool(self.recipe.corpus.language_tokens),
        }
        padding = ("never_padding", "renormalize")
        search = {name: getattr(self.recipe.search, name) for name in padding}
        return recipe.model_copy(
            update={
                "search": recipe.search.model_copy(update=search),
                "model": recipe.model.model_copy(update=model),
                "corpus": recipe.corpus.model_copy(update=corpus),
            }
        )

    def _check_targets(self, recipe: Recipe) -> None:
        """Raises ConfigError if the vocabulary has no token for a target of the recipe."""
        known = self.recipe.corpus.language_tokens
        wanted = recipe.corpus.language_tokens
        if known:
            wanted = recipe.corpus.model_copy(update={"language_token": True}).language_tokens
        missing = [token for token in wanted if token not in known]
        if missing:
            raise ConfigError(
                f"its vocabulary has no token for the target language: {', '.join(missing)}",
                place=self.path,
                remedy=f"choose target languages that have tokens: {', '.join(known)}"
                if known
                else "train one target language from this model, or several from no model",
            )

    def _check_tags(self, recipe: Recipe) -> None:
        """Raises ConfigError if the vocabulary does not know a tag of the recipe, or lacks the
        pieces of placeholders or paragraphs."""
        vocabulary = parse_vocabulary(self.vocabulary[0], place=self.path)
        if not vocabulary.stand_ins.issuperset(recipe.corpus.stand_ins):
            raise ConfigError(
                "its vocabulary lacks the pieces of corpus.augment.placeholders or corpus.context",
                place=self.path,
                remedy="leave these out of the recipe, or train from no model",
            )
        tags = [*recipe.corpus.tags]
        rows = vocabulary.encode(tags)
        unknown = [tag for tag, row in zip(tags, rows, strict=True) if UNK in row]
        if unknown:
            raise ConfigError(
                f"its vocabulary does not know the tag {', '.join(unknown)}",
                place=self.path,
                remedy="leave the tag out, or choose one whose letters and brackets it knows",
            )

    def check_prepared(self, prepared: Path) -> None:
        """Raises ConfigError if shards were made with another vocabulary."""
        if vocabulary_digests(prepared) != self.vocabularies:
            raise ConfigError(
                f"was prepared with a vocabulary that is not that of {self.path}",
                place=prepared,
                remedy="name a new folder for the shards, or none",
            )

    def save_as_step_0(self, run: RunDirectory) -> None:
        """Save these weights as the run's checkpoint of step 0, from which training begins, and
        write down where they come from."""
        recipe, manifest = run.recipe(), Manifest.load(run.path)
        state = TrainState(
            seed=recipe.train.seed,
            world_size=1,
            recipe_digest=digest(recipe),
            corpus_digest=manifest.digest,
        )
        record = {
            "from": str(self.path.resolve()),
            "kind": self.kind,
            "digest": self.digest,
            "vocabularies": self.vocabularies,
        }
        (run.path / ORIGIN_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        layout = layout_to_write(recipe, manifest.train.mean_target_tokens, self.vocabulary)
        store = CheckpointStore(run.checkpoints, recipe.checkpoint, layout)
        store.save(state, {"model": dict(self.model.named_parameters())})


def _read_vocabulary(path: Path) -> tuple[bytes, bytes]:
    source, target = (read_vocabulary(path / name) for name in VOCABULARIES)
    return source, target
