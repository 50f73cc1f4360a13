"""Text for back-translation and distillation, and whether a student is worth its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.api.teacher import digest_of_text
from dragoman.base.errors import CorpusError
from dragoman.builds import translation
from dragoman.builds.translation import count_lines, is_small
from dragoman.recipe.recipe import load_recipe


def test_a_last_line_without_its_end_is_a_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    for content, lines in (("", 0), ("one", 1), ("one\n", 1), ("one\ntwo", 2)):
        text.write_text(content)
        assert count_lines(text) == lines


def test_a_decoder_counts_all_its_matrices() -> None:
    sizes = ["model.d_model=64", "model.d_ffn=512", "model.num_heads=4", "model.decoder_layers=1"]
    sizes.append("corpus.subword.vocab_size=1000")
    plain = load_recipe("student-tiny", sizes)
    gated = load_recipe("student-tiny", [*sizes, "model.activation=swiglu"])
    teacher = load_recipe("student-tiny", [*sizes, "model.decoder_layers=2"])
    # 244,224 weights against 154,112, or 186,880 with a third matrix: 1.58 and 1.31 times.
    assert not is_small(teacher, plain)
    assert is_small(teacher, gated)


def test_text_that_is_not_utf_8_is_refused_before_a_model_is_read(tmp_path: Path) -> None:
    text = tmp_path / "mono.de"
    text.write_bytes(b"Ein Satz.\nEin sch\xf6ner Satz.\n")
    with pytest.raises(CorpusError, match=r"mono\.de, line 2: is not UTF-8"):
        translation.translate(
            tmp_path, text, tmp_path / "out.tsv", direction="back", seconds_s=1.0, most_lines=None,
            progress=False,
        )  # fmt: skip
    before = digest_of_text(text)
    text.write_bytes(b"Ein Satz.\nEin neuer Satz..\n")
    assert digest_of_text(text) != before
