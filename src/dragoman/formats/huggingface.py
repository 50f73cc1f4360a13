"""Our model and its SentencePiece vocabulary as transformers loads them without any code of ours.

Pre-norm with one shared matrix is M2M100 up to names, post-norm is FSMT: both place the first
token at position 1 of the same sinusoids if PAD is 0. Models that neither can express are refused.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import UNICODE_SPACES
from dragoman.corpus.shards import BOS, EOS, PAD, UNK
from dragoman.formats.imported_form import check_imported, refuse, shape_keys
from dragoman.importing.weights import layer_weights
from dragoman.inference.translation import new_model
from dragoman.model.config import SearchConfig, length_limit
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe
from dragoman.training.checkpoint import read_weights, weight_shapes

_AGAIN: Final = "export it again from its run"
_POSITIONS: Final = "embed_positions.weight"
"""FSMT also stores its sinusoids; they are computed on both sides."""
SPECIAL_PIECES: Final = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}
_SPACE: Final = "▁"
_NO_PIECE: Final = "\uffff"
"""Not a character of Unicode, so that it is in no text that pieces were learnt from."""


def write_huggingface(
    model: Transformer,
    recipe: Recipe,
    search: SearchConfig,
    subword_scores: list[tuple[str, float]],
    directory: Path,
    *,
    tokens: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> None:
    """Write configuration, weights and tokenizer into an existing directory.

    search: with the power penalty, the only one that transformers knows; see power_search.
    subword_scores: the joint vocabulary's pieces and scores in the order of their ids.
    tokens: the tokens of the target languages, whose ids follow those of the special pieces; a text
        begins with one.
    tags: words that are one piece each, wherever they stand; their ids follow those of the tokens.
    Raises ConfigError if transformers has no such architecture, MachineError if transformers is not
    installed.
    """
    check_expressible(recipe)
    transformers = _transformers()
    transformers.utils.logging.disable_progress_bar()
    longest = recipe.corpus.max_pieces + 1
    theirs = to_huggingface(model, longest=longest)
    assert search.length_penalty == "power"
    theirs.generation_config = transformers.GenerationConfig(
        num_beams=search.beam_size,
        length_penalty=search.length_penalty_alpha,
        early_stopping=search.early_stopping and search.beam_size > 1,
        max_new_tokens=length_limit(longest, search),
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    theirs.save_pretrained(directory)
    assert recipe.corpus.subword.kind != "imported"
    tokenizer = make_tokenizer(
        subword_scores,
        kind=recipe.corpus.subword.kind,
        lowercase=recipe.corpus.lowercase,
        tokens=tokens,
        tags=tags,
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL_PIECES,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    ).save_pretrained(directory)
    # Versions of transformers before 5 know the class by its older name only.
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_bytes()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")


def to_huggingface(model: Transformer, *, longest: int = 1024) -> Any:
    """Our model as a model of transformers, in eval mode; see check_expressible.

    longest: the longest source in tokens, with its end. The table of positions has room for it, and
        for at least 1024.
    """
    transformers = _transformers()
    config, vocab_size = model.config, model.embeddings.target_matrix.shape[0]
    common: dict[str, Any] = {
        **shape_keys(config),
        "max_position_embeddings": max(1024, longest),
        "scale_embedding": True,
        "tie_word_embeddings": config.tied_embeddings == "all",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }
    if config.norm == "pre":
        theirs = transformers.M2M100ForConditionalGeneration(
            transformers.M2M100Config(vocab_size=vocab_size, **common)
        )
    else:
        sizes = {"src_vocab_size": vocab_size, "tgt_vocab_size": vocab_size}
        theirs = transformers.FSMTForConditionalGeneration(
            transformers.FSMTConfig(**sizes, forced_eos_token_id=None, **common)
        )
    loaded = theirs.load_state_dict(_weights(model), strict=False)
    assert not loaded.unexpected_keys
    assert all("embed" in key or key == "lm_head.weight" for key in loaded.missing_keys)  # tied
    theirs.tie_weights()
    return theirs.eval()


def model_from_huggingface(file: Path, recipe: Recipe, manifest: Manifest) -> Transformer:
    """Our model with the weights of an export's file.

    Raises CheckpointError if the file cannot be read or is of another model; a recipe that asks
    for more than the file holds is refused before a model is built.
    """
    shapes = weight_shapes(file)
    try:
        wanted = recipe.model.num_parameters(
            source_vocab_size=manifest.source_vocab_size,
            target_vocab_size=manifest.target_vocab_size,
        )
        check_expressible(recipe)
    except (ValueError, ConfigError) as error:
        problem = f"its recipe describes no model of this kind: {error}"
        raise CheckpointError(problem, place=file.parent, remedy=_AGAIN) from error
    held = sum(map(math.prod, shapes.values()))
    if wanted > held:
        problem = f"holds {held:,} weights, but the recipe's model has {wanted:,}"
        raise CheckpointError(problem, place=file, remedy=_AGAIN)
    model = new_model(recipe, manifest)
    fill_from_huggingface(file, model)
    return model


@torch.no_grad()
def fill_from_huggingface(file: Path, model: Transformer) -> None:
    """Put the weights of an export's file into our model: `to_huggingface` the other way round.

    Raises CheckpointError if the file cannot be read or is of another model.
    """
    written = read_weights(file)
    theirs = {name: weight for name, weight in written.items() if not name.endswith(_POSITIONS)}
    ours = _weights(model)  # views of our own matrices: writing to them changes ours
    given = {ours[name].data_ptr() for name in theirs if name in ours}  # one of those that are tied
    for name in {*ours, *theirs}:
        there = theirs.get(name)
        if name not in ours or (there is None and ours[name].data_ptr() not in given):
            raise CheckpointError(f"{name} is on one side only", place=file, remedy=_AGAIN)
        if there is not None and there.shape != ours[name].shape:
            problem = (
                f"{name} has the shape {tuple(there.shape)}, "
                f"but the recipe's model has {tuple(ours[name].shape)}"
            )
            raise CheckpointError(problem, place=file, remedy=_AGAIN)
    for name, tensor in theirs.items():
        ours[name].copy_(tensor)


def check_expressible(recipe: Recipe) -> None:
    """Raises ConfigError that names the setting for which transformers has no architecture."""
    if recipe.corpus.subword.kind == "imported":
        check_imported(recipe)
        return
    model = recipe.model
    reasons = {
        "model.activation": model.activation == "swiglu",
        "model.tied_embeddings": model.norm == "pre" and model.tied_embeddings != "all",
        "corpus.subword.joint": not recipe.corpus.subword.joint,
        "model.positions": model.positions != "tensor2tensor",
        "model.first_position": model.first_position != 1,
        "model.scaled_embeddings": not model.scaled_embeddings,
        "model.output_bias": model.output_bias,
        "model.start_ids": model.start_ids != (BOS,),
    }
    refuse("transformers", reasons)


def translate_with_huggingface(
    directory: Path, texts: list[str], search: SearchConfig
) -> list[str]:
    """Translations by the export, loaded with transformers' Auto classes.

    Sentences of equal length form a batch, with the length limit of our own search.
    Raises MachineError if transformers is not installed.
    """
    transformers = _transformers()
    with _silent(transformers):
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
        model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    model.generation_config.max_length = None  # transformers would print which limit counts
    rows_by_length: dict[int, list[int]] = {}
    ids: list[list[int]] = tokenizer(texts)["input_ids"]
    for row, source in enumerate(ids):
        rows_by_length.setdefault(len(source), []).append(row)
    translations = [""] * len(texts)
    for length, rows in rows_by_length.items():
        inputs = torch.tensor([ids[row] for row in rows])
        limit = length_limit(length - 1, search)
        with torch.inference_mode():
            found = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=limit
            )
        decoded = tokenizer.batch_decode(found, skip_special_tokens=True)
        for row, text in zip(rows, decoded, strict=True):
            translations[row] = text
    return translations


@contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Inside the block transformers shows no progress bars and no advice, such as to install a
    package that is not needed."""
    settings = transformers.utils.logging
    was_shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if was_shown:
            settings.enable_progress_bar()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MachineError(
            "transformers is not installed",
            remedy="install it: pip install 'dragoman[huggingface]'",
        ) from error
    return transformers


