"""A COMET checkpoint of random weights, made with unbabel-comet's own classes.

    PYTHON tiny_comet.py FOLDER [--without-references]

PYTHON is one that has unbabel-comet. Its scores mean nothing; file, process and package are real.
`--without-references` makes one for quality estimation, as cometkiwi is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LETTERS = [chr(number) for number in range(33, 127)] + [*"äöüßÄÖÜ"]


def main() -> None:
    """Write encoder/, hparams.yaml and checkpoints/model.ckpt."""
    import torch
    from comet.models import (  # type: ignore[import-not-found]
        ReferencelessRegression,
        RegressionMetric,
    )
    from pytorch_lightning import Trainer  # type: ignore[import-not-found]
    from transformers import BertConfig, BertTokenizerFast  # type: ignore[attr-defined]

    folder = Path(sys.argv[1]).absolute()
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    pieces += [f"##{letter}" for letter in LETTERS]
    (encoder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    BertTokenizerFast(str(encoder / "vocab.txt")).save_pretrained(encoder)
    BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    ).save_pretrained(encoder)
    torch.manual_seed(1)
    alone = "--without-references" in sys.argv
    model = (ReferencelessRegression if alone else RegressionMetric)(
        encoder_model="BERT",
        pretrained_model=str(encoder),
        hidden_sizes=[32],
        load_pretrained_weights=False,
        local_files_only=True,
    )
    (folder / "checkpoints").mkdir()
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt")
    kind = "referenceless_regression_metric" if alone else "regression_metric"
    values = dict(model.hparams) | {"class_identifier": kind}
    (folder / "hparams.yaml").write_text(json.dumps(values), encoding="utf-8")


if __name__ == "__main__":
    main()
