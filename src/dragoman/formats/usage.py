"""How to call the library that an export is for: code for its card, with all that goes in.

Every example runs as it is once THIS_FOLDER is replaced by the folder of the export.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.corpus.stand_ins import SEPARATOR
from dragoman.formats.argos import argos_code
from dragoman.formats.bundle import BundleInfo
from dragoman.formats.kinds import FORMATS
from dragoman.model.config import SearchConfig, length_limit, power_search
from dragoman.recipe.recipe import Recipe

EXAMPLE: Final = "A sentence."
"""The text that the examples translate."""
_START_NAMES: Final = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
_DRAGOMAN: Final = """\
import dragoman

with dragoman.Translator("THIS_FOLDER"{target}) as translator:
    print(translator.translate(["{text}"])[0])"""
_CTRANSLATE2: Final = """\
import ctranslate2
import sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="THIS_FOLDER/source.model")
target = sentencepiece.SentencePieceProcessor(model_file="THIS_FOLDER/target.model")
translator = ctranslate2.Translator("THIS_FOLDER")
pieces = [{prefix}*source.encode("{text}", out_type=str)]
found = translator.translate_batch(
    [pieces], beam_size={beam}, length_penalty={penalty}, max_decoding_length={limit}
)
print(target.decode(found[0].hypotheses[0]){cleaned})"""
_TRANSFORMERS: Final = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
model = AutoModelForSeq2SeqLM.from_pretrained("THIS_FOLDER")
rows = tokenizer(["{prefix}{text}"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**rows), skip_special_tokens=True)[0])"""
_FSMT_TRAINING: Final = """\
import torch

for side in (model.model.encoder, model.model.decoder):
    side.embed_positions.weight.requires_grad_(False)
model.prepare_decoder_input_ids_from_labels = lambda labels: torch.cat(
    [torch.full_like(labels[:, :1], model.config.decoder_start_token_id),
     labels[:, :-1].clamp(min=model.config.pad_token_id)], dim=1
)"""
_ONNX: Final = """\
import numpy as np
import onnxruntime
{read}
encoder = onnxruntime.InferenceSession("THIS_FOLDER/encoder.onnx")
decoder = onnxruntime.InferenceSession("THIS_FOLDER/decoder.onnx")
source_ids = np.array([[{ids}, {end}]], dtype=np.int64)
memory_keys, memory_values = encoder.run(None, {{"source_ids": source_ids}})
past_keys = past_values = np.zeros(({layers}, 1, {heads}, 0, {width}), dtype=np.float32)
chosen = {start}
for step in range({limit}):
    logits, past_keys, past_values = decoder.run(None, {{
        "ids": np.array([chosen[step]], dtype=np.int64), "source_ids": source_ids,
        "memory_keys": memory_keys, "memory_values": memory_values,
        "past_keys": past_keys, "past_values": past_values,
    }})
    if step + 1 == len(chosen):
        chosen.append({first} + int(logits[0, {first}:].argmax()))
    if chosen[-1] == {end}:
        break
translation = [one for one in chosen[{num_start}:] if one != {end}]
print(target.decode({translation}{cleaned})"""
_READ_SENTENCEPIECE: Final = """\
import sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="THIS_FOLDER/source.model")
target = sentencepiece.SentencePieceProcessor(model_file="THIS_FOLDER/target.model")"""
_READ_IMPORTED: Final = """\
from pathlib import Path

from dragoman.corpus.vocabulary import load_vocabulary

source = load_vocabulary(Path("THIS_FOLDER/source.model"))
target = load_vocabulary(Path("THIS_FOLDER/target.model"))"""
_WEB: Final = """\
```
python -m http.server --bind 127.0.0.1 --directory THIS_FOLDER
# then open http://127.0.0.1:8000; any server of static files will do
```"""
_ZEROS: Final = (
    "CTranslate2's own converter begins each translation with a vector of zeros. That is right as "
    "long as the padding of this model has such a vector, which training changes: `dragoman export "
    "RUN --to ctranslate2` writes the model as it is."
)
_FSMT: Final = (
    "It is FSMT there, which CTranslate2's own converter does not know: `dragoman export RUN "
    "--to ctranslate2` writes that form. In training FSMT would change the positions, and begin a "
    "translation with the last token of its labels, where this model begins with `<s>`. So before "
    "you give the model to `DataCollatorForSeq2Seq` and train:"
)
_FSMT_CACHE: Final = (
    "The cache of FSMT in transformers 4 has as many layers as the encoder, which are too few for "
    "this decoder: use transformers 5."
)
_BACK: Final = (
    "`dragoman import` takes the model back after a training in transformers, from the folder that "
    "`save_pretrained` of model and tokenizer wrote."
)
_ARGOS: Final = """\
from argostranslate import package, translate

package.install_from_path("THIS_FOLDER/{name}")  # LibreTranslate has it then, too
print(translate.translate("{text}", "{source}", "{target}"))"""
_SHAPES: Final = """\
| graph | inputs | outputs |
|---|---|---|
| `encoder.onnx` | `source_ids` int64 (B, S) | `memory_keys`, `memory_values` float32 ({layers}, B, {heads}, S, {width}) |
| `decoder.onnx` | `ids` int64 (B), `source_ids` int64 (B, S), `memory_keys`, `memory_values`, `past_keys`, `past_values` float32 ({layers}, B, {heads}, P, {width}) | `logits` float32 (B, {vocab_size}), `present_keys`, `present_values` float32 ({layers}, B, {heads}, P + 1, {width}) |

B rows, S source tokens of the longest row, P tokens of the translation so far."""  # noqa: E501


