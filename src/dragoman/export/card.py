"""The model card: what a bundle is, for people."""

from __future__ import annotations

import json
import re

from dragoman.base.printable import printable_line
from dragoman.corpus.manifest import Manifest
from dragoman.export.bundle import BundleInfo, Kind, Verified
from dragoman.model.config import power_search
from dragoman.recipe.recipe import Recipe

_USES = {
    "bundle": "dragoman translate THIS_FOLDER < in.txt > out.txt",
    "ctranslate2": "dragoman serve THIS_FOLDER",
    "huggingface": "AutoModelForSeq2SeqLM.from_pretrained(THIS_FOLDER)  # and AutoTokenizer",
    "onnx": "encoder.onnx: source_ids -> memory_keys, memory_values\n"
    "decoder.onnx: ids, source_ids, memory_keys, memory_values, past_keys, past_values\n"
    "              -> logits, present_keys, present_values",
}


def model_card(info: BundleInfo, recipe: Recipe, manifest: Manifest) -> str:
    """The card as Markdown, with the header that model hubs read."""
    model = recipe.model
    parts = [
        _header(info),
        f"# {info.name}: {info.source_language} to {info.target_language}",
        f"A Transformer of {info.num_parameters:,} parameters (d {model.d_model}, FFN "
        f"{model.d_ffn}, {model.encoder_layers}+{model.decoder_layers} layers, {model.norm}-norm), "
        f"trained with dragoman {info.dragoman_version}; weights in {info.quantization}.",
        f"```\n{_USES[info.kind]}\n```",
        _notes(recipe, manifest, info.kind),
        "## Data",
        _data(manifest),
        "## Licence",
        info.licence,
        "## Scores",
        _scores(info),
        "## Checked when it was exported",
        _verified(info.verified),
        "## Origin",
        f"Run {_code(info.run)}, checkpoint {_code(info.checkpoint)}, corpus digest "
        f"{_code(manifest.digest)}. "
        "`digests.json` has size and SHA-256 of every file.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(info: BundleInfo) -> str:
    languages = [info.source_language, info.target_language]
    return (
        f"---\nlanguage: {json.dumps(languages)}\n"  # without quotes, no would be false
        "pipeline_tag: translation\n---"
    )


def _text(words: str) -> str:
    """Names as they are: no markup, and no line's end, whatever a run's files say."""
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", printable_line(words))


def _code(words: str) -> str:
    """The same in the letters of programs, which end at a backtick alone."""
    return f"`{printable_line(words).replace('`', chr(39))}`"


def _notes(recipe: Recipe, manifest: Manifest, kind: Kind) -> str:
    notes = []
    if recipe.corpus.lowercase:
        notes.append("It reads and writes lower case.")
    if kind == "onnx":
        notes.append(
            "A source is its pieces' numbers and that of </s>, then 0 to the end of its row. A "
            "translation begins with ids of <s> and a past of no tokens; each step is given the "
            "token that was chosen, and the present as its past. The check below was greedy."
        )
    if kind == "huggingface" and recipe.search.length_penalty == "gnmt":
        length = manifest.train.mean_target_tokens
        exponent = power_search(recipe.search, length).length_penalty_alpha
        notes.append(
            f"Training and scores used the length penalty ((5 + length) / 6)^"
            f"{recipe.search.length_penalty_alpha:g}. transformers knows length^exponent alone: "
            f"generation_config.json has the exponent {exponent:g}, with which the two rank alike "
            f"around {length:.0f} tokens, the mean of the training text. A few translations differ."
        )
    return " ".join(notes)


def _data(manifest: Manifest) -> str:
    rows = [
        f"| {_text(source.split)} | {_text(source.name)} | {source.lines:,} "
        f"| {_code(source.sha256[:16])} |"
        for source in manifest.sources
    ]
    table = "\n".join(["| split | file | lines | SHA-256 begins |", "|---|---|---:|---|", *rows])
    return (
        f"{table}\n\n{manifest.train.pairs:,} pairs were trained on; pairs that occur in the dev "
        "or test set were removed first."
        if manifest.config.filters.drop_overlap
        else f"{table}\n\n{manifest.train.pairs:,} pairs were trained on."
    )


def _scores(info: BundleInfo) -> str:
    if not info.scores:
        return "None was measured for this checkpoint."
    scores = "\n".join(
        f"- {_text(score.text)}: {score.value:.2f}{_interval(score.low, score.high)}, "
        f"{_code(score.signature)}"
        for score in info.scores
    )
    if info.quantization == "float32":
        return scores
    return f"{scores}\n\nThey were measured before the weights were written in {info.quantization}."


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"


def _verified(verified: Verified) -> str:
    return (
        f"{verified.identical} of {verified.sentences} translations are equal to those of "
        f"dragoman's own search with the full weights; chrF between the two: {verified.chrf:.1f}."
    )
