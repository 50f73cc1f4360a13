"""Errors of functions name their arguments; those of commands their options."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.api.wording import in_python
from dragoman.cli import main
from small_run import small_run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--quantization int8", 'quantization="int8"'),
        ("--quantization", "quantization"),
        ("--set search.beam_size=0", 'overrides=["search.beam_size=0"]'),
        ('--set model.norm = "post"', "overrides=['model.norm = \"post\"']"),
        ("--checkpoint best,last", 'checkpoint="best,last"'),
        ("--to argos without --target", 'to="argos" without `target_language`'),
        ("export --to ctranslate2 or --to onnx", 'export to="ctranslate2" or to="onnx"'),
        ("choose another directory with --prepared", "choose another directory with `directory`"),
        ("leave out --prepared, or name it", "leave out `directory`, or name it"),
        ("start a new run with --fresh", "start a new run with fresh=True"),
        ("give it with --test A,B and --target fr",
         'give it with tests=[(A, B)] and target_language="fr"'),
        ("run dragoman synthesize --target fr, or name --target fr",
         'run dragoman synthesize --target fr, or name target_language="fr"'),
        ("a range 3--4, a -- and x--y", "a range 3--4, a -- and x--y"),
    ],
)  # fmt: skip
def test_options_become_arguments(words: str, expected: str) -> None:
    parameters = ("to", "directory", "overrides", "target_language", "quantization", "checkpoint")
    assert in_python(words, parameters) == expected


def test_a_function_without_overrides_names_the_one_that_has_them() -> None:
    words = in_python("train in fp32: --set train.precision=fp32", ("recipe",))
    assert words == 'train in fp32: load_recipe(..., ["train.precision=fp32"])'


def test_no_word_of_a_message_is_taken_for_a_value() -> None:
    source = Path(dragoman.__file__).parent
    literals = [
        node.value
        for file in source.rglob("*.py")
        if file.parent.name not in ("cli", "launchers")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "--" in node.value
    ]
    assert len(literals) > 100
    values = {
        value
        for literal in literals
        for value in re.findall(r'\w="([a-z]+)"', in_python(literal, ()))
        if f'="{value}"' not in literal
    }
    assert values <= {"argos", "bundle", "huggingface", "onnx", "torch", "web"}


@pytest.mark.parametrize(
    ("call", "argument", "command", "option"),
    [
        (lambda run: dragoman.export(run, to="onnx", quantization="int8"), "quantization: only",
         ["export", "RUN", "--to", "onnx", "--quantization", "int8"], "--quantization: only"),
        (lambda run: dragoman.export(run, to="bundle", target_language="fr"),
         'target_language="fr": such',
         ["export", "RUN", "--to", "bundle", "--target", "fr"], "--target fr: such"),
        (lambda run: dragoman.export(run, to="onnx", overrides=["search.beam_size=2"]),
         'overrides=["search.beam_size=2"]: onnx',
         ["export", "RUN", "--to", "onnx", "--set", "search.beam_size=2"],
         "--set search.beam_size=2: onnx"),
        (lambda run: dragoman.export(run, to="bundle", onnxruntime_web="x.tgz"),
         'onnxruntime_web="x.tgz": bundle',
         ["export", "RUN", "--to", "bundle", "--onnxruntime-web", "x.tgz"],
         "--onnxruntime-web x.tgz: bundle"),
        (lambda run: dragoman.Translator(run, overrides=["train.seed=2"]),
         'overrides=["train.seed=2"]: a model',
         ["translate", "RUN", "--set", "train.seed=2"], "--set train.seed=2: a model"),
        (lambda run: dragoman.translate(run, ["a"], target_language="xx"),
         "target_language: the model does not",
         ["translate", "RUN", "--target", "xx"], "--target: the model does not"),
    ],
)  # fmt: skip
def test_each_door_has_its_own_words(
    call: Callable[[dragoman.RunDirectory], Any],
    argument: str,
    command: list[str],
    option: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = small_run()
    with pytest.raises(dragoman.DragomanError) as error:
        call(run)
    assert str(error.value).startswith(argument)
    assert not re.search(r"(?<!\w)--[a-z]", str(error.value))
    assert str(error.value).count("\n") == 0
    main([str(run.path) if word == "RUN" else word for word in command])
    assert f"dragoman: {option}" in capsys.readouterr().err


def test_an_export_names_its_argument_in_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n")
    with pytest.raises(dragoman.CorpusError, match=r'source text: sentences="FILE"$'):
        dragoman.export(
            small_run(), to="bundle", output=tmp_path / "out", sentences=tmp_path / "in"
        )
