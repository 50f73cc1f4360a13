"""The model card: a description of an export for people, with the scores of its checkpoint.

Free of torch: the server writes a card anew for other languages.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from dragoman.base.printable import printable_line
from dragoman.corpus.directions import Direction, listed
from dragoman.corpus.manifest import Manifest
from dragoman.formats.bundle import Bundle, BundleInfo
from dragoman.formats.hub import card_header
from dragoman.formats.kinds import FORMATS
from dragoman.formats.onnxruntime_web import PACKAGE
from dragoman.formats.usage import usage
from dragoman.recipe.recipe import Recipe

_HEADER = re.compile(r"---[\s\S]*?\n---\s*")
"""What model hubs read, before the text for people."""


def card_html(card: str) -> str:
    """A card as HTML for a page, without its header.

    A card may be a stranger's: HTML in it is shown as text, pictures are not fetched, and links
    that would run something are none.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(_HEADER.sub("", card, count=1) if card.startswith("---") else card)
    for token in tokens:
        token.attrs.pop("style", None)  # of a column: the page allows no style but its own
    return str(parser.renderer.render(tokens, parser.options, {}))


def model_card(
    info: BundleInfo, recipe: Recipe, manifest: Manifest, *, first_piece: str = ""
) -> str:
    """The card as Markdown, with the header that model hubs read.

    first_piece: the piece that begins every source of an imported model and names a language; "" if
        there is none.
    """
    model, form = recipe.model, FORMATS[info.kind]
    search = "greedy search" if form.is_greedy else "search"
    parts = [
        card_header(info, base_form=_architecture(recipe) if info.kind == "huggingface" else ""),
        f"# {info.name}: {info.title}",
        f"A Transformer of {info.num_parameters:,} parameters (d {model.d_model}, FFN "
        f"{model.d_ffn}, {model.encoder_layers}+{model.decoder_layers} layers, {model.norm}-norm), "
        f"{_maker(info, recipe)} with dragoman {info.dragoman_version}; weights in "
        f"{info.quantization}.",
        usage(info, recipe, manifest, first_piece=first_piece),
        _directions(info),
        _notes(recipe, info),
        "## Data",
        _data(manifest, recipe.data.share),
        "## Licence",
        _paragraph(info.licence),
        "## Scores",
        _scores(info),
        "## Checked when it was exported",
        "It was imported as it is: no translations were compared."
        if info.imported and not info.verified.sentences
        else f"{info.verified.identical} of {info.verified.sentences} translations are equal to "
        f"those of dragoman's own {search} with the full weights; chrF between the two: "
        f"{info.verified.chrf:.1f}.",
        *([f"**{info.verified.warning}**"] if info.verified.warning else []),
        "## Origin",
        (
            f"The folder {_code(info.imported)}."
            if info.imported
            else f"Run {_code(info.run)}, checkpoint {_code(info.checkpoint)}, corpus digest "
            f"{_code(manifest.digest)}."
        )
        + ("" if info.kind == "argos" else " `digests.json` has size and SHA-256 of every file."),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def relabelled(bundle: Bundle, pair: str) -> Bundle:
    """An export with its languages corrected to a pair such as "en-fr"; its files stay as they are.

    "" changes nothing. Raises ConfigError as `Recipe.with_languages`.
    """
    if not pair:
        return bundle
    recipe = bundle.recipe.with_languages(pair)
    (direction,) = recipe.corpus.directions
    named = {"source_language": direction.source, "target_language": direction.target}
    info = bundle.info.model_copy(update=named)
    return replace(
        bundle, info=info, recipe=recipe, new_card=model_card(info, recipe, bundle.manifest)
    )


def _directions(info: BundleInfo) -> str:
    """How to choose a language by its token; directions that the model was not trained for."""
    said = []
    tokens = {one.target: one.token for one in info.directions if one.token}
    if tokens:
        listing = ", ".join(f"{target} {_code(token)}" for target, token in tokens.items())
        said.append(f"A token says into which language: {listing}.")
    zero_shot = [Direction(one.source, one.target) for one in info.directions if one.zero_shot]
    if zero_shot:
        said.append(f"There was no training text (zero-shot) for {listed(zero_shot)}.")
    return " ".join(said)


def _architecture(recipe: Recipe) -> str:
    """The architecture's name in transformers; see huggingface.py."""
    pre = recipe.model.norm == "pre"
    if recipe.corpus.subword.kind == "imported":
        return "m2m_100" if pre else "marian"
    return "pegasus" if pre else "fsmt"


def _text(words: str) -> str:
    """Names as plain text: no markup and no line ends, whatever a run's files hold."""
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", printable_line(words))


def _code(words: str) -> str:
    """Names as inline code, which only a backtick could end."""
    return f"`{printable_line(words).replace('`', chr(39))}`"


def _paragraph(words: str) -> str:
    """Words of a user as one line of text, never a heading, a list or a rule."""
    line = _text(" ".join(words.split()))
    return re.sub(r"^(\d*)([#+=~_.)-])", r"\1\\\2", line)


def _notes(recipe: Recipe, info: BundleInfo) -> str:
    notes, kind = [], info.kind
    if recipe.corpus.lowercase:
        notes.append("It reads and writes lower case.")
    if kind == "web":
        notes.append("The search in the browser is greedy.")
        if info.scores:
            notes.append(f"Scores were measured with a beam of {recipe.search.beam_size}.")
        notes.append(
            "Nothing is sent to any server: the page loads this folder's files and works without a "
            f"network from then on. It is run by {PACKAGE} of Microsoft, under the MIT licence."
        )
    if kind == "argos":
        notes.append(
            "Argos Translate searches by its own rules: with a beam of 4, by the log-probability "
            "divided by length^0.2, and for up to 256 pieces. The recipe's search, with which "
            f"scores are measured, has a beam of {recipe.search.beam_size} and the length penalty "
            f"{recipe.search.length_penalty} of {recipe.search.length_penalty_alpha:g}. So some "
            "translations differ. Underscores in a translation become spaces there."
        )
        notes.append(
            "`minisbd/` splits a paragraph into sentences by rules for full stops, other marks and "
            "common abbreviations of some thirty languages."
        )
        if recipe.corpus.subword.kind != "imported":
            notes.append(
                "`sentencepiece.model` brings a text into the form of the training text: Unicode "
                "NFC and plain spaces."
            )
    if not FORMATS[kind].has_repetition_guard and recipe.search.no_repeat_ngram_size:
        where = "in transformers" if kind == "huggingface" else "here"
        notes.append(
            "The recipe's guard against repetition, with which scores are measured, is not in "
            f"effect {where}: search.no_repeat_ngram_size = {recipe.search.no_repeat_ngram_size}."
        )
    return " ".join(notes)


def _maker(info: BundleInfo, recipe: Recipe) -> str:
    if not info.imported:
        return "trained"
    if recipe.corpus.subword.kind != "imported":
        return f"trained, perhaps changed by others, and imported from {_code(info.imported)}"
    return f"made by others and imported from the folder {_code(info.imported)}"


def _data(manifest: Manifest, share: float) -> str:
    if not manifest.sources and not manifest.train.pairs:
        return "Others trained it. The page that came with it names the text."
    rows = [
        f"| {_text(source.split)} | {_text(source.name)} | {source.lines:,} "
        f"| {_code(source.sha256[:16])} |"
        for source in manifest.sources
    ]
    used = f"{math.ceil(share * manifest.train.pairs):,} pairs were trained on"
    table = "\n".join(["| split | file | lines | SHA-256 begins |", "|---|---|---:|---|", *rows])
    return (
        f"{table}\n\n{used}; pairs that occur in the dev or test set were removed first."
        if manifest.config.filters.drop_overlap
        else f"{table}\n\n{used}."
    )


def _scores(info: BundleInfo) -> str:
    if not info.scores:
        return "None was measured for this checkpoint."
    lines = []
    for score in info.scores:
        interval = ""
        if score.low is not None and score.high is not None:
            interval = f" ({score.low:.2f} to {score.high:.2f})"
        lines.append(
            f"- {_text(score.text)}: {score.value:.2f}{interval}, {_code(score.signature)}"
        )
    if info.quantization != "float32":
        lines.append(
            f"\nThey were measured before the weights were written in {info.quantization}."
        )
    return "\n".join(lines)
