"""fairseq's own search over our weights; see engine.py."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import torch
from engine import (
    BOS,
    EOS,
    PAD,
    UNK,
    Task,
    Translate,
    fairseq_weights,
    in_batches,
    padded,
    run_torch,
)
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.sequence_generator import SequenceGenerator


def dictionary(size: int) -> Any:
    """A dictionary of so many pieces, with our ids of the special ones."""
    made = Dictionary()
    made.symbols = [f"piece-{number}" for number in range(size)]
    made.indices = {symbol: number for number, symbol in enumerate(made.symbols)}
    made.count = [1] * size
    made.bos_index, made.pad_index, made.unk_index, made.eos_index = BOS, PAD, UNK, EOS
    return made


def load(task: Task, words: Any) -> Any:
    config = task.shape
    options: dict[str, Any] = {"share_all_embeddings": True}
    for side in ("encoder", "decoder"):
        options |= {
            f"{side}_embed_dim": config["d_model"],
            f"{side}_ffn_embed_dim": config["d_ffn"],
            f"{side}_attention_heads": config["num_heads"],
            f"{side}_layers": config[f"{side}_layers"],
            f"{side}_normalize_before": config["norm"] == "pre",
        }
    arguments = Namespace(**options)
    base_architecture(arguments)
    words_of = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    model = TransformerModel.build_model(arguments, words_of)
    weights = {
        name.removeprefix("model."): weight for name, weight in fairseq_weights(task).items()
    }
    shared = weights.pop("shared.weight")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"):
        weights[f"{name}.weight"] = shared
    found = model.load_state_dict(weights, strict=False)
    own = ("_float_tensor", "version")
    missing = [name for name in found.missing_keys if not name.endswith(own)]
    assert not found.unexpected_keys + missing, found
    for layer in model.encoder.layers:  # fairseq 0.12.2 calls it as PyTorch 2 no longer allows
        layer.can_use_fastpath = False
    return model.eval()


def make(task: Task) -> tuple[Translate, str]:
    words = dictionary(task.given["vocab_size"])
    model = load(task, words)
    ratio, extra = task.given["length_limit"]
    generator = SequenceGenerator(
        [model],
        words,
        beam_size=task.beam,
        max_len_a=ratio,
        max_len_b=extra,
        len_penalty=task.alpha,
    )

    def search(sources: list[list[int]]) -> list[list[int]]:
        ids, lengths = padded(sources, left=True)
        sample = {"net_input": {"src_tokens": ids, "src_lengths": torch.tensor(lengths)}}
        found = generator.generate([model], sample, bos_token=BOS)
        return [hypotheses[0]["tokens"].tolist() for hypotheses in found]

    return in_batches(task, search, task.batch_size), ""


if __name__ == "__main__":
    run_torch(make)
