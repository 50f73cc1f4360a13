"""The model card: a description of a bundle for people, with the scores of its checkpoint."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dragoman.base.errors import CheckpointError
from dragoman.base.files import file_sha256
from dragoman.base.printable import printable_line
from dragoman.corpus.directions import Direction, listed
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import BOS, EOS, PAD
from dragoman.formats.bundle import BundleInfo, BundleScore
from dragoman.formats.hub import card_header
from dragoman.formats.kinds import FORMATS, Kind
from dragoman.formats.onnxruntime_web import PACKAGE
from dragoman.model.config import power_search
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import (
    DirectionScored,
    Event,
    TestScored,
    Validated,
    read_events,
)
from dragoman.training.checkpoint import read_state
from dragoman.training.durable import DIGESTS_FILE


def model_card(
    info: BundleInfo, recipe: Recipe, manifest: Manifest, *, first_piece: str = ""
) -> str:
    """The card as Markdown, with the header that model hubs read.

    first_piece: the piece that begins every source of an imported model and names a language; "" if
        there is none.
    """
    model, form = recipe.model, FORMATS[info.kind]
    search = "greedy search" if form.is_greedy else "search"
    if info.kind == "huggingface":
        header = card_header(info, base_form=_architecture(recipe))
    else:
        # Without quotes, the language no would be false.
        languages = json.dumps([*info.languages])
        header = f"---\nlanguage: {languages}\npipeline_tag: translation\n---"
    parts = [
        header,
        f"# {info.name}: {info.title}",
        f"A Transformer of {info.num_parameters:,} parameters (d {model.d_model}, FFN "
        f"{model.d_ffn}, {model.encoder_layers}+{model.decoder_layers} layers, {model.norm}-norm), "
        f"{_maker(info)} with dragoman {info.dragoman_version}; weights in {info.quantization}.",
        f"```\n{form.use}\n```",
        _directions(info),
        _first_piece(first_piece, recipe, info.kind),
        _notes(recipe, manifest, info),
        "## Data",
        _data(manifest),
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


def _directions(info: BundleInfo) -> str:
    """How to choose a language by its token; directions that the model was not trained for."""
    said = []
    tokens = {one.target: one.token for one in info.directions if one.token}
    if tokens:
        listing = ", ".join(f"{target} {_code(token)}" for target, token in tokens.items())
        target, token = next(iter(tokens.items()))
        how = FORMATS[info.kind].language_note.format(target=target, token=token)
        said.append(f"A token says into which language ({listing}): {how}")
    zero_shot = [Direction(one.source, one.target) for one in info.directions if one.zero_shot]
    if zero_shot:
        said.append(f"There was no training text (zero-shot) for {listed(zero_shot)}.")
    return " ".join(said)


def _first_piece(piece: str, recipe: Recipe, kind: Kind) -> str:
    """How a source of an imported model gets its language if dragoman does not add it."""
    if not piece:
        return ""
    how = FORMATS[kind].first_piece_note.format(piece=piece)
    if kind == "huggingface" and recipe.model.norm == "pre":
        how = ""  # the tokenizer of M2M100 knows its languages itself
    return f"Every source begins with {_code(piece)}: {how}" if how else ""


def _architecture(recipe: Recipe) -> str:
    """The architecture's name in transformers; see huggingface.py."""
    if recipe.model.norm == "pre":
        return "m2m_100"
    return "marian" if recipe.corpus.subword.kind == "imported" else "fsmt"


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


