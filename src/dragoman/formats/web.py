"""A folder of static files that translates in a browser, without a server of ours.

index.html *.css common.js page.js            the page
worker.js translator.js text.js pieces.js    text to pieces, greedy search, and back
encoder.onnx decoder.onnx                    the model, with matrices in int8
source.model target.model                    SentencePiece
onnxruntime-web.js onnxruntime-web.wasm      runs the graphs, with its licence beside it
web.json                                     settings, and the sizes of the files that are loaded

The page loads everything into memory, from its own folder alone; from then on it needs no network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from sentencepiece import sentencepiece_model_pb2

from dragoman.base.errors import ConfigError
from dragoman.corpus.directions import language_token
from dragoman.corpus.imported_vocabulary import is_imported
from dragoman.corpus.normalize import INVISIBLE, UNICODE_SPACES, mark_bounds
from dragoman.corpus.subword import VOCABULARIES
from dragoman.evaluation.sentences import RULES
from dragoman.formats.int8_onnx import Int8ModelGraph
from dragoman.formats.kinds import FORMATS
from dragoman.formats.onnx import DECODER_FILE, ENCODER_FILE, write_onnx
from dragoman.formats.onnxruntime_web import WASM_FILE
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe

SETTINGS_FILE: Final = "web.json"
PAGE: Final = Path(__file__).with_name("web_page")
"""The folder of the page's files, which are copied into every export."""
PAGE_FILES: Final = (
    "index.html", "common.css", "page.css", "common.js", "page.js", "worker.js", "translator.js",
    "text.js", "pieces.js", "onnxruntime-web.LICENSE",
)  # fmt: skip
_LOADED: Final = (WASM_FILE, ENCODER_FILE, DECODER_FILE, *VOCABULARIES)
_MODEL_TYPES: Final = (1, 2)
"""Unigram and BPE, in SentencePiece's own numbers."""
_PIECE_TYPES: Final = {1, 2, 3, 4}
"""Normal, unknown, control and user-defined: neither unused pieces nor bytes."""


def check_for_web(vocabulary: bytes, *, place: Path) -> None:
    """Raises ConfigError if `pieces.js` would cut text differently from SentencePiece.

    vocabulary: the content of a run's source.model or target.model.
    """
    problem = ""
    if is_imported(vocabulary):
        problem = "its vocabulary was imported, and has rules of its own"
    else:
        model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary)  # type: ignore[attr-defined]
        rules = model.normalizer_spec
        charsmaps = (rules.precompiled_charsmap, model.denormalizer_spec.precompiled_charsmap)
        spaces = rules.add_dummy_prefix and rules.remove_extra_whitespaces
        if model.trainer_spec.model_type not in _MODEL_TYPES:
            problem = "its SentencePiece model is neither BPE nor unigram"
        elif any(charsmaps) or not (spaces and rules.escape_whitespaces):
            problem = "its SentencePiece model changes text by rules of its own"
        elif model.trainer_spec.treat_whitespace_as_suffix:
            problem = "its SentencePiece model has spaces at the ends of words"
        elif {piece.type for piece in model.pieces} - _PIECE_TYPES:
            problem = "its SentencePiece model has pieces for bytes, or unused ones"
    if problem:
        raise ConfigError(
            f"a page in a browser cannot cut text with this vocabulary: {problem}",
            place=place,
            remedy="export to ctranslate2 or onnx",
        )


def write_web(
    model: Transformer,
    recipe: Recipe,
    runtime: dict[str, bytes],
    folder: Path,
    *,
    metadata: dict[str, str],
) -> None:
    """Write the page, the graphs and what they need into a folder that has the vocabularies.

    runtime: the files of onnxruntime-web. metadata: written into the graphs.
    Raises MachineError if onnx is not installed.
    """
    write_onnx(model, folder, metadata=metadata, kind=Int8ModelGraph)
    for name in PAGE_FILES:
        (folder / name).write_bytes((PAGE / name).read_bytes())
    for name, content in runtime.items():
        (folder / name).write_bytes(content)
    corpus = recipe.corpus
    settings = {
        "directions": [
            {
                "source": one.source,
                "target": one.target,
                "token": language_token(one.target) if corpus.language_tokens else "",
                "zero_shot": one not in corpus.train_directions,
            }
            for one in corpus.directions
        ],
        "lowercase": corpus.lowercase,
        "max_pieces": corpus.max_pieces,
        "start_ids": recipe.model.start_ids,
        **{name: getattr(recipe.search, name) for name in FORMATS["web"].search_keys or ()},
        "sentences": RULES,
        "invisible": INVISIBLE,
        "spaces": UNICODE_SPACES,
        "marks": mark_bounds(),
        "files": {name: (folder / name).stat().st_size for name in _LOADED},
    }
    text = json.dumps(settings, ensure_ascii=True) + "\n"
    (folder / SETTINGS_FILE).write_text(text, encoding="ascii")