@dataclass(frozen=True, slots=True)
class _Export:
    """What the examples depend on.

    token: the piece that names the target language at the beginning of a source, if there is one.
    """

    info: BundleInfo
    recipe: Recipe
    manifest: Manifest
    token: str

    @property
    def is_imported(self) -> bool:
        """Whether its vocabulary is that of another tool."""
        return self.recipe.corpus.subword.kind == "imported"

    @property
    def has_targets(self) -> bool:
        """Whether a token chooses the language to translate into."""
        return any(one.token for one in self.info.directions)

    @property
    def limit(self) -> int:
        """The most tokens of a translation."""
        return length_limit(self.recipe.corpus.max_pieces, self.recipe.search)

    @property
    def text(self) -> str:
        """The example as the model reads it."""
        return EXAMPLE.lower() if self.recipe.corpus.lowercase else EXAMPLE

    @property
    def goes_in(self) -> str:
        """The beginning of a sentence on the form of a text."""
        case = ", lower-cased," if self.recipe.corpus.lowercase else ""
        return f"One sentence, in Unicode NFC with single spaces,{case} goes in as"

    @property
    def search_words(self) -> str:
        """Beam and penalty of the recipe."""
        search = self.recipe.search
        return (
            f"the recipe's beam of {search.beam_size} and length penalty {search.length_penalty} "
            f"of {search.length_penalty_alpha:g}"
        )

    @property
    def power(self) -> SearchConfig:
        """The recipe's search for a library that knows the penalty length^exponent alone."""
        return power_search(self.recipe.search, self.manifest.train.mean_target_tokens)

    @property
    def power_words(self) -> str:
        """Beam and penalty of such a library."""
        search, exponent = self.recipe.search, self.power.length_penalty_alpha
        said = f"The search has a beam of {search.beam_size} and the length penalty "
        if search.length_penalty == "power":
            return f"{said}length^{exponent:g}, as the recipe."
        return (
            f"{said}length^{exponent:g}. Training and scores used ((5 + length) / 6)^"
            f"{search.length_penalty_alpha:g}, which is not known there; the two rank alike around "
            f"{self.manifest.train.mean_target_tokens:.0f} tokens, the mean of the training text. "
            "A few translations differ."
        )


def usage(info: BundleInfo, recipe: Recipe, manifest: Manifest, *, first_piece: str = "") -> str:
    """How to call the library of an export's format, as Markdown.

    first_piece: the piece that begins every source of an imported model and names a language; "" if
        there is none.
    """
    token = next((one.token for one in info.directions if one.token), first_piece)
    writers: dict[str, Callable[[_Export], list[str]]] = {
        "ctranslate2": _of_ctranslate2,
        "huggingface": _of_huggingface,
        "onnx": _of_onnx,
        "argos": _of_argos,
        "web": _of_web,
    }
    write = writers.get(info.kind, _of_weights)
    return "\n\n".join(write(_Export(info, recipe, manifest, token)))


def _of_weights(export: _Export) -> list[str]:
    """A format that has no examples here."""
    return [f"The weights are in `{FORMATS[export.info.kind].weights}`."]


def _by_dragoman(export: _Export) -> list[str]:
    info = export.info
    target = f', target_language="{info.target_language}"' if export.has_targets else ""
    said = (
        "Sentences go in as they are, one in each line: dragoman normalises them and adds `</s>`. "
        f"It searches with {export.search_words}."
    )
    if export.token:
        said += f" It puts the token of the language, such as `{export.token}`, before each."
    return [_python(_DRAGOMAN.format(text=EXAMPLE, target=target)), said]


