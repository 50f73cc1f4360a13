"""The encoder-decoder (Vaswani et al. 2017), pre-norm or post-norm.

Shapes: B rows, S and T cells of a source and a target row, N tokens in a flat list (M of them on
the source side), D model width, V vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.base.errors import MachineError
from dragoman.corpus.shards import BOS, PAD
from dragoman.data.batch import Batch
from dragoman.model.attention import CrossAttention, SelfAttention, projection
from dragoman.model.config import ModelConfig
from dragoman.model.dropout import add_dropped, dropout
from dragoman.model.layout import Layout, make_layout
from dragoman.model.loss import LossSum, smoothed_cross_entropy, token_nll
from dragoman.model.products import project
from dragoman.model.varlen_attention import are_short, has_varlen_attention


def sinusoids(
    num_positions: int,
    d_model: int,
    *,
    kind: Literal["tensor2tensor", "marian"] = "tensor2tensor",
    first: int = 1,
) -> Tensor:
    """Sinusoidal positions: the table (P, D) of a sentence's first P tokens, in fp32.

    Vaswani et al. 2017, section 3.5, in the form of tensor2tensor. The first half of the width
    holds sines, the second half cosines, of D/2 wavelengths in geometric progression from 2 pi to
    10000 * 2 pi. The first token has position 1. Hugging Face's M2M100 and
    FSMT (if PAD is 0, as here), OpenNMT-tf and CTranslate2 do the same.

    kind: "marian" has the wavelengths 2 pi * 10000^(2i / D) of the paper itself, in the same order;
        computed in 64 bits, as Hugging Face's MarianMT does.
    first: position of the first token.
    """
    num_wavelengths = d_model // 2
    if kind == "marian":
        exponents = torch.arange(num_wavelengths, dtype=torch.float64) * (2 / d_model)
        places = torch.arange(first, first + num_positions, dtype=torch.float64)
        angles = places[:, None] / 10_000**exponents
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()
    step = math.log(10_000) / max(num_wavelengths - 1, 1)
    rates = torch.exp(torch.arange(num_wavelengths, dtype=torch.float32) * -step)
    angles = torch.arange(first, first + num_positions, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class FeedForward(nn.Module):
    """Two linear layers with the activation between them.

    input: (D) -> (F), or (2F) for SwiGLU (Shazeer 2020): the gate, then what it lets through.
    output: (F) -> (D).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, f = config.d_model, config.d_ffn
        self.activation = config.activation
        self.dropout = config.activation_dropout
        self.input = projection(d, *((f, f) if config.activation == "swiglu" else (f,)), bias=True)
        self.output = projection(f, d, bias=True)

    def forward(self, x_ND: Tensor) -> Tensor:
        """x_ND -> the output of the sub-layer, also (N, D)."""
        hidden_NF = self.input(x_ND)
        if self.activation == "swiglu":
            gate_NF, up_NF = hidden_NF.chunk(2, dim=-1)
            hidden_NF = F.silu(gate_NF) * up_NF
        elif self.activation == "gelu":
            hidden_NF = F.gelu(hidden_NF)
        elif self.activation == "silu":
            hidden_NF = F.silu(hidden_NF)
        else:
            hidden_NF = F.relu(hidden_NF, inplace=True)
        hidden_NF = dropout(hidden_NF, self.dropout, training=self.training)
        added_ND: Tensor = self.output(hidden_NF)
        return added_ND


class Residual(nn.Module):
    """The residual around each sub-layer f: x + f(norm(x)) pre-norm, norm(x + f(x)) post-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.dropout = config.dropout
        self.norm = nn.LayerNorm(config.d_model)

    def enter(self, x_ND: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return self.norm(x_ND) if self.pre_norm else x_ND

    def leave(self, x_ND: Tensor, added_ND: Tensor) -> Tensor:
        """The stream after the sub-layer, whose output is `added_ND`."""
        x_ND = add_dropped(x_ND, added_ND, self.dropout, training=self.training)
        return x_ND if self.pre_norm else self.norm(x_ND)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=False)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x_MD: Tensor, layout: Layout) -> Tensor:
        """x_MD -> the output of the layer, also (M, D)."""
        residual = self.self_attention_residual
        x_MD = residual.leave(x_MD, self.self_attention(residual.enter(x_MD), layout))
        residual = self.feed_forward_residual
        return residual.leave(x_MD, self.feed_forward(residual.enter(x_MD)))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=True)
        self.self_attention_residual = Residual(config)
        self.cross_attention = CrossAttention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, x_ND: Tensor, layout: Layout, memory_MD: Tensor, memory_layout: Layout
    ) -> Tensor:
        """x_ND -> the output of the layer, also (N, D); memory_MD is the encoder's output."""
        residual = self.self_attention_residual
        x_ND = residual.leave(x_ND, self.self_attention(residual.enter(x_ND), layout))
        residual = self.cross_attention_residual
        looked_up_ND = self.cross_attention(residual.enter(x_ND), layout, memory_MD, memory_layout)
        x_ND = residual.leave(x_ND, looked_up_ND)
        residual = self.feed_forward_residual
        return residual.leave(x_ND, self.feed_forward(residual.enter(x_ND)))


