"""Learn how likely a model's translations are right, from text with references."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.api.checks import checked, path_of
from dragoman.api.kinds import Count, ModelLike, Option, Target
from dragoman.base.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.api.systems import TestSet
    from dragoman.evaluation.confidence import Confidence, Measured, Signs
    from dragoman.formats.bundle import Bundle
    from dragoman.inference.translator import Opened
    from dragoman.recipe.run_directory import RunDirectory

_TextPair = tuple[str | Path, str | Path]


@checked
def calibrate(
    model: ModelLike,
    *,
    dev: Annotated[_TextPair | None, Option("--dev", "SOURCE,REFERENCE")] = None,
    test: Annotated[_TextPair | None, Option("--test", "SOURCE,REFERENCE")] = None,
    right: float = 60.0,
    target_language: Target = "",
    threads: Count | None = None,
) -> Measured:
    """Learn how likely a translation of a model is right.

    From then on `translate` and `serve` call each sentence green, yellow or red: of green ones at
    least two in three are right, of red ones at most one in three. The test text shows how far
    that holds.

    model: a run, with the exports in its folder, or an export. Exports of the run that are made
        later have it, too.
    dev: a source text and its reference to learn from; None: the dev set of the run.
    test: a source text and its reference to measure on; None: the test set of the run.
    right: the chrF from which a translation counts as right: 100 is the reference itself.
    target_language: the language to translate into, if the model has several.
    threads: cores; None: all.
    Raises ConfigError if there is no text, CorpusError if it cannot be read or has too few right or
    wrong translations, CheckpointError if the model is damaged.
    """
    from dragoman.api import systems
    from dragoman.evaluation.confidence import fit_confidence, write_confidence
    from dragoman.formats.bundle import Bundle, is_bundle
    from dragoman.formats.export import exports_of
    from dragoman.formats.load import run_at
    from dragoman.formats.trained_model import checkpoint_path
    from dragoman.inference.translator import open_translator, weights_digest
    from dragoman.recipe.run_directory import RunDirectory

    path = path_of(model)
    origin = Bundle.open(path) if is_bundle(path) else run_at(path)
    run = origin if isinstance(origin, RunDirectory) else None
    texts = [
        systems.named_test(Path(given[0]), Path(given[1]), target_language)
        if given is not None
        else _own_text(origin, name)
        for name, given in (("valid", dev), ("test", test))
    ]
    if not 0 <= right <= 100:
        raise ConfigError(f"{right} is not from 0 to 100", place="right", remedy="give a chrF")
    with open_translator(path, threads=threads, target=target_language) as opened:
        found = [_judged(opened, one, right) for one in texts]
    fitted = fit_confidence(*found, right_chrf=right, test_name=texts[1].name)
    if run is not None:
        weights = weights_digest(checkpoint_path(run, "best", run.recipe()))
        write_confidence(fitted.model_copy(update={"checkpoint": weights}), path)
        for export in exports_of(path / "export", checkpoint_path(run, "best", run.recipe()).name):
            _write_into_export(fitted, export)
    else:
        _write_into_export(fitted, path)
    return fitted.measured


def _write_into_export(fitted: Confidence, export: Path) -> None:
    from dragoman.evaluation.confidence import CONFIDENCE_FILE, write_confidence
    from dragoman.training.durable import publish, read_digests

    def fill(draft: Path) -> None:
        for name in {*read_digests(export)} - {CONFIDENCE_FILE}:
            shutil.copyfile(export / name, draft / name)
        write_confidence(fitted, draft)

    publish(export, fill)


def _own_text(origin: RunDirectory | Bundle, name: str) -> TestSet:
    """The dev or test set of a run."""
    from dragoman.api import systems
    from dragoman.formats.bundle import Bundle

    if isinstance(origin, Bundle):
        raise ConfigError(
            "an export has no text of its own",
            place=origin.path,
            remedy="name dev and test, each a source text and its reference, or calibrate the run "
            "and export it again",
        )
    return systems.own_text(origin, name)


def _judged(opened: Opened, text: TestSet, right_chrf: float) -> list[tuple[Signs, bool]]:
    """The signs of each translation, and whether it is right; lines that stay as they are have
    none."""
    from dragoman.evaluation.confidence import are_right

    translations = [*opened.best(text.sources)]
    right = are_right([one.text for one in translations], text.references, right_chrf)
    return [
        (signs, is_right)
        for one, is_right in zip(translations, right, strict=True)
        for _, signs, _ in one.segments
        if signs is not None
    ]
