"""Real text and a recipe of a model so small that a budget of minutes trains it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from real_text import Split, write_real_text

_RECIPE: Final = """
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid = [{source = "valid.en", target = "valid.de"}]
test = [{source = "test.en", target = "test.de"}]
max_pieces = 60
[data]
batch_tokens = 512
[model]
d_model = 48
num_heads = 4
d_ffn = 128
encoder_layers = 1
decoder_layers = 1
"""
_PAIRS: Final[tuple[tuple[Split, int], ...]] = (("train", 2000), ("valid", 150), ("test", 100))


def write_budget_text(folder: Path, name: str) -> None:
    """Write NAME.toml and the text of its three splits."""
    for split, pairs in _PAIRS:
        write_real_text(folder, split, pairs)
    (folder / f"{name}.toml").write_text(f'name = "{name}"\n{_RECIPE}')
