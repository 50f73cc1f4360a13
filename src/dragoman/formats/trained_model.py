"""A checkpoint of a run as a model that translates, with its vocabulary and its search."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dragoman.base.errors import CheckpointError
from dragoman.corpus.directions import (
    listed,
    same_direction,
)
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import VOCABULARIES, vocabulary_digests
from dragoman.corpus.vocabulary import Vocabulary, load_vocabulary, parse_vocabulary
from dragoman.distributed.world import World
from dragoman.evaluation.validate import translate_corpus
from dragoman.formats.huggingface import folder_files, form_of
from dragoman.formats.public import public_recipe
from dragoman.model.config import SearchConfig
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.checkpoint import (
    TRAINED_WITH_KEY,
    CheckpointStore,
    ModelLayout,
    is_choice,
    load_weights,
)
from dragoman.training.durable import DIGESTS_FILE


@dataclass(frozen=True, slots=True)
class TranslationModel:
    """A model with its subwords; `models` holds several for an ensemble."""

    models: tuple[Transformer, ...]
    subwords: tuple[Vocabulary, Vocabulary]
    lowercase: bool
    max_source_pieces: int
    world: World

    @classmethod
    def load(cls, run: RunDirectory, checkpoints: Sequence[str], world: World) -> Self:
        """The models of some checkpoints of a run, on the world's device.

        checkpoints: see `checkpoint_path`.
        Raises CheckpointError if one is missing, damaged or of another model.
        """
        recipe = run.recipe()
        paths = [checkpoint_path(run, which, recipe) for which in checkpoints]
        source, target = (load_vocabulary(run.path / name) for name in VOCABULARIES)
        manifest = Manifest.load(run.path)
        sizes = (source.vocab_size, target.vocab_size)
        expected = (manifest.source_vocab_size, manifest.target_vocab_size)
        if sizes != expected:
            raise CheckpointError(
                f"its subword models have {sizes} pieces and its manifest says {expected}",
                place=run.path,
                remedy="restore its files from where they were copied",
            )
        layout = layout_of(recipe, (source, target), vocabulary_digests(run.path))
        models = []
        for path in paths:
            model = new_model(recipe, manifest)
            load_weights(path, model, layout)
            models.append(model.to(world.device).eval())
        return cls(
            models=tuple(models),
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


def checkpoint_path(run: RunDirectory, which: str, recipe: Recipe) -> Path:
    """The directory of a checkpoint: of "best", "last", a step or a path; the path of another run
    stands for its best checkpoint.

    A directory with the name of a choice must be written as a path, such as "./best": whatever the
    current directory holds, "best" is the run's own. Raises CheckpointError if there is none.
    """
    path = Path(which)
    if path.is_dir() and not is_choice(which):
        of = path.absolute().parent.parent  # the run of a checkpoint
        if RunDirectory(path).recipe_file.is_file():
            other = RunDirectory.open(path)  # its error says so if this is an export
            _check_languages(other, recipe)
            return CheckpointStore(other.checkpoints, other.recipe().checkpoint).choose("best")
        if RunDirectory(of).recipe_file.is_file():
            _check_languages(RunDirectory(of), recipe)
        if not (path / DIGESTS_FILE).is_file() and not any(path.glob("*.safetensors")):
            raise CheckpointError(
                "is not a checkpoint: it holds no weights",
                place=path,
                remedy="give best, last, a step, or the directory of a checkpoint or of a run",
            )
        return path
    if len(path.parts) > 1:
        raise CheckpointError(
            "no such checkpoint", place=path, remedy=f"look into {run.checkpoints}"
        )
    return CheckpointStore(run.checkpoints, recipe.checkpoint).choose(which)


def _check_languages(other: RunDirectory, recipe: Recipe) -> None:
    """Raises CheckpointError if another run's model lacks a direction of the recipe.

    Neither vocabularies nor shapes show it: a joint vocabulary of swapped text is the same.
    """
    known = other.recipe().corpus.directions
    missing = [
        one
        for one in recipe.corpus.directions
        if not any(same_direction(one, other) for other in known)
    ]
    if missing:
        raise CheckpointError(
            f"translates {listed(known)}, not {listed(missing)}",
            place=other.path,
            remedy="name a model of the same languages",
        )


def trained_with(recipe: Recipe, vocabularies: Mapping[str, str]) -> dict[str, str]:
    """The settings on which weights depend although no shape shows it; see training.checkpoint.

    vocabularies: SHA-256 by file name.
    """
    model = recipe.model
    return {
        "model.num_heads": str(model.num_heads),
        "model.norm": model.norm,
        "model.activation": model.activation,
        "model.positions": model.positions,
        "model.first_position": str(model.first_position),
        "model.scaled_embeddings": str(model.scaled_embeddings).lower(),
        "model.start_ids": " ".join(map(str, model.start_ids)),
        "corpus.lowercase": str(recipe.corpus.lowercase).lower(),
        **vocabularies,
    }


def layout_of(
    recipe: Recipe, subwords: tuple[Vocabulary, Vocabulary], digests: Mapping[str, str]
) -> ModelLayout:
    """How the checkpoints of a run hold its model, to read them.

    digests: SHA-256 of the vocabularies by file name.
    """
    return ModelLayout(form_of(recipe, subwords), trained_with(recipe, digests))


def layout_to_write(
    recipe: Recipe, mean_target_tokens: float, vocabularies: tuple[bytes, bytes]
) -> ModelLayout:
    """How the checkpoints of a run hold its model, with the files beside its weights.

    mean_target_tokens: see `folder_files`. vocabularies: the files of source and target.
    """
    named = dict(zip(VOCABULARIES, vocabularies, strict=True))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in named.items()}
    source, target = (parse_vocabulary(one, place=Path(name)) for name, one in named.items())
    layout = layout_of(recipe, (source, target), digests)
    files = folder_files(
        public_recipe(recipe),
        mean_target_tokens,
        vocabularies,
        further={TRAINED_WITH_KEY: layout.trained_with},
    )
    return replace(layout, files=files)


def new_model(recipe: Recipe, manifest: Manifest) -> Transformer:
    """The model of a recipe for the vocabularies of its corpus, untrained."""
    return Transformer(
        recipe.model,
        source_vocab_size=manifest.source_vocab_size,
        target_vocab_size=manifest.target_vocab_size,
    )
