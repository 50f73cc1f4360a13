"""The parts of a run that leave with an export: each key of a recipe is decided and looked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any, get_args

import pytest
import tomli_w
from pydantic import BaseModel

from dragoman.cli import main
from dragoman.corpus.config import TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.formats import public
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from small_run import small_run

AT_HOME = {
    "corpus.folder", "corpus.check_languages", "corpus.reverse",
    *(f"sinks.{key}" for key in ("mlflow", "wandb", "hook")),
    "data.prefetch_batches",
    "train.compile", "train.log_every_steps", "train.validate_every_steps",
    "train.validate_at_start",
    "distributed.strategy", "distributed.wire",
    "distributed.diloco.every", "distributed.diloco.fragments", "distributed.diloco.delay",
    "distributed.diloco.wire", "distributed.diloco.outer",
    "distributed.diloco.outer_learning_rate", "distributed.diloco.outer_momentum",
    "checkpoint.every_steps", "checkpoint.every_minutes", "checkpoint.keep_last",
    "checkpoint.keep_best",
    "evaluate.bleu_pairs", "evaluate.lowercase", "evaluate.train_slice_pairs",
    "evaluate.batch_tokens",
    "evaluate.bootstrap_samples", "evaluate.sample_translations", "evaluate.metrics", "stages",
    "corpus.filters.added", "schedule.added", "distributed.added",
}  # fmt: skip
"""Keys that nobody needs to translate with a model or to continue training from it."""


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a section and of those in it, dotted, with its type."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind


def is_free_text(kind: Any) -> bool:
    return kind is str or any(
        is_free_text(part) for part in get_args(kind) if part is not TextFiles
    )


def test_somebody_has_decided_for_every_key_whether_it_leaves() -> None:
    keys = {key for key, _ in keys_of(Recipe)}
    assert keys == public.RECIPE | AT_HOME, "add the new key to one of the two lists"
    assert not public.RECIPE & AT_HOME


def test_the_free_text_of_recipes_is_known() -> None:
    """A new key with free text needs a marker in the test below."""
    assert {key for key, kind in keys_of(Recipe) if is_free_text(kind)} == {
        "name", "corpus.folder", "corpus.source_language", "corpus.target_language",
        "sinks.mlflow", "sinks.wandb", "sinks.hook",
        # Names of parts, of which none leaves that is not ours.
        "corpus.filters.added", "distributed.added", "distributed.strategy", "evaluate.metrics",
        "schedule.added", "schedule.kind",
    }  # fmt: skip
    assert set(TextFiles.model_fields) == {
        "source", "target", "tsv", "mtdata", "set", "tmx", "moses", "tag", "name", "weight",
        "scores", "source_language", "target_language", "translated", "reverse", "shuffled",
        "hf", "config", "split", "columns",
    }  # fmt: skip


@pytest.fixture
def marked(tmp_path: Path) -> RunDirectory:
    """A trained run whose recipe and manifest say something secret wherever they can."""
    path = copytree(small_run().path, tmp_path / "secret-place" / "run-of-it")
    values = load_recipe(path / "recipe.toml").model_dump(mode="json", exclude_none=True)
    values["name"] = "known-name"
    corpus = values["corpus"]
    corpus |= {"folder": "/secret-folder", "source_language": "sl", "target_language": "tl"}
    corpus["train"] = [
        {"source": "/secret-folder/a/known.en", "target": "secret-folder/known.de"},
        {
            "tsv": "C:\\secret-folder\\known.tsv",
            "reverse": True,
            "target_language": "tl",
            "scores": [{"column": "secret-column", "at_most": 1.0}],
        },
        {"tmx": "secret-folder/known.tmx"},
        {"moses": "secret-folder/known.zip"},
        {"mtdata": "Known-set-1-eng-deu"},
    ]
    corpus["valid"] = [{"tsv": "../secret-folder/known-valid.tsv"}]
    corpus["test"] = [{"tsv": "~/secret-folder/known-test.tsv"}]
    values["sinks"] = {
        "mlflow": "https://secret-user:secret-password@secret-host/",
        "wandb": "secret-project",
        "hook": "secret_module:secret_function",
    }
    Recipe.model_validate(values)
    (path / "recipe.toml").write_text(tomli_w.dumps(values))
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["config"] = corpus
    for source, name in zip(
        manifest["sources"],
        ("/secret-folder/a/known.en", "secret-folder/known.de", "Known-set-1-eng-deu/known.eng",
         "C:\\secret-folder\\known.tsv"),
        strict=True,
    ):  # fmt: skip
        source |= {"name": name, "mtime_ns": 1_234_567_891_234_567_891}
    (path / "manifest.json").write_text(json.dumps(manifest))
    Manifest.load(path)
    return RunDirectory.open(path)


@pytest.mark.parametrize(
    "kind",
    ["huggingface", "ctranslate2", "onnx"],
)
def test_no_byte_of_an_export_holds_an_unlisted_value(
    marked: RunDirectory, tmp_path: Path, kind: str
) -> None:
    output = tmp_path / "out"
    sentences = small_run().prepared() / "valid" / "source.txt"
    arguments = ["export", str(marked.path), "--to", kind, "--output", str(output)]
    assert main([*arguments, "--sentences", str(sentences)]) == 0
    home = str(small_run().path.parent)
    for file in output.iterdir():
        content = file.read_bytes()
        for secret in ("secret", "9187", "1234567891234567891", home, str(tmp_path)):
            assert secret.encode() not in content, (file.name, secret)
    recipe = load_recipe(output / "recipe.toml")
    before = marked.recipe()
    assert recipe.name == "known-name"
    assert recipe.corpus.source_language == "sl"
    names = [
        entry.source or entry.tsv or entry.mtdata or entry.tmx or entry.moses
        for entry in recipe.corpus.train
    ]
    assert names == ["known.en", "known.tsv", "known.tmx", "known.zip", "Known-set-1-eng-deu"]
    assert [entry.reverse for entry in recipe.corpus.train] == [False, True, False, False, False]
    for section in ("model", "search", "optimizer", "schedule"):
        assert getattr(recipe, section) == getattr(before, section)
    assert recipe.corpus.subword == before.corpus.subword
    card = (output / "README.md").read_text("utf-8")
    assert "| known.en |" in card
    assert "| Known-set-1-eng-deu/known.eng |" in card


def test_names_in_a_card_are_no_markup(marked: RunDirectory, tmp_path: Path) -> None:
    file = marked.path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest["sources"][0]["name"] = "<img src=x onerror=alert(1)>|[a](b)`c`\x1b[31m\n# d"
    file.write_text(json.dumps(manifest))
    output = tmp_path / "out"
    sentences = small_run().prepared() / "valid" / "source.txt"
    arguments = ["export", str(marked.path), "--output", str(output)]
    assert main([*arguments, "--sentences", str(sentences)]) == 0
    card = (output / "README.md").read_text("utf-8")
    assert "\x1b" not in card
    assert "\n# d" not in card
    assert "\\<img" in card
    assert "\\|\\[a\\](b)\\`c\\`" in card