def _weights(model: Transformer) -> dict[str, Tensor]:
    """Our weights under the names that transformers has for them."""
    embeddings = model.embeddings
    if model.config.norm == "pre":
        weights = {"model.shared.weight": embeddings.target_matrix}
    else:
        weights = {
            "model.encoder.embed_tokens.weight": embeddings.source_matrix,
            "model.decoder.embed_tokens.weight": embeddings.target_matrix,
            "model.decoder.output_projection.weight": embeddings.output_matrix,
        }
    weights |= layer_weights(model)
    return {name: tensor.detach().float().cpu() for name, tensor in weights.items()}


def make_tokenizer(
    pieces: list[tuple[str, float]],
    *,
    kind: Literal["bpe", "unigram"],
    lowercase: bool,
    tokens: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Any:
    """The tokenizer that normalises a text as we do, and gives our ids and the end of sentence.

    pieces: with their scores, in the order of their ids. tokens: the language tokens among them.
    tags: words among them at which text is cut. As with us, a text that is a tag alone has no piece
    for a space before it.
    Lower-casing goes by characters: a capital sigma at the end of a word becomes the sigma of the
    middle of a word.
    """
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    known = {piece: number for number, (piece, _) in enumerate(pieces)}
    num_special = EOS + 1 + len(tokens)
    special, others = pieces[:num_special], pieces[num_special + len(tags) :]
    unknown: set[str] = set()
    if kind == "unigram":
        # The names of special pieces in a text are not such pieces but characters: even the most
        # unlikely ones together must be likelier than the name. An unknown piece becomes less
        # likely as well, but every way to cut a text has as many of them. Characters of the names
        # that are not pieces would be less likely than the name: they become another character.
        longest = max(len(name) for name, _ in special)
        unlikely = longest * min((score for _, score in others), default=0.0) - 1.0
        given = ((name, unlikely) for name, _ in pieces[: num_special + len(tags)])
        scored = [*given, *others]
        model: Any = models.Unigram(scored, unk_id=UNK, byte_fallback=False)
        unknown = {letter for name, _ in special for letter in name} - set(known)
    else:
        # Pairs of pieces in the order in which SentencePiece joins them: the best-scored first.
        merges: list[tuple[str, str]] = []
        for piece, _ in sorted(others, key=lambda entry: -entry[1]):
            splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
            found = [(left, right) for left, right in splits if left in known and right in known]
            merges += sorted(found, key=lambda pair: (known[pair[0]], known[pair[1]]))
        model = models.BPE(known, merges, unk_token=pieces[UNK][0], fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(  # as corpus.normalize
        [
            *([normalizers.Lowercase()] if lowercase else []),
            normalizers.NFC(),
            normalizers.Replace("\ufeff", ""),
            normalizers.Replace(Regex(f"[\t\r{UNICODE_SPACES}]"), " "),
            normalizers.Prepend(" "),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r" \z"), ""),  # Strip would take control characters too
            # The tokenizer also normalises the tags that it looks for in a text.
            *(normalizers.Replace(Regex(rf"\A (?={re.escape(tag)}\z)"), "") for tag in tags),
            *(
                normalizers.Replace(Regex(_outside(tags, letter)), _NO_PIECE)
                for letter in sorted(unknown)
            ),
        ]
    )
    # The space before a text is there already; the text after a tag begins with none of its own.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {pieces[EOS][0]}", special_tokens=[(pieces[EOS][0], EOS)]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    tokenizer.add_tokens([AddedToken(tag, normalized=True) for tag in tags])
    return tokenizer


def _outside(tags: Sequence[str], letter: str) -> str:
    """A regular expression for a letter wherever it is no part of a tag."""
    inside = [
        (f"(?<={re.escape(tag[:place])})" if place else "") + re.escape(tag[place:])
        for tag in tags
        for place, one in enumerate(tag)
        if one == letter
    ]
    return (f"(?!{'|'.join(inside)})" if inside else "") + re.escape(letter)
