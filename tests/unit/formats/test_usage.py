"""The card of each export shows code that calls its library, and the code runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from card_example import printed_by_example
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.distributed.world import join_world
from dragoman.formats.export_job import greedy
from dragoman.formats.kinds import Kind
from dragoman.formats.load import load_translation_model
from dragoman.formats.usage import EXAMPLE
from dragoman.model.config import SearchConfig, length_limit, power_search
from dragoman.model.search import translate_batch
from small_run import small_run

pytestmark = pytest.mark.system


def ours(search: SearchConfig) -> str:
    """The example's text, translated by our own search."""
    with join_world() as world:
        model = load_translation_model(small_run().path, ["best"], world)
    ids = model.subwords[0].encode([normalize(EXAMPLE)])
    ((best, *_),) = translate_batch(model.models, ids, search)
    return model.subwords[1].decode([best.ids])[0]


def limited(search: SearchConfig, num_pieces: int) -> SearchConfig:
    """The search with the limit of a source of this many pieces for every source."""
    limit = length_limit(num_pieces, search)
    return search.model_copy(update={"max_length_ratio": 0.0, "max_length_extra": limit})


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface", "onnx", "argos"])
def test_the_example_on_a_card_translates(to: Kind, tmp_path: Path) -> None:
    if to == "argos":
        pytest.importorskip("argostranslate")
    run = small_run()
    recipe = run.recipe()
    search, longest = recipe.search, recipe.corpus.max_pieces
    power = power_search(search, Manifest.load(run.path).train.mean_target_tokens)
    expected = {
        "ctranslate2": limited(power, longest),
        "huggingface": limited(power, longest + 1),
        "onnx": limited(greedy(search), longest),
    }
    export = dragoman.export(run, to=to, output=tmp_path / to).path
    printed = printed_by_example(export)
    assert printed
    if to != "argos":  # which has rules of its own
        assert printed == ours(expected[to])


def test_the_card_of_onnx_has_every_shape_of_its_graphs(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = small_run()
    export = dragoman.export(run, to="onnx", output=tmp_path / "onnx").path
    card = (export / "README.md").read_text("utf-8")
    rows = {
        cells[1].strip(" `"): [cell.strip() for cell in cells[2:4]]
        for line in card.splitlines()
        if len(cells := line.split("|")) == 5 and "onnx" in line
    }
    model = run.recipe().model
    cache = f"({model.decoder_layers}, B, {model.num_heads}"
    for name, sides in rows.items():
        session = onnxruntime.InferenceSession(str(export / name))
        for given, said in zip((session.get_inputs(), session.get_outputs()), sides, strict=True):
            assert all(f"`{one.name}`" in said for one in given)
        assert cache in sides[1]
    assert len(rows) == 2


def test_fewer_bits_are_warned_of_on_the_card_and_on_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dragoman.cli import main
    from dragoman.formats.bundle import Bundle

    path = tmp_path / "int8"
    options = ["--to", "ctranslate2", "--quantization", "int8", "--output", str(path)]
    assert main(["export", str(small_run().path), *options]) == 0
    verified = Bundle.open(path).info.verified
    is_alike = verified.identical >= 0.98 * verified.sentences or verified.chrf >= 99
    count = f"{verified.identical} of {verified.sentences} translations are equal"
    card = (path / "README.md").read_text("utf-8")
    assert count in card
    assert (f"**warning: only {count}" in card) != is_alike
    assert (f"warning: only {count}" in capsys.readouterr().err) != is_alike
