from __future__ import annotations

import subprocess
import sys
from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from dragoman.data.batch import Batch
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from token_batches import random_batch, row_of

VOCAB_SIZE = 61
TINY = ModelConfig(
    d_model=16, num_heads=2, d_ffn=24, encoder_layers=2, decoder_layers=2, dropout=0.0
)
VARIANTS = [
    TINY,
    TINY.model_copy(update={"norm": "post", "tied_embeddings": "decoder"}),
    TINY.model_copy(update={"activation": "swiglu", "attention_bias": False}),
    TINY.model_copy(update={"activation": "gelu", "tied_embeddings": "none"}),
]


def make_model(config: ModelConfig = TINY, *, vocab_size: int = VOCAB_SIZE) -> Transformer:
    torch.manual_seed(3)
    return Transformer(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)


@pytest.fixture
def batch() -> Batch:
    return random_batch([5, 3, 8, 1], [4, 9, 2, 6], vocab_size=VOCAB_SIZE)


def test_the_reference_model_has_exactly_its_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Transformer(
            ModelConfig(attention_bias=False), source_vocab_size=32_768, target_vocab_size=32_768
        )
    assert sum(p.numel() for p in model.parameters()) == 60_880_896
    assert model.embeddings.get_parameter("shared").numel() == 16_777_216
    assert sum(p.numel() for p in model.encoder.parameters()) == 18_903_040
    assert sum(p.numel() for p in model.decoder.parameters()) == 25_200_640


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_as_many_as_the_config_says(
    norm: Literal["pre", "post"],
    activation: Literal["relu", "swiglu"],
    tied: Literal["all", "decoder", "none"],
    bias: bool,
) -> None:
    config = ModelConfig(
        d_model=8,
        num_heads=2,
        d_ffn=12,
        encoder_layers=3,
        decoder_layers=2,
        norm=norm,
        activation=activation,
        tied_embeddings=tied,
        attention_bias=bias,
    )
    sizes = {"source_vocab_size": 30, "target_vocab_size": 30 if tied == "all" else 41}
    model = Transformer(config, **sizes)
    assert sum(p.numel() for p in model.parameters()) == config.num_parameters(**sizes)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == config.parameter_shapes(**sizes)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_tied_embeddings_need_one_vocabulary() -> None:
    with pytest.raises(ValueError, match="joint vocabulary"):
        Transformer(TINY, source_vocab_size=10, target_vocab_size=11)


def test_a_new_model_has_unit_sized_activations_and_predicts_evenly() -> None:
    config = ModelConfig(d_model=64, num_heads=4, d_ffn=128, dropout=0.0)
    model = make_model(config, vocab_size=500)
    batch = random_batch([20] * 8, [20] * 8, vocab_size=500)
    assert model.embeddings.get_parameter("shared").std().item() == pytest.approx(1 / 8, rel=0.02)
    query_key_value = model.encoder.layers[0].get_submodule("self_attention.query_key_value")
    bound = (6 / (64 + 64)) ** 0.5
    assert query_key_value.get_parameter("weight").abs().max().item() == pytest.approx(
        bound, rel=0.01
    )
    loss = model(batch).nll / batch.num_target_tokens
    assert loss.item() == pytest.approx(torch.tensor(500.0).log().item(), rel=0.15)


