"""The engine for a run or a bundle: CTranslate2 where it can be had, else PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman.base.errors import ConfigError
from dragoman.base.files import file_sha256
from dragoman.export.bundle import Bundle, is_bundle
from dragoman.export.ctranslate2 import Quantization
from dragoman.export.ctranslate2_engine import CTranslate2Engine, fitting_cells
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.serve.translator import Translator
from dragoman.train.durable import DIGESTS_FILE

if TYPE_CHECKING:
    from dragoman.inference.translation import TranslationModel

EngineName = Literal["auto", "ctranslate2", "torch"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A translator, the recipe with its search settings, and what its translations depend on."""

    translator: Translator
    recipe: Recipe
    identity: dict[str, Any]


@contextmanager
def open_translator(
    path: Path,
    *,
    checkpoints: Sequence[str],
    overrides: Sequence[str],
    engine: EngineName,
    threads: int | None,
    batch_cells: int | None = None,
    quantization: Quantization | None = None,
) -> Iterator[Opened]:
    """The translator of a run or a bundle.

    batch_cells: rows x longest source x beam that CTranslate2 searches together; as many as suit
    the model where it is None.
    quantization: of the weights, for CTranslate2; None: as they are.

    Raises CheckpointError where it is damaged, ConfigError where the engine cannot run it or a
    bundle is asked for one of its run's checkpoints.
    """
    if is_bundle(path) and [*checkpoints] != ["best"]:
        raise ConfigError(
            "an export holds the weights of one checkpoint alone",
            place=f"--checkpoint {','.join(checkpoints)}",
            remedy="leave it out, or name the run",
        )
    if is_bundle(path) and (bundle := Bundle.open(path)).info.kind == "ctranslate2":
        _check_written(bundle, engine, quantization)
        yield Opened(
            translator_of(bundle, threads=threads, batch_cells=batch_cells),
            load_recipe(path / "recipe.toml", overrides),
            _identity(path, [path], overrides, bundle.info.quantization),
        )
        return
    from dragoman.distributed.world import join_world
    from dragoman.export.load import load_translation_model
    from dragoman.serve.torch_engine import TorchEngine

    with join_world() as world:
        model = load_translation_model(path, checkpoints, world)
        arithmetic = _arithmetic(model, engine, quantization)
        yield Opened(
            Translator(
                TorchEngine(model.models)
                if arithmetic == "torch"
                else converted(
                    model, threads=threads, quantization=arithmetic, batch_cells=batch_cells
                ),
                model.subwords,
                lowercase=model.lowercase,
                max_source_pieces=model.max_source_pieces,
            ),
            load_recipe(path / "recipe.toml", overrides),
            _identity(path, _weights(path, checkpoints), overrides, arithmetic),
        )


def _check_written(bundle: Bundle, engine: EngineName, quantization: Quantization | None) -> None:
    """Raises ConfigError where an export of CTranslate2 is asked for what it is not."""
    if engine == "torch":
        raise ConfigError(
            "this export holds no weights for PyTorch",
            place="--engine",
            remedy="leave it out, or name the run",
        )
    if quantization not in (None, bundle.info.quantization):
        raise ConfigError(
            f"this export was written in {bundle.info.quantization}",
            place=f"--quantization {quantization}",
            remedy="leave it out, or name the run",
        )


def _arithmetic(
    model: TranslationModel, engine: EngineName, quantization: Quantization | None
) -> Quantization | Literal["torch"]:
    """CTranslate2 with weights of this kind, or PyTorch; raises ConfigError."""
    several = len(model.models) > 1
    if engine == "ctranslate2" and several:
        raise ConfigError(
            "CTranslate2 has no ensembles", place="--engine", remedy="use --engine torch"
        )
    on_cpu = model.world.device.type == "cpu"
    possible = not several and on_cpu and find_spec("ctranslate2") is not None
    if engine == "ctranslate2" or (engine == "auto" and possible):
        return quantization or "float32"
    if quantization not in (None, "float32"):
        raise ConfigError(
            f"only CTranslate2 translates in {quantization}: one model, on a CPU",
            place=f"--quantization {quantization}",
            remedy="leave it out",
        )
    return "torch"


def translator_of(
    bundle: Bundle, *, threads: int | None, batch_cells: int | None = None
) -> Translator:
    """The translator of a CTranslate2 bundle; PyTorch is not imported."""
    subwords = bundle.subwords()
    cells = batch_cells or fitting_cells(bundle.recipe.model)
    return Translator(
        CTranslate2Engine(bundle.path, subwords, threads=threads, batch_cells=cells),
        subwords,
        lowercase=bundle.recipe.corpus.lowercase,
        max_source_pieces=bundle.recipe.corpus.max_pieces,
    )


def converted(
    model: TranslationModel,
    *,
    threads: int | None,
    quantization: Quantization = "float32",
    batch_cells: int | None = None,
) -> CTranslate2Engine:
    """A model of ours in CTranslate2, by way of a temporary directory."""
    from dragoman.export.ctranslate2 import write_ctranslate2

    (first, *_) = model.models
    cells = batch_cells or fitting_cells(first.config)
    with tempfile.TemporaryDirectory(prefix="dragoman-") as name:
        directory = Path(name)
        write_ctranslate2(first, model.subwords, directory, quantization=quantization)
        return CTranslate2Engine(directory, model.subwords, threads=threads, batch_cells=cells)


def _weights(path: Path, checkpoints: Sequence[str]) -> list[Path]:
    """The directories of the weights: what is the best of a run changes while it trains."""
    if is_bundle(path):
        return [path]
    from dragoman.inference.translation import checkpoint_path

    run = RunDirectory.open(path)
    recipe = run.recipe()
    return [checkpoint_path(run, which, recipe) for which in checkpoints]


def _identity(
    path: Path, weights: Sequence[Path], overrides: Sequence[str], arithmetic: str
) -> dict[str, Any]:
    digests = [file_sha256(one / DIGESTS_FILE) for one in weights]
    return {
        "path": str(path.resolve()),
        "weights": digests,
        "set": [*overrides],
        "arithmetic": arithmetic,
    }
