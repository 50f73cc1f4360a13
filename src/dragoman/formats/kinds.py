"""The export formats, with the facts of each that every command needs. Free of torch.

A format is a record here, and a `Writer` (formats/export_job.py) that the record names. Another
package adds one as an entry point of the group `dragoman.export_formats` (base/extensions.py).
"""

from __future__ import annotations

from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from dragoman.base.errors import MachineError
from dragoman.base.extensions import Parts

if TYPE_CHECKING:
    from dragoman.formats.export_job import Writer

Kind: TypeAlias = str
"""The name of a format, one of FORMATS."""
Quantization = Literal["float32", "float16", "int8"]
RunQuantization = Literal["float32", "int8"]
"""The types in which CTranslate2 gets the weights of a run that translates without an export."""
NOT_STATED: Final = "Not stated."
"""The licence of a model for which nobody has named one."""


class ExportFormat(NamedTuple):
    """One format. Not a dataclass: the command line reads it, and starts faster without them.

    writer: its class, as "module:Class"; it is imported when a model is written.
    weights: the file with the weights; {source} and {target} are codes of the languages.
    folder: its name in a run's `export/`; {quantization} is that of the weights.
    files: its further files, beside those of every export.
    quantizations: the types that its weights can have, the default first.
    is_greedy: its check, and perhaps its user, searches without a beam.
    search_keys: the keys of the recipe's section search that it reads; None: all of them.
    has_repetition_guard: whether search.no_repeat_ngram_size has an effect.
    has_one_direction: it translates in one direction, even if the model has several.
    needs: packages that are not installed with dragoman itself. extra: its extra that has them.
    """

    writer: str
    weights: str
    folder: str = "{kind}"
    files: tuple[str, ...] = ()
    quantizations: tuple[Quantization, ...] = ("float32",)
    is_greedy: bool = False
    search_keys: tuple[str, ...] | None = None
    has_repetition_guard: bool = True
    has_one_direction: bool = False
    needs: tuple[str, ...] = ()
    extra: str = ""

    def check_packages(self) -> None:
        """Raises MachineError for a package that is missing, before a model is loaded."""
        for package in self.needs:
            if find_spec(package) is None:
                raise MachineError(
                    f"{package} is not installed",
                    remedy=f"install it: pip install 'dragoman[{self.extra}]'",
                )

    def load_writer(self) -> type[Writer]:
        """The class that writes such an export."""
        writer: type[Writer] = resolve_name(self.writer)
        return writer


_WRITERS: Final = "dragoman.formats.writers"
_OURS: Final = {
    "ctranslate2": ExportFormat(
        f"{_WRITERS}:CTranslate2Writer",
        weights="model.bin",
        folder="{kind}-{quantization}",
        files=("config.json",),
        quantizations=("float32", "float16", "int8"),
    ),
    "huggingface": ExportFormat(
        f"{_WRITERS}:HuggingFaceWriter",
        weights="model.safetensors",
        files=("config.json", "tokenizer_config.json", "vocab.json", "source.spm", "target.spm"),
        has_repetition_guard=False,
    ),
    "onnx": ExportFormat(
        f"{_WRITERS}:OnnxWriter",
        weights="encoder.onnx",
        files=("decoder.onnx",),
        is_greedy=True,
        search_keys=(),
        has_repetition_guard=False,
        needs=("onnx", "onnxruntime"),
        extra="onnx",
    ),
    "argos": ExportFormat(
        f"{_WRITERS}:ArgosWriter",
        weights="{source}_{target}.argosmodel",
        quantizations=("int8", "float32", "float16"),
        search_keys=(),
        has_repetition_guard=False,
        has_one_direction=True,
        needs=("ctranslate2", "onnx"),
        extra="argos",
    ),
    "web": ExportFormat(
        f"{_WRITERS}:WebWriter",
        weights="encoder.onnx",
        files=("decoder.onnx", "index.html", "web.json", "onnxruntime-web.wasm"),
        quantizations=("int8",),
        is_greedy=True,
        search_keys=(
            "max_length_ratio",
            "max_length_extra",
            "never_padding",
            "end_at_limit",
            "no_repeat_ngram_size",
        ),
    ),
}
FORMATS: Final = Parts("export_formats", _OURS)
