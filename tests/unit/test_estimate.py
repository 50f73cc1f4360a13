"""The arithmetic of a dry run against what PyTorch keeps, published figures and real text."""

from __future__ import annotations

import bz2
import lzma
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pytest
import sentencepiece
import torch

from dragoman.data.batch import make_batch
from dragoman.data.config import DataConfig
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.recipe.estimate import (
    activation_bytes,
    cells_per_micro_batch,
    estimate,
    training_flop,
)
from dragoman.recipe.recipe import Recipe, load_recipe
from real_text import real_lines, write_real_text


def recipe_of(**sections: dict[str, object]) -> Recipe:
    languages = {"source_language": "en", "target_language": "de"}
    corpus = {"train": ({"mtdata": "X"},), "valid_pairs": 1, **languages}
    corpus |= sections.pop("corpus", {})
    return Recipe.model_validate({"name": "x", "corpus": corpus} | sections)


@pytest.mark.parametrize("name", ["wmt16-ende-reference", "wmt16-ende-base"])
def test_the_reference_model_has_its_published_number_of_parameters(name: str) -> None:
    assert estimate(load_recipe(name)).num_parameters == 60_880_896


def test_the_reference_runs_memory_and_disk_are_those_of_its_parameters() -> None:
    whole = estimate(load_recipe("wmt16-ende-reference"))
    assert whole.memory.gradients_bytes == pytest.approx(243.5e6, rel=1e-3)
    assert whole.disk.checkpoint_bytes == 3 * whole.memory.gradients_bytes
    assert whole.shards_bytes is None
    quarter = estimate(load_recipe("wmt16-ende-reference"), world_size=4)
    streaming = load_recipe("wmt16-ende-reference", ["distributed.strategy=diloco"])
    assert estimate(streaming).memory.strategy_bytes == 0
    kept = estimate(streaming, world_size=4).memory.strategy_bytes
    under_way = 5 / 4  # of the fragment, one of four
    assert kept == (4 + under_way) * whole.memory.gradients_bytes
    assert quarter.memory.activations_bytes == whole.memory.activations_bytes / 4
    assert quarter.memory.strategy_bytes == 0
    assert quarter.target_tokens == whole.target_tokens == 300_000 * 1024 * 57


@pytest.mark.parametrize(
    ("config", "vocab_size", "mflop"),
    [
        (ModelConfig(d_model=256, d_ffn=1024, encoder_layers=3, decoder_layers=3), 8000, 45),
        (ModelConfig(), 8000, 280),
        (ModelConfig(), 32_768, 2 * 183),
    ],
    ids=["small of the CPU comparison", "base of it", "base, per source or target token"],
)
def test_flop_per_target_token_are_those_counted_elsewhere(
    config: ModelConfig, vocab_size: int, mflop: float
) -> None:
    flop = training_flop(config, target_vocab_size=vocab_size, source_length=15, target_length=15)
    assert flop / 15e6 == pytest.approx(mflop, rel=0.04)  # they say "about"


def test_flop_agree_with_pytorchs_own_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = ModelConfig(d_model=64, num_heads=4, d_ffn=128, encoder_layers=2, decoder_layers=3)
    model = Transformer(config, source_vocab_size=100, target_vocab_size=100)
    lengths = np.full(3, 11)
    pieces = np.random.default_rng(1).integers(4, 100, lengths.sum())
    with FlopCounterMode(display=False) as counter:
        model(make_batch(pieces, lengths, pieces, lengths)).loss.backward()
    # A length of one leaves attention out: the counter does not know the CPU's kernel for it.
    # It does count the gradients of biases, which a CPU makes as products: 4.6% at this width.
    weights_only = training_flop(config, target_vocab_size=100, source_length=1, target_length=1)
    attention = 12 * 64 * (2 + 3 * 1.5)
    counted = counter.get_total_flops()
    assert counted == pytest.approx((weights_only - attention) * 3 * 12, rel=0.05)


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "options",
    [
        *({"activation": activation} for activation in ("relu", "gelu", "silu", "swiglu")),
        {"norm": "post"},
        {"dropout": 0.0},
    ],
    ids=str,
)
def test_estimated_activations_match_the_tensors_that_autograd_saves(
    options: dict[str, object], half: bool
) -> None:
    sizes = {"d_model": 128, "num_heads": 4, "d_ffn": 512, "encoder_layers": 3, "decoder_layers": 2}
    config = ModelConfig.model_validate(sizes | options)
    model = Transformer(config, source_vocab_size=1000, target_vocab_size=1000)
    shapes = {shape for p in model.parameters() for shape in (tuple(p.shape), tuple(p.shape)[::-1])}
    lengths = np.full(16, 19)
    pieces = np.random.default_rng(1).integers(4, 1000, lengths.sum())
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) not in shapes:  # neither a weight nor its half-precision copy
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        model(make_batch(pieces, lengths, pieces, lengths))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert activation_bytes(config, tokens=16 * 20, half=half) == pytest.approx(measured, rel=0.1)


