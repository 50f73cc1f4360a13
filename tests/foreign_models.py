"""Small models of other people's kinds, in Hugging Face form: random weights, real tokenizers."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import torch

from real_text import real_lines

NUM_SENTENCES = 3000
SHAPE = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
}  # fmt: skip
OPUS = {"activation_function": "swish", "scale_embedding": True}
"""The settings of all OPUS-MT models of the first series."""
MARIAN_VARIANTS: dict[str, dict[str, Any]] = {
    "opus": OPUS,
    "relu and deep encoder": {
        "activation_function": "relu", "scale_embedding": True, "encoder_layers": 3,
        "decoder_layers": 1,
    },
    "gelu without scale": {},
    "separate vocabularies": OPUS | {"share_encoder_decoder_embeddings": False},
    "separate, output alone": OPUS
    | {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "shared, output alone": OPUS | {"tie_word_embeddings": False},
    "starts with the end": OPUS | {"decoder_start_token_id": 0},
    "silu, one head": {
        "activation_function": "silu", "encoder_attention_heads": 1, "decoder_attention_heads": 1,
    },
}  # fmt: skip
"""By name, what of MarianConfig is other than in SHAPE."""


@cache
def trained_spm(lines: tuple[str, ...], vocab_size: int, kind: str = "unigram") -> bytes:
    """A SentencePiece model with the normalisation that published models have (nmt_nfkc)."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocab_size,
        model_type=kind,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def listed_pieces(model: bytes) -> list[str]:
    """The pieces of a SentencePiece model but its special ones."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    return [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]


def write_marian_tokenizer(
    folder: Path,
    sides: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    vocab_size: int = 500,
    separate: bool = False,
    codes: tuple[str, ...] = (),
) -> tuple[int, int]:
    """Write source.spm, target.spm and lists of pieces; returns the sizes of both vocabularies.

    sides: lines of the source and of the target. Some pieces are left out of the list, which
    published ones do as well.
    """
    from transformers import MarianTokenizer

    models = [trained_spm(lines, vocab_size) for lines in sides]
    for name, model in zip(("source", "target"), models, strict=True):
        (folder / f"{name}.spm").write_bytes(model)
    pieces = [listed_pieces(model)[:-7] for model in models]
    rows = [[*pieces[0], *pieces[1]]] if not separate else pieces
    lists = []
    for row in rows:
        names = list(dict.fromkeys(["</s>", "<unk>", *row, *codes, "<pad>"]))
        lists.append({name: number for number, name in enumerate(names)})
    if separate:  # the special ids are one and the same in both
        short, long = sorted(lists, key=len)
        short["<pad>"] = long["<pad>"]
    for name, one in zip(("vocab", "target_vocab"), lists, strict=False):
        (folder / f"{name}.json").write_text(json.dumps(one), encoding="utf-8")
    tokenizer = MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"),
        target_vocab_file=str(folder / "target_vocab.json") if separate else None,
        separate_vocabs=separate, source_lang="en", target_lang="de",
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    sizes = [max(one.values()) + 1 for one in lists]
    return sizes[0], sizes[-1]


def marian_folder(
    folder: Path,
    options: dict[str, Any] | None = None,
    *,
    biased: bool = True,
    loud: bool = False,
    codes: tuple[str, ...] = (),
) -> Path:
    """A MarianMT model of random weights, whose translations end now and then.

    options: of MarianConfig, over SHAPE. biased: whether final_logits_bias has values.
    loud: whether weights are so large that translations of different texts differ.
    """
    from transformers import MarianConfig, MarianMTModel

    options = OPUS if options is None else options
    folder.mkdir(parents=True, exist_ok=True)
    sides = (
        tuple(real_lines("train", "en")[:NUM_SENTENCES]),
        tuple(real_lines("train", "de")[:NUM_SENTENCES]),
    )
    separate = options.get("share_encoder_decoder_embeddings") is False
    source_size, target_size = write_marian_tokenizer(folder, sides, separate=separate, codes=codes)
    padding = target_size - 1
    torch.manual_seed(5)
    settings = {
        **SHAPE, "vocab_size": source_size, "decoder_vocab_size": target_size,
        "pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": 0,
        "forced_eos_token_id": 0,
    } | options  # fmt: skip
    model = MarianMTModel(MarianConfig(**settings))
    randomize(model, size=1.0 if loud else 0.15)
    if biased:
        with torch.no_grad():
            model.final_logits_bias.normal_(std=0.3)
            model.final_logits_bias[:, padding] = 0.0
            model.final_logits_bias[:, 0] = 2.5  # some translations end
    for name, value in {  # the keys that published models have
        "num_beams": 4, "max_length": 48, "bad_words_ids": [[padding]], "renormalize_logits": True,
    }.items():  # fmt: skip
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def randomize(model: Any, *, size: float) -> None:
    """Larger weights than transformers draws; those of padding stay 0, as published."""
    for name, weight in model.named_parameters():
        if "embed_positions" in name:
            continue
        embedding = any(word in name for word in ("embed", "shared", "lm_head"))
        # Biases and the scales of norms, too: what is left out must be seen.
        added = 0.3 if weight.dim() == 1 else 0.15 if embedding else size
        weight.add_(torch.randn_like(weight) * added)
    inner = model.model
    for matrix in (inner.encoder.embed_tokens, inner.decoder.embed_tokens, model.lm_head):
        matrix.weight[model.config.pad_token_id] = 0.0


def m2m100_folder(
    folder: Path, *, nllb: bool = False, options: dict[str, Any] | None = None
) -> tuple[Path, Any]:
    """An M2M100 or NLLB model of random weights, and transformers' own tokenizer of it."""
    from transformers import (
        M2M100Config,
        M2M100ForConditionalGeneration,
        M2M100Tokenizer,
        NllbTokenizer,
    )

    folder.mkdir(parents=True)
    lines = [*real_lines("train", "en")[:NUM_SENTENCES], *real_lines("train", "de")[:NUM_SENTENCES]]
    model = trained_spm(tuple(lines), 800, "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    if nllb:
        tokenizer = NllbTokenizer.from_pretrained(
            folder, src_lang="eng_Latn", tgt_lang="deu_Latn",
            additional_special_tokens=["deu_Latn", "eng_Latn", "fra_Latn"],
        )  # fmt: skip
        vocab_size = len(tokenizer) + 2  # rows that nobody uses, as published ones have
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>", *listed_pieces(model)[:-7]]
        listed = {name: number for number, name in enumerate(names)}
        (folder / "vocab.json").write_text(json.dumps(listed), encoding="utf-8")
        tokenizer = M2M100Tokenizer(
            str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"),
            src_lang="en", tgt_lang="de",
        )  # fmt: skip
        vocab_size = len(listed) + 100 + 8
    tokenizer.save_pretrained(folder)
    torch.manual_seed(4)
    made = M2M100ForConditionalGeneration(
        M2M100Config(**({**SHAPE, "vocab_size": vocab_size} | (options or {})))
    )
    randomize(made, size=0.4)
    made.generation_config.num_beams = 4
    made.generation_config.max_length = 40
    made.save_pretrained(folder)
    return folder, tokenizer