def final_norm(config: ModelConfig) -> nn.Module:
    """The norm at the end of a stack; none for post-norm, whose layers end with one."""
    return nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()


class Encoder(nn.Module):
    """Embedded source tokens -> the memory that the decoder attends to."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = final_norm(config)

    def forward(self, x_MD: Tensor, layout: Layout) -> Tensor:
        """x_MD -> memory_MD."""
        for layer in self.layers:
            x_MD = layer(x_MD, layout)
        memory_MD: Tensor = self.norm(x_MD)
        return memory_MD


class Decoder(nn.Module):
    """Embedded target tokens and the encoder's output -> the vectors compared with each piece."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(config)

    def forward(
        self, x_ND: Tensor, layout: Layout, memory_MD: Tensor, memory_layout: Layout
    ) -> Tensor:
        """x_ND -> the decoder's output, also (N, D)."""
        for layer in self.layers:
            x_ND = layer(x_ND, layout, memory_MD, memory_layout)
        output_ND: Tensor = self.norm(x_ND)
        return output_ND


class Embeddings(nn.Module):
    """The matrices that turn ids into vectors and vectors into logits, shared or not.

    The module has one parameter for each matrix that exists: `shared`; or `source` and `target`;
    or `source`, `target` and `output`. Drawn from N(0, 1/D).

    scale: the factor of the vectors before positions are added.
    output_bias: added to the logits; it is not trained. None if the model has none.
    padding_id: the id whose vector gets no gradient as an input, as in Hugging Face's models; None
        if there is none. It matters only if decoding starts with padding.
    """

    def __init__(
        self, config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.dropout = config.dropout
        self.scale = math.sqrt(config.d_model) if config.scaled_embeddings else 1.0
        self.padding_id = PAD if config.start_ids[0] == PAD else None
        self.roles = {
            "all": ("shared", "shared", "shared"),
            "decoder": ("source", "target", "target"),
            "none": ("source", "target", "output"),
        }[config.tied_embeddings]
        for name in dict.fromkeys(self.roles):
            vocab_size = source_vocab_size if name == "source" else target_vocab_size
            matrix_VD = torch.randn(vocab_size, config.d_model) * config.d_model**-0.5
            self.register_parameter(name, nn.Parameter(matrix_VD))
        self.output_bias: nn.Parameter | None = None
        if config.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(target_vocab_size), requires_grad=False)
        self._sinusoids = partial(
            sinusoids, d_model=config.d_model, kind=config.positions, first=config.first_position
        )
        self.positions_PD: Tensor
        self.register_buffer("positions_PD", self._sinusoids(512), persistent=False)

    @property
    def source_matrix(self) -> Tensor:
        """Vectors of source pieces, before scaling."""
        return self.get_parameter(self.roles[0])

    @property
    def target_matrix(self) -> Tensor:
        """Vectors of target pieces, before scaling."""
        return self.get_parameter(self.roles[1])

    @property
    def output_matrix(self) -> Tensor:
        """The matrix that turns the decoder's output into logits."""
        return self.get_parameter(self.roles[2])

    def positions(self, num_positions: int) -> Tensor:
        """At least the first `num_positions` rows of the sinusoids; the table grows on demand."""
        known = self.positions_PD.shape[0]
        if num_positions > known:
            table_PD = self._sinusoids(max(num_positions, 2 * known))
            self.positions_PD = table_PD.to(self.positions_PD.device)
        return self.positions_PD

    def vectors(self, ids_N: Tensor, matrix_VD: Tensor) -> Tensor:
        """Ids -> scaled embeddings without positions, (N, D)."""
        x_ND = F.embedding(ids_N, matrix_VD, padding_idx=self.padding_id)
        return x_ND if self.scale == 1.0 else x_ND * self.scale

    def logits(self, x_ND: Tensor, *, memory_NV: Tensor | None = None) -> Tensor:
        """The decoder's output -> logits (N, V); no gradient is promised.

        memory_NV: memory that the logits may be written to.
        """
        logits_NV = project(x_ND, self.output_matrix, memory_NO=memory_NV)
        return logits_NV if self.output_bias is None else logits_NV.add_(self.output_bias)

    def embed(self, ids_BL: Tensor, matrix_VD: Tensor, layout: Layout) -> Tensor:
        """Ids in rows -> scaled embeddings plus positions, after dropout, flat, (N, D)."""
        x_ND = self.vectors(layout.flatten(ids_BL), matrix_VD)
        x_ND = x_ND + self.positions(layout.row_cells)[layout.positions_N]
        return dropout(x_ND, self.dropout, training=self.training)


