"""JoeyNMT's own search over our weights; see engine.py.

Its positions begin at 0 and interleave sines and cosines: the table is replaced by ours. Its length
penalty is that of Wu et al. 2016 and no other, so that some translations differ.
"""

from __future__ import annotations

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
    positions,
    run_torch,
)
from joeynmt.model import build_model
from joeynmt.search import beam_search, greedy
from joeynmt.vocabulary import Vocabulary

_NAMES = {
    "encoder": [
        ("self_attn.", "src_src_att."),
        ("self_attn_layer_norm", "layer_norm"),
        ("final_layer_norm", "feed_forward.layer_norm"),
    ],
    "decoder": [
        ("encoder_attn.", "src_trg_att."),
        ("encoder_attn_layer_norm", "dec_layer_norm"),
        ("self_attn.", "trg_trg_att."),
        ("self_attn_layer_norm", "x_layer_norm"),
        ("final_layer_norm", "feed_forward.layer_norm"),
    ],
}
_PARTS = [
    ("q_proj", "q_layer"),
    ("k_proj", "k_layer"),
    ("v_proj", "v_layer"),
    ("out_proj", "output_layer"),
    ("fc1", "feed_forward.pwff_layer.0"),
    ("fc2", "feed_forward.pwff_layer.3"),
]


def renamed(name: str) -> str:
    """fairseq's name of a layer's weight -> JoeyNMT's."""
    side, _, number, rest = name.removeprefix("model.").split(".", 3)
    for old, new in [*_NAMES[side], *_PARTS]:
        if rest.startswith(old) or (old in {part for part, _ in _PARTS} and f".{old}." in rest):
            rest = rest.replace(old, new, 1)
    return f"{side}.layers.{number}.{rest}"


def load(task: Task) -> Any:
    config = task.shape
    words = Vocabulary.__new__(Vocabulary)
    words.specials, words.lang_tags = [], []
    words._itos = ["<pad>", "<unk>", "<s>", "</s>"]
    words._itos += [f"piece-{number}" for number in range(4, task.given["vocab_size"])]
    words._stoi = {token: number for number, token in enumerate(words._itos)}
    words.pad_index, words.unk_index, words.bos_index, words.eos_index = PAD, UNK, BOS, EOS
    words.sep_index = None
    side = {
        "type": "transformer", "hidden_size": config["d_model"], "ff_size": config["d_ffn"],
        "num_heads": config["num_heads"], "dropout": 0.0, "layer_norm": config["norm"],
        "embeddings": {"embedding_dim": config["d_model"], "scale": True},
    }  # fmt: skip
    model = build_model(
        {
            "encoder": side | {"num_layers": config["encoder_layers"]},
            "decoder": side | {"num_layers": config["decoder_layers"]},
            "tied_embeddings": True,
            "tied_softmax": True,
        },
        words,
        words,
    )
    given = fairseq_weights(task)
    weights = {renamed(name): weight for name, weight in given.items() if ".layers." in name}
    for stack in ("encoder", "decoder"):
        for part in ("weight", "bias"):
            name = f"model.{stack}.layer_norm.{part}"
            if name in given:
                weights[f"{stack}.layer_norm.{part}"] = given[name]
    matrix = given["model.shared.weight"]
    for name in ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"):
        weights[name] = matrix
    table = positions(5000, config["d_model"])[None]
    weights["encoder.pe.pe"] = weights["decoder.pe.pe"] = table
    model.load_state_dict(weights)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5
    return model.eval()


def make(task: Task) -> tuple[Translate, str]:
    model = load(task)

    def search(sources: list[list[int]]) -> list[list[int]]:
        ids, lengths = padded(sources)
        mask = (ids != PAD).unsqueeze(1)
        encoded, hidden, _, _ = model(
            return_type="encode", src=ids, src_length=torch.tensor(lengths), src_mask=mask
        )
        options = {
            "src_mask": mask,
            "max_output_length": task.length_limit(max(lengths) - 1),
            "model": model,
            "encoder_output": encoded,
            "encoder_hidden": hidden,
            "generate_unk": True,
        }
        if task.beam == 1:
            found, _, _ = greedy(**options)
        else:
            found, _, _ = beam_search(**options, beam_size=task.beam, alpha=task.alpha)
        return [[int(piece) for piece in row] for row in found]

    return in_batches(task, search, task.batch_size), ""


if __name__ == "__main__":
    run_torch(make)