def _of_ctranslate2(export: _Export) -> list[str]:
    if export.is_imported:
        first = (
            f" Without dragoman that token is the first piece of every source: `{export.token}`."
        )
        *parts, said = _by_dragoman(export)
        return [*parts, said + (first if export.token else "")]
    code = _CTRANSLATE2.format(
        prefix=f'"{export.token}", ' if export.token else "",
        text=export.text,
        beam=export.power.beam_size,
        penalty=f"{export.power.length_penalty_alpha:g}",
        limit=export.limit,
        cleaned=_cleaned(export),
    )
    said = f"{export.goes_in} its pieces, without `</s>`: CTranslate2 adds that."
    if export.token:
        said += f" The first piece is the token of the language: `{export.token}`."
    return [_python(code), f"{said} {export.power_words}"]


def _cleaned(export: _Export) -> str:
    """Code that takes the separators of sentences out of a text, if the model has learnt them."""
    has_separator = export.recipe.corpus.context.sentences > 1
    return f'.replace("\\U{ord(SEPARATOR):08X}", "")' if has_separator else ""


def _of_huggingface(export: _Export) -> list[str]:
    pre = export.recipe.model.norm == "pre"
    # The tokenizers of M2M100 and NLLB know their languages themselves.
    prefix = "" if not export.token or (export.is_imported and pre) else f"{export.token} "
    said = (
        "The second way is transformers, whose tokenizer needs the package sentencepiece. One "
        "sentence goes in as it is: the tokenizer normalises it and adds `</s>`."
    )
    if prefix:
        said += f" It begins with the token of the language: `{export.token}`."
    command = "dragoman translate THIS_FOLDER"
    if export.has_targets:
        command = f"dragoman translate THIS_FOLDER --target {export.info.target_language}"
    parts = [
        f"```\n{command} < in.txt > out.txt\n```",
        _python(_TRANSFORMERS.format(prefix=prefix, text=EXAMPLE)),
        f"{said} `generation_config.json` sets the search. {export.power_words}",
    ]
    if export.is_imported:
        return parts if pre else [*parts, _ZEROS]
    if not pre:
        parts += [_FSMT, _python(_FSMT_TRAINING)]
        if export.recipe.model.decoder_layers > export.recipe.model.encoder_layers:
            parts.append(_FSMT_CACHE)
    return [*parts, _BACK]


def _of_onnx(export: _Export) -> list[str]:
    model, search = export.recipe.model, export.recipe.search
    shape = {
        "layers": model.decoder_layers,
        "heads": model.num_heads,
        "width": model.d_model // model.num_heads,
    }
    if export.is_imported:
        ids = f'*source.encode(["{export.text}"])[0]'
    else:
        first = f'source.piece_to_id("{export.token}"), ' if export.token else ""
        ids = f'{first}*source.encode("{export.text}")'
    code = _ONNX.format(
        read=_READ_IMPORTED if export.is_imported else _READ_SENTENCEPIECE,
        ids=ids,
        end=EOS,
        start=[*model.start_ids],
        num_start=len(model.start_ids),
        first=PAD + 1 if search.never_padding else PAD,
        limit=export.limit,
        translation="[translation])[0]" if export.is_imported else "translation)",
        cleaned=_cleaned(export),
        **shape,
    )
    names = " and then ".join(f"{_START_NAMES.get(one, one)}" for one in model.start_ids)
    token = f" The first id is that of the token `{export.token}`." if export.token else ""
    said = (
        f"{export.goes_in} the ids of its pieces and that of `</s>`, {EOS}; rows of a batch are "
        f"filled with {PAD}.{token} A translation begins with ids of {names} and a past of no "
        "tokens; each step is given "
        "the token that was chosen, and the present as its past."
        + (f" {PAD} is never chosen." if search.never_padding else "")
        + " The example is greedy, as the check below: you write a beam and a length penalty. "
        f"Scores of the run are those of {export.search_words}."
    )
    shapes = _SHAPES.format(vocab_size=export.manifest.target_vocab_size, **shape)
    return [_python(code), said, shapes]


def _of_argos(export: _Export) -> list[str]:
    info = export.info
    code = _ARGOS.format(
        name=info.weights_name,
        text=EXAMPLE,
        source=argos_code(info.source_language),
        target=argos_code(info.target_language),
    )
    return [
        _python(code),
        "Whole texts go in as they are: the package splits them into sentences, normalises them "
        "and adds `</s>`.",
    ]


def _of_web(export: _Export) -> list[str]:
    said = "Whole texts go in as they are: the page splits them, normalises them and adds `</s>`."
    if export.token:
        said += f" It puts the token of the language, such as `{export.token}`, before each."
    return [_WEB, said]


def _python(code: str) -> str:
    return f"```python\n{code}\n```"
