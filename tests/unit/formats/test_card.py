"""What programs read of a model card."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import yaml

from dragoman.corpus.manifest import Manifest
from dragoman.distributed.world import join_world
from dragoman.formats.bundle import BundleInfo, Verified
from dragoman.formats.card import model_card, scores_of
from dragoman.formats.ctranslate2 import Quantization
from dragoman.formats.export import Request, export
from dragoman.inference.translation import checkpoint_path, score_text
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import EventWriter
from dragoman.training.average import average_checkpoints
from small_run import small_run


def test_every_language_in_the_header_is_text() -> None:
    """Norwegian is written as YAML writes false."""
    run = small_run()
    info = BundleInfo(
        kind="bundle",
        name="fjord",
        dragoman_version="1",
        created="2026-01-01T00:00:00+00:00",
        source_language="en",
        target_language="no",
        licence="CC0",
        run="run",
        checkpoint="step-1",
        step=1,
        num_parameters=1,
        quantization="float32",
        vocabularies={},
        scores=(),
        verified=Verified(sentences=1, identical=1, chrf=100.0),
    )
    card = model_card(info, run.recipe(), Manifest.load(run.path))
    _, header, _ = card.split("---", 2)
    assert yaml.safe_load(header)["language"] == ["en", "no"]


def test_scores_of_fewer_bits_are_told_to_be_those_of_all(tmp_path: Path) -> None:
    kinds: tuple[Quantization, ...] = ("float32", "int8")
    for quantization in kinds:
        output = tmp_path / quantization
        request = Request(to="ctranslate2", output=output, quantization=quantization)
        with join_world() as world:
            export(small_run(), request, world)
        card = (output / "README.md").read_text("utf-8")
        assert "chrF2|" in card
        told = "They were measured before the weights were written in int8." in card
        assert told == (quantization == "int8")


def test_a_score_is_told_of_the_weights_and_the_search_that_had_it(tmp_path: Path) -> None:
    run = RunDirectory.open(copytree(small_run().path, tmp_path / "run"))
    best, average = checkpoint_path(run, "best", run.recipe()), run.path / "average"
    average_checkpoints([best, best], average)
    with join_world() as world, EventWriter(run.events) as events:
        for name, checkpoint, overrides in (
            ("own", "best", ["evaluate.bootstrap_samples=0"]),
            ("narrow", "best", ["search.beam_size=1"]),
            ("mean", str(average), []),
        ):
            source, reference = run.path / f"{name}.en", run.path / f"{name}.de"
            source.write_text("A man sings.\n")
            reference.write_text("Ein Mann singt.\n")
            score_text(
                run,
                checkpoint=checkpoint,
                source=source,
                reference=reference,
                overrides=overrides,
                world=world,
                events=events,
            )
    of_best, step = scores_of(run, best)
    assert step is not None
    assert {score.text for score in of_best if "dev" not in score.text} == {"own, 1 lines"}
    of_average, step = scores_of(run, average)
    assert step is None
    assert {score.text for score in of_average} == {"mean, 1 lines"}
