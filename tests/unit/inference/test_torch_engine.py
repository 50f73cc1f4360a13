"""Translation with PyTorch: cores and the size of batches are those that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dragoman
from dragoman.cli import main
from dragoman.inference import translator
from real_text import real_lines
from small_run import small_run


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of PyTorch, and the threads that each had."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.threads: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operations += 1
        self.threads.add(torch.get_num_threads())
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.system
def test_threads_and_batch_cells_change_the_work_and_not_the_output(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in real_lines("test", "en")[:20]), "utf-8")
    words = ["translate", str(small_run().path), "--engine", "torch", "--input", str(text)]
    words += ["--set", "search.beam_size=2", "--output"]
    before = torch.get_num_threads()
    with Watch() as usual:
        assert main([*words, str(tmp_path / "usual")]) == 0
    options = [str(tmp_path / "other"), "--threads", str(before + 1), "--batch-cells", "60"]
    with Watch() as other:
        assert main([*words, *options]) == 0
    assert usual.threads == {before}
    assert other.threads == {before, before + 1}
    assert torch.get_num_threads() == before
    assert other.operations > 3 * usual.operations
    assert (tmp_path / "other").read_bytes() == (tmp_path / "usual").read_bytes()


@pytest.mark.parametrize(
    ("options", "lack"),
    [
        ({}, "CTranslate2 is not installed; install it: pip install 'dragoman[serve]'"),
        ({"engine": "torch"}, "the engine is torch; leave it out, or leave out the engine"),
        (
            {"checkpoint": ["best", "last"]},
            "CTranslate2 has no ensembles; leave it out, or name one checkpoint",
        ),
    ],
)
def test_the_obstacle_to_a_search_by_ctranslate2_is_named(
    options: dict[str, Any], lack: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(translator, "find_spec", lambda _: None)
    with pytest.raises(dragoman.ConfigError) as error:
        dragoman.Translator(small_run(), quantization="int8", **options)
    assert str(error.value) == f"quantization int8: weights in int8 need CTranslate2, but {lack}"
    if "engine" in options:
        return
    (tmp_path / "text").write_text("a house\n")
    with pytest.raises(dragoman.ConfigError) as error:
        dragoman.synthesize(small_run(), tmp_path / "text", tmp_path / "out", sample=2, **options)
    assert str(error.value) == f"sample: needs CTranslate2, but {lack}"
