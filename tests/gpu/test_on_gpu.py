"""The ways to compute that only a GPU has, each against PyTorch's plainest one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dragoman.data.batch import Batch
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import World
from dragoman.model.config import ModelConfig, SearchConfig
from dragoman.model.loss import smoothed_cross_entropy
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer, compile_stacks
from dragoman.training.config import OptimizerConfig, TrainConfig
from dragoman.training.step import TrainStep
from token_batches import random_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GPU = torch.device("cuda", 0)
VOCAB_SIZE = 304
CONFIG = ModelConfig(
    d_model=128,
    num_heads=4,
    d_ffn=256,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    activation="gelu",  # ReLU turns the smallest difference into another gradient
)


def _model(config: ModelConfig = CONFIG) -> Transformer:
    torch.manual_seed(3)
    return Transformer(config, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)


def _batch(*, seed: int = 0, longest: int = 18) -> Batch:
    lengths = [5, 3, longest, 1], [4, 19, 2, 6]
    return random_batch(*lengths, vocab_size=VOCAB_SIZE, seed=seed)


def _gradients(model: Transformer, batch: Batch) -> torch.Tensor:
    model.zero_grad()
    model(batch).loss.backward()
    return torch.cat([p.grad.flatten().float().cpu() for p in model.parameters()])  # type: ignore[union-attr]


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_logits_equal_those_of_a_cpu() -> None:
    model, batch = _model(), _batch()
    expected = model.logits(batch)
    found = model.to(GPU).logits(batch.to(GPU)).cpu()
    for row, length in enumerate(batch.target_lengths_B.tolist()):
        torch.testing.assert_close(found[row, :length], expected[row, :length], atol=1e-4, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("launch_s", [0.0, 1.0])
def test_a_batch_of_groups_has_the_gradients_of_a_cpu(
    compiled: bool, launch_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32 a GPU makes a pass for each group, or pads all to one length."""
    monkeypatch.setattr("dragoman.model.transformer._LAUNCH_S", launch_s)
    model = _model()
    lengths = [3, 5, 40, 44, 11, 90], [4, 4, 39, 50, 19, 60]
    batch = random_batch(*lengths, vocab_size=VOCAB_SIZE, group_rows=[2, 2, 2])
    assert len(batch.groups) == 3
    expected = _gradients(model, batch)
    model.to(GPU)
    if compiled:
        compile_stacks(model, "fp32")
    assert _distance(_gradients(model, batch.to(GPU)), expected) < 1e-4


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("packed", [False, None])
def test_half_precision_is_as_near_to_fp32_as_its_digits_allow(
    norm: str, dtype: torch.dtype, compiled: bool, packed: bool | None
) -> None:
    model = _model(CONFIG.model_copy(update={"norm": norm})).to(GPU)
    batches = [_batch(longest=longest, seed=longest).to(GPU) for longest in (18, 200, 17)]
    plain = [_gradients(model, batch) for batch in batches]
    model.packed = packed
    if compiled:
        compile_stacks(model, str(dtype))
    for batch, expected in zip(batches, plain, strict=True):
        with torch.autocast("cuda", dtype):
            found = _gradients(model, batch)
        assert _distance(found, expected) < (0.02 if dtype == torch.bfloat16 else 0.003)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_and_its_gradients_are_pytorchs(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.model.loss.GPU_CHUNK_CELLS", 1000 * 40)
    torch.manual_seed(0)
    x_ND = torch.randn(107, 64, device=GPU, requires_grad=True)
    weight_VD = (0.1 * torch.randn(1000, 64, device=GPU)).requires_grad_()
    target_N = torch.randint(1000, (107,), device=GPU)
    for dtype, near in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            ours = smoothed_cross_entropy(
                x_ND, weight_VD, target_N, smoothing=0.1, compiled=compiled
            )
        theirs = F.cross_entropy(x_ND @ weight_VD.T, target_N, label_smoothing=0.1, reduction="sum")
        torch.testing.assert_close(ours.loss, theirs, rtol=near, atol=0)
        for found, expected in zip(
            torch.autograd.grad(ours.loss, [x_ND, weight_VD]),
            torch.autograd.grad(theirs, [x_ND, weight_VD]),
            strict=True,
        ):
            assert _distance(found, expected) < near


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_batch_is_learned_and_the_same_steps_give_the_same_bits(
    precision: str, compiled: bool
) -> None:
    first, weights = _train(precision, compiled=compiled)
    again, weights_again = _train(precision, compiled=compiled)
    assert first[-1] < 0.5 * first[0]
    assert first == again
    assert torch.equal(weights, weights_again)


def _train(precision: str, *, compiled: bool) -> tuple[list[float], torch.Tensor]:
    from dragoman.data.loader import Update

    world = World(0, 1, 0, GPU)
    model = _model(CONFIG.model_copy(update={"dropout": 0.1})).to(GPU)
    if compiled:
        compile_stacks(model, precision)
    batch = _batch().to(GPU)
    update = Update(0, 0, [batch], batch.num_target_tokens, batch.num_source_tokens, 4, 0)
    with gradient_sync(DistributedConfig(), model, world) as sync:
        step = TrainStep(
            model,
            sync=sync,
            train=TrainConfig(),
            precision=precision,  # type: ignore[arg-type]
            optimizer=OptimizerConfig(clip_norm=1.0),
            world=world,
        )
        losses = [step(update, learning_rate=2e-3).loss.item() for _ in range(40)]
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("beam_size", [1, 5])
def test_search_finds_the_hypotheses_of_a_cpu(beam_size: int) -> None:
    model = _model()
    sources = [[7, 9, 30, 200, 11], [5, 6], [8] * 17, [250, 4, 9, 9, 31, 77]]
    search = SearchConfig(beam_size=beam_size, max_length_extra=5)
    expected = [best.ids for best, *_ in translate_batch([model], sources, search)]
    found = [best.ids for best, *_ in translate_batch([model.to(GPU)], sources, search)]
    assert found == expected


def test_a_run_on_a_gpu_knows_its_power_and_goes_on_to_the_bit(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman import cli
    from dragoman.recipe.run_directory import RunDirectory

    monkeypatch.chdir(tmp_path)
    settings = [
        f"corpus.folder={shared_data / 'multi30k'}",
        "train.precision=bf16",
        "train.compile=true",
        "train.max_steps=60",
        "train.validate_every_steps=30",
        "checkpoint.every_steps=30",
        "evaluate.bleu_pairs=20",
    ]
    flags = [flag for setting in settings for flag in ("--set", setting)]
    assert cli.main(["train", "multi30k-tiny", "--runs", "calm", *flags]) == 0
    assert cli.main(["train", "multi30k-tiny", "--runs", "broken", *flags]) == 0
    calm, broken = (
        RunDirectory.open(next(tmp_path.glob(f"{name}/*"))) for name in ("calm", "broken")
    )
    kept = sorted(broken.checkpoints.glob("step-*"))
    assert [path.name for path in kept] == ["step-0000030", "step-0000060"]
    shutil.rmtree(kept[1])
    assert cli.main(["train", str(broken.path)]) == 0
    last = "checkpoints/step-0000060/model.safetensors"
    assert (broken.path / last).read_bytes() == (calm.path / last).read_bytes()
    lines = (calm.events / "log.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    sampled = [event for event in events if event["kind"] == "gpu_sampled"]
    assert sampled
    assert all(
        event["power_w"] > 0 and event["name"] == torch.cuda.get_device_name() for event in sampled
    )
