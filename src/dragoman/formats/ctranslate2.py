"""Our model in CTranslate2's format: written, and checked before CTranslate2 reads it.

Every architecture that a recipe can describe has its counterpart there. A length penalty of the
kind "gnmt" does not; `ctranslate2_engine` applies it to the results of CTranslate2. Free of torch.

A file may come from a stranger, and CTranslate2 trusts it: it allocates whatever a size says and
multiplies whatever it finds. So sizes are compared with the file's size, shapes with the recipe's,
and weights must be finite. The format is that of
`ctranslate2.specs.model_spec.ModelSpec._serialize`, binary version 6.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.base.files import open_regular
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import EOS, PAD, UNK
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.formats.kinds import Quantization
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dragoman.model.transformer import Transformer

_INT8_LEVELS: Final = 80
"""The largest weight of a row in int8. With 127, as in CTranslate2's converter, sums of two
products overflow the 16 bits in which processors without VNNI compute them, and are cut off."""
_NUM_POSITIONS: Final = 2048
"""Rows of a table of positions; CTranslate2 computes as many if it knows the formula."""
_NEVER: Final = -30_000.0
"""A bias that excludes padding. In MarianMT padding starts a translation and is never part of one;
its probability, which transformers counts and does not use, is then 0."""
_VERSION: Final = 6
_TYPES: Final = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_MOST_DIMENSIONS: Final = 8
_MOST_VARIABLES: Final = 1_000_000
_CHECKED_TOGETHER: Final = 1 << 20
_NAME: Final = re.compile(
    r"(?:encoder|decoder)/(?:layer_\d{1,5}/)?(?:"
    r"(?P<norm>(?:(?:self_attention|attention|ffn)/)?layer_norm/(?:gamma|beta))|"
    r"(?P<matrix>embeddings|embeddings_0|projection|self_attention/linear_[01]|"
    r"attention/linear_[012]|ffn/linear_(?:0|0_noact|1))/(?P<part>weight|weight_scale|bias)|"
    r"(?P<positions>position_encodings/encodings))"
)
_SETTINGS: Final = {
    "alibi": 0, "alibi_use_positive_positions": 0, "alignment_heads": 0, "alignment_layer": -1,
    "scale_alibi": 0, "start_from_zero_embedding": 0, "embeddings_merge": 0,
    "multi_query_attention": 0,
}  # fmt: skip
"""Settings that have these values in every file that dragoman writes."""
_BFLOAT16_EXPONENT: Final = 0x7F80
"""Its bits are all set if the number is infinite or NaN."""


def write_ctranslate2(
    model: Transformer,
    subwords: tuple[Vocabulary, Vocabulary],
    directory: Path,
    *,
    quantization: Quantization,
) -> None:
    """Write model.bin, config.json and the vocabularies into an existing directory.

    Raises MachineError if CTranslate2 is not installed.
    """
    try:
        from ctranslate2.specs.common_spec import Activation
        from ctranslate2.specs.transformer_spec import TransformerSpec
    except ImportError as error:
        raise MachineError(
            "CTranslate2 is not installed", remedy="install it: pip install 'dragoman[serve]'"
        ) from error
    config = model.config
    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "silu": Activation.SWISH,
        "swiglu": Activation.SWISH,
    }
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=activations[config.activation],
        ffn_glu=config.activation == "swiglu",
        alignment_heads=_SETTINGS["alignment_heads"],  # 0: all of them
    )
    source, target = subwords
    spec.register_source_vocabulary(source.all_pieces())
    spec.register_target_vocabulary(target.all_pieces())
    for name, value in ctranslate2_settings(target, config.start_ids[0]).items():
        setattr(spec.config, name, value)
    spec.encoder.embeddings[0].weight = _array(model.embeddings.source_matrix)
    spec.decoder.embeddings.weight = _array(model.embeddings.target_matrix)
    spec.decoder.projection.weight = _array(model.embeddings.output_matrix)
    bias = model.embeddings.output_bias
    if bias is not None:
        spec.decoder.projection.bias = _array(bias)
    if config.start_ids[0] == PAD:
        if bias is None:
            spec.decoder.projection.bias = np.zeros(target.vocab_size, dtype=np.float32)
        spec.decoder.projection.bias[PAD] = _NEVER
    for stack, described in ((model.encoder, spec.encoder), (model.decoder, spec.decoder)):
        if not config.scaled_embeddings:
            described.scale_embeddings = False
        if has_table_of_positions(config):
            table_PD = model.embeddings.positions(_NUM_POSITIONS)[:_NUM_POSITIONS]
            described.position_encodings.encodings = _array(table_PD)
        layers: Any = stack.layers
        for layer, layer_spec in zip(layers, described.layer, strict=True):
            _put_layer(layer, layer_spec)
        if config.norm == "pre":
            _put_norm(stack.norm, described.layer_norm)
    if quantization == "int8":
        quantize_weights(spec)
    spec.validate()
    spec.optimize(quantization="float16" if quantization == "float16" else None)
    spec.save(str(directory))


def ctranslate2_settings(target: Vocabulary, start_id: int) -> dict[str, str | bool | None]:
    """The settings of config.json on which translations depend."""
    unknown, end, start = target.pieces([UNK, EOS, start_id])
    return {
        "unk_token": unknown,
        "eos_token": end,
        "decoder_start_token": start,
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": None,
        "multi_query_attention": False,
    }


def has_table_of_positions(config: ModelConfig) -> bool:
    """Whether CTranslate2 must be given the positions, since it would compute others."""
    return (config.positions, config.first_position) != ("tensor2tensor", 1)


def _put_layer(layer: Any, spec: Any) -> None:
    """Copy an encoder's or a decoder's layer into its description for CTranslate2."""
    own = layer.self_attention
    _put_linear(own.query_key_value, spec.self_attention.linear[0])
    _put_linear(own.output, spec.self_attention.linear[1])
    _put_norm(layer.self_attention_residual.norm, spec.self_attention.layer_norm)
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        linears = (cross.query, cross.key_value, cross.output)
        for linear, linear_spec in zip(linears, spec.attention.linear, strict=True):
            _put_linear(linear, linear_spec)
        _put_norm(layer.cross_attention_residual.norm, spec.attention.layer_norm)
    feed_forward = layer.feed_forward
    _put_linear(feed_forward.output, spec.ffn.linear_1)
    if feed_forward.activation == "swiglu":
        weights, biases = feed_forward.input.weight.chunk(2), feed_forward.input.bias.chunk(2)
        halves = (spec.ffn.linear_0, spec.ffn.linear_0_noact)
        for half, weight, bias in zip(halves, weights, biases, strict=True):
            half.weight, half.bias = _array(weight), _array(bias)
    else:
        _put_linear(feed_forward.input, spec.ffn.linear_0)
    _put_norm(layer.feed_forward_residual.norm, spec.ffn.layer_norm)


def _put_linear(linear: nn.Linear, spec: Any) -> None:
    spec.weight = _array(linear.weight)
    if linear.bias is not None:
        spec.bias = _array(linear.bias)


def _put_norm(norm: Any, spec: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """A copy in fp32, since CTranslate2 quantizes in place."""
    return np.array(tensor.detach().float().cpu().numpy(), order="C")


def quantize_weights(spec: Any) -> None:
    """Convert a spec's matrices to int8, with a scale for each row; the rest stays fp32."""
    from ctranslate2.specs.model_spec import visit_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        attribute = name.rsplit("/", 1)[-1]
        if not hasattr(layer, f"{attribute}_scale") or not isinstance(value, np.ndarray):
            return
        largest = np.abs(value).max(axis=1)
        scale = (_INT8_LEVELS / np.where(largest > 0, largest, 1.0)).astype(np.float32)
        setattr(layer, attribute, np.rint(value * scale[:, None]).astype(np.int8))
        setattr(layer, f"{attribute}_scale", scale)

    visit_spec(spec, quantize)


