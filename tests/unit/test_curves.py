"""Learning curves: of a run that was really trained, and the table they are kept in."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from dragoman.corpus.manifest import Manifest
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run.curves import curve_of, inner_weights, keep, known_curves, table, text_digest
from dragoman.run.expect import fit_law
from small_run import small_run


@pytest.fixture
def own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAGOMAN_CURVES", "on")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "dragoman" / "curves"


def test_a_curve_holds_the_measurements_of_its_run() -> None:
    run = small_run()
    curve = curve_of(run, source="a test")
    assert curve is not None
    manifest, recipe = Manifest.load(run.path), run.recipe()
    assert (curve.languages, curve.text) == (("en", "de"), text_digest(manifest))
    assert (curve.pairs, curve.vocab_size) == (manifest.train.pairs, 500)
    assert curve.epoch_tokens == manifest.train.target_pieces + manifest.train.pairs
    (point,) = curve.points
    assert point.bleu is not None
    assert point.dev_loss is not None
    assert point.tokens == pytest.approx(180 * curve.batch_tokens, rel=0.01)
    assert 0 < curve.batch_tokens <= recipe.data.batch_tokens * recipe.data.accumulate  # type: ignore[operator]
    assert not curve.ended  # inverse_sqrt never ends


@pytest.mark.parametrize(("total_steps", "ended"), [(None, True), (180, True), (181, False)])
def test_a_curve_has_ended_if_its_schedule_has(
    total_steps: int | None, ended: bool, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(small_run().path, run.path)
    settings = ["schedule.kind=linear", f"schedule.total_steps={total_steps or ''}"]
    recipe = load_recipe(run.recipe_file, settings)
    run.recipe_file.write_text(dump_toml(recipe))
    curve = curve_of(run, source="a test")
    assert curve is not None
    assert curve.ended == ended


def test_weights_are_those_of_the_layers() -> None:
    recipe = small_run().recipe()
    model = Transformer(recipe.model, source_vocab_size=100, target_vocab_size=100)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    layers = sum(size for name, size in sizes.items() if "embeddings" not in name)
    assert inner_weights(recipe) == layers


def test_a_finished_run_is_kept_and_known_from_then_on(own_table: Path) -> None:
    before, run = known_curves(), small_run()
    keep(run)
    keep(run)
    assert [path.name for path in own_table.iterdir()] == [f"{run.path.name}.json"]
    (added,) = known_curves()[len(before) :]
    assert added.source == f"a run on this machine: {run.path.name}"
    (own_table / "broken.json").write_text("{")
    (own_table / "other.json").write_text('{"version": 7}')
    assert len(known_curves()) == len(before) + 1


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"bleu": 1e9}, {"bleu": -1.0}, {"bleu": math.inf}, {"bleu": math.nan}]
)
def test_a_curve_of_others_that_cannot_be_is_passed_over(
    own_table: Path, wrong: dict[str, float]
) -> None:
    before = known_curves()
    curve = json.loads(before[-1].model_dump_json())
    curve["points"][-1] |= wrong
    own_table.mkdir(parents=True)
    (own_table / "given.json").write_text(json.dumps(curve))
    assert known_curves() == before
    fit_law(known_curves())


def test_a_run_that_began_with_weights_of_another_is_not_kept(
    own_table: Path, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "tuned")
    shutil.copytree(small_run().path, run.path)
    keep(run)
    assert len([*own_table.iterdir()]) == 1
    shutil.rmtree(own_table)
    (run.path / "origin.json").write_text("{}")
    keep(run)
    assert not own_table.exists()


def test_the_table_may_be_switched_off(own_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CURVES", "off")
    keep(small_run())
    assert table() is None
    assert not own_table.exists()


def test_a_table_that_cannot_be_written_to_stops_nobody(own_table: Path) -> None:
    own_table.parent.mkdir(parents=True)
    own_table.write_text("a file, no folder")
    keep(small_run())
    assert own_table.read_text() == "a file, no folder"


def test_a_user_without_a_home_has_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    for variable in ("HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DRAGOMAN_CURVES", "on")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert table() is None
    keep(small_run())


def test_a_relative_data_home_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CURVES", "on")
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    assert table() == Path.home() / ".local" / "share" / "dragoman" / "curves"