def _notes(recipe: Recipe, manifest: Manifest, info: BundleInfo) -> str:
    notes, kind = [], info.kind
    if recipe.corpus.lowercase:
        notes.append("It reads and writes lower case.")
    if kind == "onnx":
        notes.append(
            "A source is its pieces' numbers and that of </s>, then 0 to the end of its row. A "
            f"translation begins with ids of {_start(recipe)} and a past of no tokens; each step "
            "is given the token that was chosen, and the present as its past. "
            + ("0 is never chosen. " if recipe.search.never_padding else "")
            + "The check below was greedy."
        )
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
            "common abbreviations of English, German and French."
        )
        if recipe.corpus.subword.kind != "imported":
            notes.append(
                "`sentencepiece.model` brings a text into the form of the training text: Unicode "
                "NFC and plain spaces."
            )
    if not FORMATS[kind].has_repetition_guard and recipe.search.no_repeat_ngram_size:
        notes.append(
            "The recipe's guard against repetition, with which scores are measured, is not in "
            f"effect here: search.no_repeat_ngram_size = {recipe.search.no_repeat_ngram_size}."
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


def _start(recipe: Recipe) -> str:
    """The first ids of a translation, by name; each is given in a step of its own."""
    names = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
    return " and then ".join(f"{names.get(one, one)}" for one in recipe.model.start_ids)


def _maker(info: BundleInfo) -> str:
    if not info.imported:
        return "trained"
    return f"made by others and imported from the folder {_code(info.imported)}"


def _data(manifest: Manifest) -> str:
    if not manifest.sources and not manifest.train.pairs:
        return "Others trained it. The page that came with it names the text."
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


def scores_of(
    run: RunDirectory, checkpoint: Path, overrides: Sequence[str] = ()
) -> tuple[tuple[BundleScore, ...], int | None]:
    """Scores of a checkpoint from its run's events, and its step; None for an average.

    Dev scores are those of a checkpoint of the run itself. Test scores are those that
    `dragoman evaluate` found for these very weights, with the recipe's own search settings, changed
    by exactly these overrides.
    """
    try:
        step = read_state(checkpoint).step
    except CheckpointError:
        step = None
    weights = file_sha256(checkpoint / DIGESTS_FILE)
    is_own = checkpoint.resolve().parent == run.checkpoints.resolve()
    found: dict[tuple[str, str], tuple[Event, int]] = {}
    measured: set[str] = set()
    for path in sorted(run.events.glob("rank-0000*.jsonl")):
        for event in read_events(path):
            said = event.payload
            is_dev = is_own and step is not None and event.step == step and not overrides
            if event.kind == Validated.kind and is_dev:
                found["dev", ""] = event, said["decoded_pairs"]
            elif event.kind == TestScored.kind:
                name, target = said["name"], said.get("target")
                if _is_of(event, weights, overrides):
                    measured.add(name)
                    text = f"{name} into {target}" if target else name
                    found[text, said.get("source") or ""] = event, said["pairs"]
                else:
                    measured.discard(name)
            elif event.kind == DirectionScored.kind:  # it follows the score of its text
                name = said["text"]
                if is_dev if name == "valid" else name in measured:
                    text = "dev" if name == "valid" else name
                    text += f" {said['source']}-{said['target']}"
                    found[text, ""] = event, said["pairs"]
    names = Counter(text for text, _ in found)
    scores: list[BundleScore] = []
    for (text, source), (event, lines) in found.items():
        folder = Path(source).parent.name if names[text] > 1 else ""
        scores += _scores_in(event, f"{folder}/{text}, {lines} lines".removeprefix("/"))
    return tuple(scores), step


def _is_of(event: Event, weights: str, overrides: Sequence[str]) -> bool:
    """Whether a score is of these weights and overrides; events of earlier versions do not say."""
    settings = event.payload.get("settings")
    if not isinstance(settings, str) or event.payload.get("weights") != weights:
        return False
    given = map(_plain, re.split(r"\s+(?=\w+\.[\w.]+\s*=)", settings))
    return {one for one in given if one.startswith("search.")} == set(map(_plain, overrides))


def _plain(setting: str) -> str:
    """A setting without the spaces that it may have around its equals sign."""
    return re.sub(r"\s*=\s*", "=", setting.strip(), count=1)


def _scores_in(event: Event, text: str) -> Iterator[BundleScore]:
    for metric in ("bleu", "chrf"):
        value = event.payload.get(metric)
        if value is not None:
            yield BundleScore(
                text=text,
                value=value,
                low=event.payload[f"{metric}_low"],
                high=event.payload[f"{metric}_high"],
                signature=event.payload[f"{metric}_signature"],
            )
