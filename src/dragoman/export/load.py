"""A bundle as a model that PyTorch translates with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from dragoman.base.errors import CheckpointError
from dragoman.distributed.world import World
from dragoman.export.bundle import Bundle, is_bundle
from dragoman.inference.translation import TranslationModel, model_for
from dragoman.recipe.run_directory import RunDirectory
from dragoman.train.checkpoint import copy_named, read_weights


def load_translation_model(
    path: Path, checkpoints: Sequence[str], world: World
) -> TranslationModel:
    """The model of a bundle, or the models of some checkpoints of a run.

    Raises CheckpointError where it is neither, damaged, or a bundle for CTranslate2.
    """
    if not is_bundle(path):
        return TranslationModel.load(RunDirectory.open(path), checkpoints, world)
    bundle = Bundle.open(path)
    if bundle.info.kind != "bundle":
        raise CheckpointError(
            f"holds weights for {bundle.info.kind} alone",
            place=path,
            remedy="name the run, or an export of the kind bundle",
        )
    model = model_for(bundle.weights_file, bundle.recipe, bundle.manifest)
    fill_from(bundle.weights_file, model)
    return TranslationModel(
        models=(model.to(world.device).eval(),),
        subwords=bundle.subwords(),
        lowercase=bundle.recipe.corpus.lowercase,
        max_source_pieces=bundle.recipe.corpus.max_pieces,
        world=world,
    )


def fill_from(file: Path, model: nn.Module) -> None:
    """Put the weights of a file into a model; raises CheckpointError where they are of another."""
    copy_named(read_weights(file), dict(model.named_parameters()), place=file)
