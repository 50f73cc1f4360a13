"""The guard against repetition: the same in both engines, and what exports do with it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dragoman import RunDirectory, Translator
from dragoman.base.errors import ConfigError
from dragoman.distributed.world import join_world
from dragoman.formats.bundle import Bundle
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.kinds import Kind, Quantization
from dragoman.recipe.recipe import load_recipe
from real_text import real_lines
from small_run import small_run

LOOP = re.compile(r"(.{2,}?)\1{4,}")


def test_loops_end_and_both_engines_end_them_alike() -> None:
    """The small run has hardly learned, and repeats itself."""
    lines = real_lines("test", "en")[:60]
    found: dict[int, list[list[str]]] = {}
    for size in (0, 3):
        overrides = (f"search.no_repeat_ngram_size={size}",)
        for engine in ("ctranslate2", "torch"):
            with Translator(small_run(), engine=engine, threads=1, overrides=overrides) as one:
                found.setdefault(size, []).append(one.translate(lines))
    loops = {size: sum(bool(LOOP.search(text)) for text in one[0]) for size, one in found.items()}
    assert loops[0] > 20
    assert loops[3] < loops[0] / 4
    for ctranslate2, torch in found.values():
        assert sum(a == b for a, b in zip(ctranslate2, torch, strict=True)) >= 59


@pytest.fixture
def guarded(tmp_path: Path) -> RunDirectory:
    """The run, as if its recipe had the key."""
    path = shutil.copytree(small_run().path, tmp_path / "guarded")
    recipe = path / "recipe.toml"
    text = recipe.read_text().replace("no_repeat_ngram_size = 0", "no_repeat_ngram_size = 3")
    assert text != recipe.read_text()
    recipe.write_text(text)
    return RunDirectory.open(path)


@pytest.mark.parametrize(
    ("to", "bits"),
    [
        ("ctranslate2", "float32"),
        ("ctranslate2", "int8"),
        pytest.param("huggingface", None, marks=pytest.mark.system),
        ("onnx", None),
    ],
)
def test_exports_have_it_or_say_that_they_have_not(
    guarded: RunDirectory, tmp_path: Path, to: Kind, bits: Quantization | None
) -> None:
    with join_world() as world:
        done = export(guarded, Request(to=to, output=tmp_path / "out", quantization=bits), world)
    assert Bundle.open(done.path).recipe.search.no_repeat_ngram_size == 3
    card = (done.path / "README.md").read_text("utf-8")
    assert ("search.no_repeat_ngram_size = 3" in card) == (to != "ctranslate2")
    if bits == "float32":
        assert done.verified.identical >= 97


@pytest.mark.parametrize("size", ["101", "-1", "1000000000000"])
def test_a_guard_of_any_length_is_refused(size: str) -> None:
    """The comparison takes memory in proportion to the length."""
    with pytest.raises(ConfigError, match=r"search\.no_repeat_ngram_size"):
        load_recipe("wmt16-ende-base", (f"search.no_repeat_ngram_size={size}",))
