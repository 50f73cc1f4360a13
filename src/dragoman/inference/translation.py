"""A trained model of a run, ready to translate lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from dragoman.base.errors import CheckpointError
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import VOCABULARIES, Subword, vocabulary_digests
from dragoman.distributed.world import World
from dragoman.evaluate.validate import translate_corpus
from dragoman.model.config import SearchConfig
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.train.checkpoint import (
    CheckpointStore,
    check_shapes,
    load_weights,
    weight_shapes,
    weights_file,
)


@dataclass(frozen=True, slots=True)
class TranslationModel:
    """A model with its subwords; models holds more than one for an ensemble."""

    models: tuple[Transformer, ...]
    subwords: tuple[Subword, Subword]
    lowercase: bool
    max_source_pieces: int
    world: World

    @classmethod
    def load(cls, run: RunDirectory, checkpoints: Sequence[str], world: World) -> Self:
        """The models of some checkpoints of a run, on the world's device.

        checkpoints: each a choice such as "best" or "last", or a checkpoint's directory.
        Raises CheckpointError where one is missing, damaged or of another model.
        """
        recipe = run.recipe()
        paths = [checkpoint_path(run, which, recipe) for which in checkpoints]
        source, target = (Subword.load(run.path / name) for name in VOCABULARIES)
        check_vocabulary_sizes((source, target), Manifest.load(run.path), place=run.path)
        return cls(
            models=tuple(_load_model(run, recipe, path, world.device) for path in paths),
            subwords=(source, target),
            lowercase=recipe.corpus.lowercase,
            max_source_pieces=recipe.corpus.max_pieces,
            world=world,
        )

    def translate(self, lines: Sequence[str], search: SearchConfig) -> list[str]:
        """A translation for each line; every rank of the world must be given the same lines."""
        return translate_corpus(
            self.models,
            self.subwords,
            [normalize(line, lowercase=self.lowercase) for line in lines],
            search,
            self.world,
            max_source_pieces=self.max_source_pieces,
        )


def check_vocabulary_sizes(
    subwords: tuple[Subword, Subword], manifest: Manifest, *, place: Path
) -> None:
    """Raises CheckpointError where the subword models have other pieces than the manifest says."""
    sizes = tuple(subword.vocab_size for subword in subwords)
    said = (manifest.source_vocab_size, manifest.target_vocab_size)
    if sizes != said:
        raise CheckpointError(
            f"its subword models have {sizes} pieces and its manifest says {said}",
            place=place,
            remedy="restore its files from where they were copied",
        )


def checkpoint_path(run: RunDirectory, which: str, recipe: Recipe) -> Path:
    """The directory that a choice such as "best", "last" or a path means."""
    path = Path(which)
    if path.is_dir():
        return path
    if len(path.parts) > 1:
        raise CheckpointError(
            "no such checkpoint", place=path, remedy=f"look into {run.checkpoints}"
        )
    return CheckpointStore(run.checkpoints, recipe.checkpoint).choose(which)


def _load_model(run: RunDirectory, recipe: Recipe, path: Path, device: torch.device) -> Transformer:
    model = model_for(weights_file(path), recipe, Manifest.load(run.path))
    load_weights(path, model, trained_with(recipe, vocabulary_digests(run.path)))
    return model.to(device).eval()


def trained_with(recipe: Recipe, vocabularies: Mapping[str, str]) -> dict[str, str]:
    """What weights are wrong without and no shape of theirs tells; see train.checkpoint.

    vocabularies: SHA-256 by file name.
    """
    model = recipe.model
    settings = {
        "model.num_heads": str(model.num_heads),
        "model.norm": model.norm,
        "model.activation": model.activation,
        "corpus.lowercase": str(recipe.corpus.lowercase).lower(),
    }
    return settings | dict(vocabularies)


def model_for(file: Path, recipe: Recipe, manifest: Manifest) -> Transformer:
    """The model of a recipe for a file of weights, untrained.

    Both may be of somebody else: the shapes in the file's header are compared before a model is
    built.
    Raises CheckpointError where the file does not hold the recipe's model.
    """
    shapes = weight_shapes(file)
    layers = recipe.model.encoder_layers + recipe.model.decoder_layers
    if layers > len(shapes):
        raise CheckpointError(
            f"holds {len(shapes)} tensors, but the recipe's model has {layers} layers",
            place=file,
            remedy="use the recipe that it was trained with",
        )
    try:
        parameters = recipe.model.parameter_shapes(
            source_vocab_size=manifest.source_vocab_size,
            target_vocab_size=manifest.target_vocab_size,
        )
    except ValueError as error:
        raise CheckpointError(
            f"the recipe beside it describes no model: {error}",
            place=file,
            remedy="use the recipe that it was trained with",
        ) from error
    check_shapes(shapes, parameters, place=file)
    return new_model(recipe, manifest)


def new_model(recipe: Recipe, manifest: Manifest) -> Transformer:
    """The model of a recipe for the vocabularies of its corpus, untrained."""
    return Transformer(
        recipe.model,
        source_vocab_size=manifest.source_vocab_size,
        target_vocab_size=manifest.target_vocab_size,
    )