def test_an_ema_is_held_in_memory_and_in_every_checkpoint() -> None:
    plain, with_ema = estimate(recipe_of()), estimate(recipe_of(train={"ema_decay": 0.999}))
    weights = plain.memory.gradients_bytes  # fp32
    assert with_ema.memory.total_bytes - plain.memory.total_bytes == weights
    assert with_ema.disk.checkpoint_bytes - plain.disk.checkpoint_bytes == weights


def test_a_micro_batch_holds_at_least_one_pair() -> None:
    config = DataConfig(batch_tokens=10)
    assert cells_per_micro_batch(config, max_pieces=256) == 257
    assert cells_per_micro_batch(config, max_pieces=4) == 10
    padded = DataConfig(batch_sentences=3, length_multiple=8)
    assert cells_per_micro_batch(padded, max_pieces=8) == 3 * 16
    accumulated = recipe_of(data={"batch_tokens": 1000, "accumulate": 3})
    assert estimate(accumulated).target_tokens_per_update == 3000


def test_shards_take_the_disk_that_real_text_does(tmp_path: Path) -> None:
    write_real_text(tmp_path, "train")
    files = [tmp_path / f"train.{language}" for language in ("en", "de")]
    model = tmp_path / "joint"
    sentencepiece.SentencePieceTrainer.Train(
        input=[str(file) for file in files],
        model_prefix=str(model),
        vocab_size=8000,
        model_type="bpe",
        input_sentence_size=10_000,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    ids = sum(len(row) for row in processor.Encode(lines))
    real = 2 * ids + 8 * (len(lines) // 2 + 1)
    entry = {"source": str(files[0]), "target": str(files[1])}
    guess = estimate(recipe_of(corpus={"train": (entry,)})).shards_bytes
    assert guess == pytest.approx(real, rel=0.35)

    for name, file in zip(("source", "target"), files, strict=True):
        packed = tmp_path / f"{file.name}.xz"
        packed.write_bytes(lzma.compress(file.read_bytes(), preset=1))
        entry[name] = str(packed)
    packed_guess = estimate(recipe_of(corpus={"train": (entry,)})).shards_bytes
    assert packed_guess == pytest.approx(real, rel=0.5)


def test_text_of_every_form_and_packing_is_counted(tmp_path: Path) -> None:
    pairs = list(zip(real_lines("train", "en"), real_lines("train", "de"), strict=True))
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    (tmp_path / "a.tmx").write_text(
        "<tmx><body>\n"
        + "".join(
            "    <tu>\n"
            f'      <tuv xml:lang="en"><seg>{escape(source)}</seg></tuv>\n'
            f'      <tuv xml:lang="de"><seg>{escape(target)}</seg></tuv>\n'
            "    </tu>\n"
            for source, target in pairs
        )
        + "</body></tmx>"
    )

    def guess(form: str, name: str) -> int:
        found = estimate(recipe_of(corpus={"train": ({form: str(tmp_path / name)},)})).shards_bytes
        assert found is not None
        return found

    plain = guess("tsv", "a.tsv")
    assert guess("tmx", "a.tmx") == pytest.approx(plain, rel=0.15)
    for form in ("tsv", "tmx"):
        text = (tmp_path / f"a.{form}").read_bytes()
        (tmp_path / f"a.{form}.bz2").write_bytes(bz2.compress(text))
        assert guess(form, f"a.{form}.bz2") == pytest.approx(plain, rel=0.35)