@pytest.mark.parametrize("config", VARIANTS)
def test_loss_and_gradients_equal_those_of_pytorch_on_the_logits(
    config: ModelConfig, batch: Batch
) -> None:
    model = make_model(config)
    ours = model(batch)
    real_BT = batch.target_BT != 0
    logits_NV, target_N = model.logits(batch)[real_BT], batch.target_BT[real_BT]
    expected = F.cross_entropy(
        logits_NV, target_N, label_smoothing=config.label_smoothing, reduction="sum"
    )
    torch.testing.assert_close(ours.loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        ours.nll, F.cross_entropy(logits_NV, target_N, reduction="sum").detach(), rtol=1e-5, atol=0
    )
    parameters = list(model.parameters())
    for gradient, wanted in zip(
        torch.autograd.grad(ours.loss, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", VARIANTS)
def test_a_sentence_alone_equals_the_same_sentence_in_a_padded_batch(
    config: ModelConfig, batch: Batch
) -> None:
    model = make_model(config)
    together_BTV = model.logits(batch)
    losses, gradients = [], []
    for row in range(4):
        alone = row_of(batch, row)
        torch.testing.assert_close(
            model.logits(alone)[0], together_BTV[row, : alone.num_target_tokens]
        )
        loss = model(alone).loss
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    whole = model(batch).loss
    torch.testing.assert_close(whole.detach(), torch.stack(losses).sum())
    for gradient, *parts in zip(
        torch.autograd.grad(whole, list(model.parameters())), *gradients, strict=True
    ):
        torch.testing.assert_close(gradient, torch.stack(parts).sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", VARIANTS)
@pytest.mark.parametrize("target_lengths", [[4, 9, 2, 6], [7, 7, 7, 7]])
def test_packed_and_padded_lists_of_tokens_give_the_same(
    config: ModelConfig, target_lengths: list[int]
) -> None:
    batch = random_batch([5, 3, 8, 1], target_lengths, vocab_size=VOCAB_SIZE)
    packed, padded = make_model(config), make_model(config)
    padded.packed = False
    ours, theirs = packed(batch), padded(batch)
    torch.testing.assert_close(ours, theirs)
    for gradient, wanted in zip(
        torch.autograd.grad(ours.loss, list(packed.parameters())),
        torch.autograd.grad(theirs.loss, list(padded.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_padded_groups_are_one_pass_of_a_small_model_and_several_of_a_large_one() -> None:
    """Three more passes of 3+2 layers took 50 ms on a GPU; their padding costs less than 2 ms."""
    sizes = {(128, 512): False, (1024, 4096): True}
    lengths = [10] * 100 + [25] * 40 + [60] * 15
    batch = random_batch(lengths, lengths, vocab_size=VOCAB_SIZE, group_rows=[100, 40, 15])
    for (d_model, d_ffn), splits in sizes.items():
        config = ModelConfig(
            d_model=d_model, num_heads=4, d_ffn=d_ffn, encoder_layers=3, decoder_layers=2
        )
        with torch.device("meta"):
            model = make_model(config)
        model.packed = False
        assert model._splits(batch) == splits
    # Padding of 51,000 cells would keep more than a GiB for the backward pass.
    lengths = [10] * 400 + [25] * 160 + [60] * 60
    batch = random_batch(lengths, lengths, vocab_size=VOCAB_SIZE, group_rows=[400, 160, 60])
    small = ModelConfig(d_model=128, num_heads=4, d_ffn=512, encoder_layers=3, decoder_layers=2)
    with torch.device("meta"):
        model = make_model(small)
    model.packed = False
    assert model._splits(batch)


@pytest.mark.parametrize("config", VARIANTS)
@pytest.mark.parametrize(("packed", "launch_s"), [(True, 0.0), (False, 0.0), (False, 1.0)])
@pytest.mark.parametrize(
    ("source_lengths", "target_lengths"),
    [([5, 3, 8, 1, 2], [4, 9, 2, 6, 6]), ([3, 3, 9, 9, 9], [7, 7, 7, 7, 7])],
)
def test_groups_of_rows_have_the_loss_and_the_gradients_of_one_group(
    config: ModelConfig,
    packed: bool,
    launch_s: float,
    source_lengths: list[int],
    target_lengths: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.model.transformer._LAUNCH_S", launch_s)
    lengths = source_lengths, target_lengths
    whole = random_batch(*lengths, vocab_size=VOCAB_SIZE)
    grouped = random_batch(*lengths, vocab_size=VOCAB_SIZE, group_rows=[2, 1, 2])
    assert [len(part.source_BS) for part in grouped.split()] == [2, 1, 2]
    model = make_model(config)
    model.packed = packed
    assert model._splits(grouped) == (not packed and launch_s == 0.0)
    wanted, found = model(whole), model(grouped)
    torch.testing.assert_close(found, wanted)
    weights = list(model.parameters())
    for gradient, other in zip(
        torch.autograd.grad(found.loss, weights),
        torch.autograd.grad(wanted.loss, weights),
        strict=True,
    ):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def test_wider_padding_changes_nothing() -> None:
    narrow = random_batch([5, 3], [4, 9], vocab_size=VOCAB_SIZE)
    wide = random_batch([5, 3], [4, 9], vocab_size=VOCAB_SIZE, length_multiple=16)
    assert wide.target_BT.shape == (2, 16)
    model = make_model()
    torch.testing.assert_close(model(narrow).loss, model(wide).loss)
    torch.testing.assert_close(model.logits(narrow), model.logits(wide)[:, :10])


def test_no_target_token_sees_a_later_one(batch: Batch) -> None:
    model = make_model()
    before_BTV = model.logits(batch)
    batch.decoder_input_BT[1, 5] = (batch.decoder_input_BT[1, 5] + 1) % VOCAB_SIZE
    after_BTV = model.logits(batch)
    torch.testing.assert_close(after_BTV[1, :5], before_BTV[1, :5], rtol=0, atol=1e-6)
    assert (after_BTV[1, 5:10] - before_BTV[1, 5:10]).abs().amax(1).min() > 1e-4
    others = [0, 2, 3]
    torch.testing.assert_close(after_BTV[others], before_BTV[others], rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", VARIANTS)
def test_a_rank_without_rows_has_zero_loss_and_zero_gradients(config: ModelConfig) -> None:
    model = make_model(config.model_copy(update={"dropout": 0.1, "attention_dropout": 0.1}))
    loss = model(random_batch([], [], vocab_size=VOCAB_SIZE))
    assert loss.loss.item() == 0.0
    assert loss.nll.item() == 0.0
    loss.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.eq(0).all(), name


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_acts_in_training_only_and_follows_the_seed(kind: str, batch: Batch) -> None:
    model = make_model(TINY.model_copy(update={kind: 0.3}))
    torch.manual_seed(5)
    first = model(batch).loss
    second = model(batch).loss
    torch.manual_seed(5)
    assert model(batch).loss == first
    assert second != first
    model.eval()
    assert model(batch).loss == model(batch).loss
    torch.testing.assert_close(model(batch).loss, make_model()(batch).loss)


def test_swiglu_is_the_gated_form_of_shazeer() -> None:
    model = make_model(TINY.model_copy(update={"activation": "swiglu"}))
    layer = model.encoder.layers[0].get_submodule("feed_forward")
    x_ND = torch.randn(5, 16)
    w, b = layer.get_parameter("input.weight"), layer.get_parameter("input.bias")
    gate_NF, up_NF = x_ND @ w[:24].T + b[:24], x_ND @ w[24:].T + b[24:]
    hidden_NF = gate_NF * torch.sigmoid(gate_NF) * up_NF
    expected_ND = hidden_NF @ layer.get_parameter("output.weight").T
    torch.testing.assert_close(layer(x_ND), expected_ND + layer.get_parameter("output.bias"))


def test_a_sentence_longer_than_the_table_of_positions_still_works() -> None:
    model = make_model()
    batch = random_batch([700, 2], [3, 4], vocab_size=VOCAB_SIZE)
    short = row_of(batch, 1)
    torch.testing.assert_close(model.logits(batch)[1, :5], model.logits(short)[0])
    assert model.embeddings.positions(1).shape[0] > 700


def test_bf16_autocast_follows_fp32_and_leaves_fp32_gradients(batch: Batch) -> None:
    model = make_model()
    parameters = list(model.parameters())
    exact = model(batch).loss
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(exact, parameters)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(batch).loss
    gradients = torch.autograd.grad(rough, parameters)
    assert rough.dtype == torch.float32
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert rough.item() == pytest.approx(exact.item(), rel=0.02)
    difference = torch.cat([g.flatten() for g in gradients]) - wanted
    assert difference.norm() < 0.05 * wanted.norm()


@pytest.mark.system
def test_a_worker_does_not_load_the_compiler_before_it_compiles() -> None:
    code = "import sys, dragoman.run.worker; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