def check_ctranslate2_file(file: Path, recipe: Recipe, manifest: Manifest) -> None:
    """Read all of a model.bin once.

    Raises CheckpointError if it is not whole, is of another version, has other settings or tensor
    shapes than the recipe's model, or has a weight that is infinite or not a number.
    """
    sizes = {"encoder": manifest.source_vocab_size, "decoder": manifest.target_vocab_size}
    try:
        with open_regular(file) as content:
            for variable in variables(content):
                _check(variable, recipe.model, sizes)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"is not a CTranslate2 model of this recipe: {problem}",
            place=file,
            remedy="export it again from its run",
        ) from error


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor of the file: kind is its type's name, values its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    values: bytes


class _Reader:
    """Reads a file from its front; raises ValueError if it ends too early."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.left = os.fstat(file.fileno()).st_size

    def take(self, size: int) -> bytes:
        """The next `size` bytes; nothing is allocated for more than the file has."""
        part = self._file.read(size) if size <= self.left else b""
        if len(part) != size:
            raise ValueError("it ends too early")
        self.left -= size
        return part

    def number(self, form: str) -> int:
        """The next number, in the format characters of `struct`."""
        (value,) = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))
        assert isinstance(value, int)
        return value

    def text(self) -> str:
        """The next string, without the byte that ends it."""
        return self.take(self.number("H")).removesuffix(b"\0").decode()


def variables(content: BufferedReader) -> Iterator[Variable]:
    """Every tensor of a file under each of its names; raises ValueError if it is not whole.

    Further names come last, without values: the tensors they stand for have been there before.
    """
    reader = _Reader(content)
    if (version := reader.number("I")) != _VERSION:
        raise ValueError(f"it has the format {version}, not {_VERSION}")
    reader.text()  # the name of the architecture, and its revision: CTranslate2 knows them
    reader.number("I")
    count = reader.number("I")
    if count > _MOST_VARIABLES:
        raise ValueError(f"its header claims {count:,} tensors")
    known: dict[str, Variable] = {}
    for _ in range(count):
        name, num_dimensions = reader.text(), reader.number("B")
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"{name} has {num_dimensions} dimensions")
        shape = tuple(reader.number("I") for _ in range(num_dimensions))
        kind, size = reader.number("B"), reader.number("I")
        if kind >= len(_TYPES):
            raise ValueError(f"{name} is of an unknown type")
        width = 2 if _TYPES[kind] == "bfloat16" else np.dtype(_TYPES[kind]).itemsize
        if math.prod(shape) * width != size:
            raise ValueError(f"{name} has {size} bytes for the shape {shape}")
        variable = Variable(name, shape, _TYPES[kind], reader.take(size))
        known[name] = replace(variable, values=b"")
        yield variable
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in known:
            raise ValueError(f"{alias} stands for {name}, which is not there")
        yield replace(known[name], name=alias)
    if reader.left:
        raise ValueError("something follows its end")


def _check(variable: Variable, model: ModelConfig, sizes: dict[str, int]) -> None:
    """Raises ValueError if this model has no such setting or tensor."""
    name, shape = variable.name, variable.shape
    side, _, setting = name.partition("/")
    if shape == ():
        if variable.values and variable.kind.startswith("int"):
            value = int.from_bytes(variable.values, "little", signed=True)
            known = _SETTINGS | {
                "num_heads": model.num_heads,
                "pre_norm": int(model.norm == "pre"),
                "scale_embeddings": int(model.scaled_embeddings),
            }
            if value != known.get(setting, value):
                raise ValueError(f"{name} is {value}, not {known[setting]}")
        return
    expected = _expected_shape(name, model, sizes.get(side, 0))
    if shape != expected:
        raise ValueError(f"{name} is {shape}, not {expected or 'a tensor of such a model'}")
    if not _is_finite(variable):
        raise ValueError(f"{name} has weights that are infinite or not numbers")


def _expected_shape(name: str, model: ModelConfig, vocab_size: int) -> tuple[int, ...] | None:
    """The shape of the tensor of this name; None if no tensor of ours has the name."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        return None
    d, ffn = model.d_model, model.d_ffn
    if matched["norm"]:
        return (d,)
    if matched["positions"]:
        return (_NUM_POSITIONS, d) if has_table_of_positions(model) else None
    matrices = {
        "embeddings": (vocab_size, d), "embeddings_0": (vocab_size, d),
        "projection": (vocab_size, d),
        "self_attention/linear_0": (3 * d, d), "self_attention/linear_1": (d, d),
        "attention/linear_0": (d, d), "attention/linear_1": (2 * d, d),
        "attention/linear_2": (d, d),
        "ffn/linear_0": (ffn, d), "ffn/linear_0_noact": (ffn, d), "ffn/linear_1": (d, ffn),
    }  # fmt: skip
    rows, columns = matrices[matched["matrix"]]
    return (rows, columns) if matched["part"] == "weight" else (rows,)


def _is_finite(variable: Variable) -> bool:
    if variable.kind == "bfloat16":
        bits: NDArray[np.uint16] = np.frombuffer(variable.values, dtype="<u2")
        return not bool(((bits & _BFLOAT16_EXPONENT) == _BFLOAT16_EXPONENT).any())
    if not variable.kind.startswith("float"):
        return True
    numbers: NDArray[np.floating] = np.frombuffer(variable.values, dtype=variable.kind)
    # In 64 bits no sum of finite floats overflows, and nothing hides an infinity or a NaN.
    starts = range(0, len(numbers), _CHECKED_TOGETHER)
    with np.errstate(invalid="ignore"):  # both infinities in one part
        return all(
            math.isfinite(numbers[start : start + _CHECKED_TOGETHER].sum(dtype=np.float64))
            for start in starts
        )
