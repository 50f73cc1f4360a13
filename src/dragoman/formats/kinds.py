"""The export formats, with the facts of each that every command needs. Free of torch.

To add a format: enter its name in `Kind` and its record in `FORMATS`; write a `Writer`
(formats/export_job.py), and enter it in `WRITERS` (formats/writers.py).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["bundle", "ctranslate2", "huggingface", "onnx", "argos", "web"]
Quantization = Literal["float32", "float16", "int8"]
RunQuantization = Literal["float32", "int8"]
"""The types in which CTranslate2 gets the weights of a run that translates without an export."""
NOT_STATED: Final = "Not stated."
"""The licence of a model for which nobody has named one."""


class ExportFormat(NamedTuple):
    """One format. Not a dataclass: the command line reads it, and starts faster without them.

    weights: the file with the weights; {source} and {target} are codes of the languages.
    folder: its name in a run's `export/`; {quantization} is that of the weights.
    files: its further files, beside those of every export.
    use: commands or code that run it, for its card; THIS_FOLDER is its place.
    quantizations: the types that its weights can have, the default first.
    is_greedy: its check, and perhaps its user, searches without a beam.
    search_keys: the keys of the recipe's section search that it reads; None: all of them.
    has_repetition_guard: whether search.no_repeat_ngram_size has an effect.
    has_one_direction: it translates in one direction, even if the model has several.
    language_note: for its card: how the {token} of the {target} language is put before a text.
    first_piece_note: the same for the {piece} that begins every source of an imported model; "" if
        the format or dragoman adds it.
    """

    weights: str
    use: str
    folder: str = "{kind}"
    files: tuple[str, ...] = ()
    quantizations: tuple[Quantization, ...] = ("float32",)
    is_greedy: bool = False
    search_keys: tuple[str, ...] | None = None
    has_repetition_guard: bool = True
    has_one_direction: bool = False
    language_note: str = "`--target {target}` puts it there."
    first_piece_note: str = ""


FORMATS: Final[dict[Kind, ExportFormat]] = {
    "bundle": ExportFormat(
        weights="model.safetensors", use="dragoman translate THIS_FOLDER < in.txt > out.txt"
    ),
    "ctranslate2": ExportFormat(
        weights="model.bin",
        folder="{kind}-{quantization}",
        files=("config.json",),
        use="dragoman serve THIS_FOLDER",
        quantizations=("float32", "float16", "int8"),
        language_note="`--target {target}` puts it there; without dragoman it is the first piece: "
        '`["{token}", *processor.encode(text, out_type=str)]`.',
        first_piece_note="dragoman puts it there; without dragoman it is the first piece: "
        '`["{piece}", *pieces]`.',
    ),
    "huggingface": ExportFormat(
        weights="model.safetensors",
        files=("config.json", "tokenizer.json", "tokenizer_config.json"),
        use="AutoModelForSeq2SeqLM.from_pretrained(THIS_FOLDER)  # and AutoTokenizer",
        has_repetition_guard=False,
        language_note='it stands before the text: `tokenizer("{token} A text.")`.',
        first_piece_note='it stands before the text: `tokenizer("{piece} A text.")`.',
    ),
    "onnx": ExportFormat(
        weights="encoder.onnx",
        files=("decoder.onnx",),
        use="encoder.onnx: source_ids -> memory_keys, memory_values\n"
        "decoder.onnx: ids, source_ids, memory_keys, memory_values, past_keys, past_values\n"
        "              -> logits, present_keys, present_values",
        is_greedy=True,
        search_keys=(),
        has_repetition_guard=False,
        language_note="the id of that piece is the first id of the source.",
        first_piece_note="its id is the first id of the source.",
    ),
    "argos": ExportFormat(
        weights="{source}_{target}.argosmodel",
        use="from argostranslate import package\n"
        "package.install_from_path('THIS_PACKAGE.argosmodel')  # LibreTranslate has it then, too",
        quantizations=("int8", "float32", "float16"),
        search_keys=(),
        has_repetition_guard=False,
        has_one_direction=True,
    ),
    "web": ExportFormat(
        weights="encoder.onnx",
        files=("decoder.onnx", "index.html", "web.json", "onnxruntime-web.wasm"),
        use="python -m http.server --bind 127.0.0.1 --directory THIS_FOLDER\n"
        "# then open http://127.0.0.1:8000; any server of static files will do",
        quantizations=("int8",),
        is_greedy=True,
        search_keys=(
            "max_length_ratio",
            "max_length_extra",
            "never_padding",
            "end_at_limit",
            "no_repeat_ngram_size",
        ),
        language_note="the page puts it there.",
    ),
}
