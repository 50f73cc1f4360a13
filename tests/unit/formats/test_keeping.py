"""Exports of a model whose vocabulary has pieces that stand for other text pass their check."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from dragoman.corpus.stand_ins import PLACEHOLDERS
from dragoman.corpus.subword import Subword
from dragoman.formats.kinds import Kind
from small_run import keeping_run


@pytest.mark.system
@pytest.mark.parametrize("to", ["huggingface", "onnx", "argos"])
def test_an_export_translates_as_the_run(to: Kind, tmp_path: Path) -> None:
    export = dragoman.export(keeping_run(), to=to, output=tmp_path / to)
    if to != "argos":  # which has a search of its own
        assert export.verified.identical >= 0.95 * export.verified.sentences
    if to == "huggingface":
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(export.path)
        own = Subword.load(keeping_run().path / "source.model")
        first, second = PLACEHOLDERS[:2]
        texts = [
            f"{first} Open the {second}, then ({first}).",
            f"Open {first}{second} now {second}",
        ]
        assert [ids[:-1] for ids in tokenizer(texts)["input_ids"]] == own.encode(texts)
        assert tokenizer.batch_decode(own.encode(texts)) == texts
