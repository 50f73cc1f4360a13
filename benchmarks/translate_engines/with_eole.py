"""Eole's own search over our weights; see engine.py.

Its decoder is pre-norm alone: other models are refused. Its positions begin at 0: the table is
replaced by ours.
"""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from pathlib import Path
from sys import stderr
from typing import Any

import torch
from engine import (
    EOS,
    PAD,
    Task,
    Translate,
    fairseq_weights,
    in_batches,
    padded,
    positions,
    run_torch,
)
from eole.config.run import PredictConfig
from eole.predict import build_predictor
from safetensors.torch import save_file

_POSITIONS = 5000
_LAYER = {
    "encoder": {
        "self_attn_layer_norm": "input_layernorm",
        "final_layer_norm": "post_attention_layernorm",
    },
    "decoder": {
        "self_attn_layer_norm": "input_layernorm",
        "encoder_attn_layer_norm": "precontext_layernorm",
        "encoder_attn": "context_attn",
        "final_layer_norm": "post_attention_layernorm",
    },
}
_PART = {
    "q_proj": "linear_query",
    "k_proj": "linear_keys",
    "v_proj": "linear_values",
    "out_proj": "final_linear",
    "fc1": "mlp.gate_up_proj",
    "fc2": "mlp.down_proj",
}


def renamed(name: str) -> str:
    """fairseq's name of a layer's weight -> Eole's."""
    side, _, number, *rest = name.removeprefix("model.").split(".")
    rest = [_PART.get(word, _LAYER[side].get(word, word)) for word in rest]
    return ".".join([side, "transformer_layers", number, *rest])


def weights(task: Task) -> dict[str, torch.Tensor]:
    given = fairseq_weights(task)
    found = {renamed(name): weight for name, weight in given.items() if ".layers." in name}
    for side in ("encoder", "decoder"):
        for part in ("weight", "bias"):
            found[f"{side}.layer_norm.{part}"] = given[f"model.{side}.layer_norm.{part}"]
    table = positions(_POSITIONS, task.shape["d_model"])[:, None]
    for side in ("src_emb", "tgt_emb"):
        found[f"{side}.embeddings.weight"] = given["model.shared.weight"].clone()
        found[f"{side}.pe.pe"] = table.clone()
    found["generator.weight"] = given["model.shared.weight"].clone()
    return found


def write_model(task: Task, directory: Path) -> None:
    """A model folder as Eole's own training leaves it."""
    shape = task.shape
    if shape["norm"] != "pre":
        raise SystemExit("Eole's decoder is pre-norm alone")
    directory.mkdir(exist_ok=True)
    model = {
        "architecture": "transformer", "layers": shape["encoder_layers"],
        "encoder": {"encoder_type": "transformer", "layers": shape["encoder_layers"]},
        "decoder": {"decoder_type": "transformer", "layers": shape["decoder_layers"]},
        "heads": shape["num_heads"], "hidden_size": shape["d_model"],
        "transformer_ff": shape["d_ffn"], "mlp_activation_fn": shape["activation"],
        "add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True,
        "generator_bias": False, "norm_eps": 1e-5,
        "share_decoder_embeddings": True, "share_embeddings": True,
        "embeddings": {
            "word_vec_size": shape["d_model"], "position_encoding_type": "SinusoidalConcat",
        },
    }  # fmt: skip
    vocabulary = [f"piece-{number}" for number in range(task.given["vocab_size"])]
    vocabulary[:4] = ["<pad>", "<unk>", "<s>", "</s>"]
    words = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    described = {
        "vocab.json": {
            "src": vocabulary, "tgt": vocabulary, "specials": words, "decoder_start_token": "<s>",
        },
        "config.json": {
            "model": model, "data": {}, "share_vocab": True, "src_vocab": "", "transforms": [],
            "training": {"compute_dtype": "fp32", "gpu_ranks": []},
        },
    }  # fmt: skip
    for name, content in described.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    save_file(weights(task), directory / "model.00.safetensors")


def make(task: Task) -> tuple[Translate, str]:
    directory = task.directory / "eole"
    write_model(task, directory)
    with redirect_stdout(stderr):
        predictor: Any = build_predictor(
            PredictConfig(
                model_path=[str(directory)], src="", beam_size=task.beam, length_penalty="avg",
                alpha=task.alpha, gpu_ranks=[], world_size=1, compute_dtype="fp32",
            ),
            device_id=-1,
        )  # fmt: skip
    predictor.max_length_ratio = 0

    def search(sources: list[list[int]]) -> list[list[int]]:
        ids, lengths = padded(sources)
        predictor.max_length = task.length_limit(max(lengths) - 1)
        batch = {"src": ids, "srclen": torch.tensor(lengths)}
        with redirect_stdout(stderr):
            found = predictor.predict_batch(batch, attn_debug=False)
        return [best.tolist() for best, *_ in found["predictions"]]

    return in_batches(task, search, task.batch_size), ""


assert (PAD, EOS) == (0, 3)

if __name__ == "__main__":
    run_torch(make)
