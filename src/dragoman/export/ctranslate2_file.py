"""What a model.bin for CTranslate2 holds, looked at before CTranslate2 reads it. Free of torch.

The file may be of somebody else, and CTranslate2 trusts it: it allocates what a size says and
multiplies what it finds. So sizes are compared with the file's own, shapes with the recipe's, and
weights must be numbers.

The format is that of `ctranslate2.specs.model_spec.ModelSpec._serialize`, binary version 6.
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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import CheckpointError
from dragoman.base.files import open_regular
from dragoman.corpus.manifest import Manifest
from dragoman.model.config import ModelConfig
from dragoman.recipe.recipe import Recipe

_VERSION: Final = 6
_TYPES: Final = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_MOST_DIMENSIONS: Final = 8
_MOST_VARIABLES: Final = 1_000_000
_AT_ONCE: Final = 1 << 20
"""Numbers that are looked at together."""
_NAME: Final = re.compile(
    r"(?:encoder|decoder)/(?:layer_\d{1,5}/)?(?:"
    r"(?P<norm>(?:(?:self_attention|attention|ffn)/)?layer_norm/(?:gamma|beta))|"
    r"(?P<matrix>embeddings|embeddings_0|projection|self_attention/linear_[01]|"
    r"attention/linear_[012]|ffn/linear_(?:0|0_noact|1))/(?P<part>weight|weight_scale|bias))"
)
_SETTINGS: Final = {
    "alibi": 0, "alibi_use_positive_positions": 0, "alignment_heads": 1, "alignment_layer": -1,
    "scale_alibi": 0, "scale_embeddings": 1, "start_from_zero_embedding": 0, "embeddings_merge": 0,
    "multi_query_attention": 0,
}  # fmt: skip
"""Of every model that dragoman writes."""
_INFINITE_OR_NAN: Final = 0x7F80
"""The exponent of a bfloat16 with all its bits set."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor of the file: kind is its type's name, values the bytes as they are."""

    name: str
    shape: tuple[int, ...]
    kind: str
    values: bytes


class _Reader:
    """Reads a file from its front; raises ValueError where it ends too early."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size

    def take(self, size: int) -> bytes:
        """The next so many bytes; nothing is allocated for more than the file has."""
        part = self._file.read(size) if size <= self._left else b""
        if len(part) != size:
            raise ValueError("it ends too early")
        self._left -= size
        return part

    def number(self, form: str) -> int:
        """The next number, in the words of `struct`."""
        (value,) = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))
        assert isinstance(value, int)
        return value

    def text(self) -> str:
        """The next string, without the byte that ends it."""
        return self.take(self.number("H")).removesuffix(b"\0").decode()

    def is_at_end(self) -> bool:
        """Whether there is nothing left."""
        return self._left == 0


def check_ctranslate2_file(file: Path, recipe: Recipe, manifest: Manifest) -> None:
    """Read all of the file once.

    Raises CheckpointError where it is not whole, is of another version, holds a tensor of another
    shape than the recipe's model has, or a weight that is infinite or not a number.
    """
    sizes = (manifest.source_vocab_size, manifest.target_vocab_size)
    try:
        with open_regular(file) as content:
            for variable in variables(content):
                _check(variable, recipe.model, sizes)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"is no model of CTranslate2 for this recipe: {problem}",
            place=file,
            remedy="export it again from its run",
        ) from error


def variables(content: BufferedReader) -> Iterator[Variable]:
    """Every tensor of a file under each of its names; raises ValueError where it is not whole.

    Further names come last, without values: what they stand for has been there before.
    """
    reader = _Reader(content)
    if (version := reader.number("I")) != _VERSION:
        raise ValueError(f"it has the format {version}, not {_VERSION}")
    reader.text()  # the name of the architecture, and its revision: CTranslate2 knows them
    reader.number("I")
    count = reader.number("I")
    if count > _MOST_VARIABLES:
        raise ValueError(f"it is said to hold {count:,} tensors")
    known: dict[str, Variable] = {}
    for _ in range(count):
        variable = _variable(reader)
        known[variable.name] = replace(variable, values=b"")
        yield variable
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in known:
            raise ValueError(f"{alias} stands for {name}, which is not there")
        yield replace(known[name], name=alias)
    if not reader.is_at_end():
        raise ValueError("something follows its end")


def _check(variable: Variable, model: ModelConfig, sizes: tuple[int, int]) -> None:
    """Raises ValueError where a tensor is none of this model's."""
    name, shape = variable.name, variable.shape
    side, _, setting = name.partition("/")
    if shape == ():
        said = _scalar(variable)
        known = _SETTINGS | {"num_heads": model.num_heads, "pre_norm": int(model.norm == "pre")}
        if said is not None and said != known.get(setting, said):
            raise ValueError(f"{name} is {said}, not {known[setting]}")
        return
    expected = _expected_shape(name, model, sizes[0] if side == "encoder" else sizes[1])
    if shape != expected:
        raise ValueError(f"{name} is {shape}, not {expected or 'a tensor of such a model'}")
    if not _is_finite(variable):
        raise ValueError(f"{name} has weights that are infinite or not numbers")


def _scalar(variable: Variable) -> int | None:
    """The value of a setting; None where it stands under another name too, or is no integer."""
    if not variable.values or not variable.kind.startswith("int"):
        return None
    return int.from_bytes(variable.values, "little", signed=True)


def _expected_shape(name: str, model: ModelConfig, vocab_size: int) -> tuple[int, ...] | None:
    """The shape that a tensor of this name has; None for a name that no tensor of ours has."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        return None
    d, ffn = model.d_model, model.d_ffn
    if matched["norm"]:
        return (d,)
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


def _variable(reader: _Reader) -> Variable:
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
    return Variable(name, shape, _TYPES[kind], reader.take(size))


def _is_finite(variable: Variable) -> bool:
    if variable.kind == "bfloat16":
        bits: NDArray[np.uint16] = np.frombuffer(variable.values, dtype="<u2")
        return not bool(((bits & _INFINITE_OR_NAN) == _INFINITE_OR_NAN).any())
    if not variable.kind.startswith("float"):
        return True
    numbers: NDArray[np.floating] = np.frombuffer(variable.values, dtype=variable.kind)
    # In 64 bits no sum of finite floats overflows, and nothing hides an infinity or a NaN.
    parts = (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))
    with np.errstate(invalid="ignore"):  # both infinities in one part
        return all(math.isfinite(part.sum(dtype=np.float64)) for part in parts)