class Transformer(nn.Module):
    """A translation model: batches -> loss.

    encoder, decoder: the two stacks; a GPU run compiles them (`model.encoder.compile()`).
    embeddings: matrices and positions.
    packed: whether padding is left out of the flat list of tokens; None: on a CPU, and on a GPU in
        half precision (see varlen_attention).
    compiled: whether the loss, too, may use compiled code (see `compile_stacks`).

    Raises ValueError if all embeddings are tied and the vocabularies differ in size.
    """

    def __init__(
        self, config: ModelConfig, *, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        super().__init__()
        config.num_parameters(
            source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
        self.config = config
        self.packed: bool | None = None
        self.compiled = False
        self.embeddings = Embeddings(
            config, source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def forward(self, batch: Batch) -> LossSum:
        """The loss summed over the batch's target tokens."""
        parts = batch.split() if self._splits(batch) else [batch]
        outputs, targets = [], []
        for part in parts:
            output_ND, layout = self._run(part)
            outputs.append(layout.tokens(output_ND))
            targets.append(layout.tokens(layout.flatten(part.target_BT)))
        return smoothed_cross_entropy(
            outputs[0] if len(parts) == 1 else torch.cat(outputs),
            self.embeddings.output_matrix,
            targets[0] if len(parts) == 1 else torch.cat(targets),
            bias_V=self.embeddings.output_bias,
            smoothing=self.config.label_smoothing,
            compiled=self.compiled,
        )

    def token_nll(self, batch: Batch) -> Tensor:
        """Negative log-likelihood of each target token in nats, row after row; no gradients."""
        output_ND, layout = self._run(batch)
        return token_nll(
            layout.tokens(output_ND),
            self.embeddings.output_matrix,
            layout.tokens(layout.flatten(batch.target_BT)),
            bias_V=self.embeddings.output_bias,
        )

    def logits(self, batch: Batch) -> Tensor:
        """The logits of all target cells, (B, T, V); meaningless on padding."""
        output_ND, layout = self._run(batch)
        embeddings = self.embeddings
        return layout.rows(F.linear(output_ND, embeddings.output_matrix, embeddings.output_bias))

    def encode(self, source_BS: Tensor, layout: Layout) -> Tensor:
        """Source ids in rows -> the encoder's output memory_MD."""
        embedded_MD = self.embeddings.embed(source_BS, self.embeddings.source_matrix, layout)
        memory_MD: Tensor = self.encoder(embedded_MD, layout)
        return memory_MD

    def _packs(self, batch: Batch) -> bool:
        """Whether padding is left out of the flat list of this batch's tokens."""
        if self.packed is not None:
            return self.packed
        device = batch.source_BS.device
        return device.type == "cpu" or (
            len(batch.source_BS) > 0 and has_varlen_attention(device, self.config)
        )

    def _splits(self, batch: Batch) -> bool:
        """Whether each group of the batch has a pass of its own.

        If rows are padded, such passes pad no row to the longest of the whole batch. But a small
        model on a GPU takes the time of its kernel launches, and each pass has as many. So all
        groups share one pass if their padding takes less time than the launches saved, and little
        memory: the memory estimate of a recipe does not count it.
        """
        if not batch.groups or self._packs(batch):
            return False
        cells = batch.source_BS.numel() + batch.target_BT.numel()
        layers = self.config.encoder_layers + self.config.decoder_layers
        stacks = (*self.encoder.parameters(), *self.decoder.parameters())
        padding = cells - batch.num_cells
        # A cell sees one of the two stacks.
        padding_s = 3 * sum(weights.numel() for weights in stacks) * padding / _FP32_FLOP_PER_S
        kept = layers * (5 * self.config.d_model + self.config.d_ffn)  # numbers for the backward
        return (
            padding_s > _LAUNCH_S * layers * (len(batch.groups) - 1)
            or 4 * kept * padding > _MOST_PADDING_BYTES
        )

    def _run(self, batch: Batch) -> tuple[Tensor, Layout]:
        """The decoder's output for each target token, and where these tokens lie."""
        packed = self._packs(batch)
        # The compiler would write code for each combination of groups with and without padding.
        groups = () if self.compiled else batch.groups
        longest_row = max(batch.source_BS.shape[1], batch.target_BT.shape[1])
        short = are_short(longest_row, self.config)
        source_layout = make_layout(
            batch.source_lengths_B,
            row_cells=batch.source_BS.shape[1],
            num_tokens=batch.num_source_tokens,
            packed=packed,
            short=short,
            groups=[
                (group.num_rows, group.source_cells, group.num_source_tokens) for group in groups
            ],
        )
        target_layout = make_layout(
            batch.target_lengths_B,
            row_cells=batch.target_BT.shape[1],
            num_tokens=batch.num_target_tokens,
            packed=packed,
            short=short,
            groups=[
                (group.num_rows, group.target_cells, group.num_target_tokens) for group in groups
            ],
        )
        memory_MD = self.encode(batch.source_BS, source_layout)
        decoder_input_BT = batch.decoder_input_BT
        if self.config.start_ids[0] != BOS:
            decoder_input_BT = decoder_input_BT.clone()
            decoder_input_BT[:, 0] = self.config.start_ids[0]
        embedded_ND = self.embeddings.embed(
            decoder_input_BT, self.embeddings.target_matrix, target_layout
        )
        return self.decoder(embedded_ND, target_layout, memory_MD, source_layout), target_layout


def freeze(model: Transformer, parts: Iterable[str]) -> None:
    """Let the weights of these parts, "embeddings" or "encoder", get no gradient."""
    modules: dict[str, nn.Module] = {"embeddings": model.embeddings, "encoder": model.encoder}
    for part in parts:
        modules[part].requires_grad_(False)


_FP32_FLOP_PER_S: Final = 2e13
"""The rate of a GPU in fp32: an A100 has 20 TFLOP/s, an H100 67."""
_MOST_PADDING_BYTES: Final = 2**30
_LAUNCH_S: Final = 2e-3
"""Time to launch a layer's kernels, forward and backward: with 3+2 layers, three more passes took
50 ms beside other work (H100)."""
_COMPILERS: Final = ("torch._dynamo", "torch._inductor", "triton")
"""Modules of the compiler's errors; Triton raises a plain error for a missing compiler."""
_NO_COMPILER: Final = "Failed to find C compiler"


def compile_stacks(model: Transformer, precision: str) -> None:
    """Let encoder, decoder and loss be compiled when they are first called.

    precision: the precision of autocast in all calls, such as "bf16".
    They are compiled for shapes of any size at once: batches have so many shapes that
    compiling for the first ones would be time lost.
    """
    # The compiler keeps its code on disk. Before PyTorch 2.13 (pull request 181564) it took code
    # of bf16 for fp16, and the reverse, so results were those of the wrong precision.
    tag = os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")
    torch.compiler.config.cache_key_tag = f"{tag}{precision}"
    model.encoder.compile(dynamic=True)
    model.decoder.compile(dynamic=True)
    model.compiled = True


@contextmanager
def compiler_errors_named() -> Iterator[None]:
    """Inside the block, errors of torch.compile become MachineErrors."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(_COMPILERS) and _NO_COMPILER not in str(error):
            raise
        raise MachineError(
            f"torch.compile failed: {str(error).splitlines()[0]}",
            place="train.compile",
            remedy="install a C++ compiler and Python's headers (g++ and python3-dev of Debian), "
            "or set train.compile = false",
        ) from error
