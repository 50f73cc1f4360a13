"""Lines on the nodes of a Ray cluster, in units of work; the results come in order.

A unit is what is searched or scored together without Ray, so that the result and the places where
an interrupted file resumes are the same. Free of torch until a unit needs it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dragoman.base.files import open_regular
from dragoman.base.line_files import TransformLines
from dragoman.base.memory import keep_freed_memory
from dragoman.corpus.manifest import FILE_NAME as MANIFEST_FILE
from dragoman.corpus.ray_nodes import Nodes
from dragoman.corpus.subword import VOCABULARIES
from dragoman.corpus.workers import parallel_map
from dragoman.formats.bundle import is_bundle
from dragoman.formats.ctranslate2_engine import Sampling
from dragoman.formats.kinds import Quantization
from dragoman.inference.synthesize import Synthesis, SynthesisDirection
from dragoman.inference.translator import EngineName, open_translator
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.durable import DIGESTS_FILE, read_digests

Cut = Callable[[Iterable[str]], Iterator[list[str]]]
"""Lines -> the lines of each unit."""
OpenLines = Callable[[Path, Counter[str]], AbstractContextManager[TransformLines]]
"""(the folder of the models, counts to increase) -> the function that transforms lines."""


@dataclass
class UnitTask:
    """The task of a node: transform the lines of a unit, as the command would.

    files: the content of the models' files, by their names in the folder that `open_lines` gets.
    """

    open_lines: OpenLines
    files: dict[str, bytes]
    _counts: Counter[str] = field(default_factory=Counter)
    _opened: tuple[ExitStack, TransformLines] | None = None

    def __call__(self, unit: tuple[Sequence[str], int]) -> tuple[list[str], Counter[str]]:
        """The text for each line, and the counts. unit: the lines, and the number of the first."""
        if self._opened is None:
            self._opened = self._open()
        self._counts.clear()
        return [*chain.from_iterable(self._opened[1](*unit))], self._counts

    def _open(self) -> tuple[ExitStack, TransformLines]:
        opened = ExitStack()
        with tempfile.TemporaryDirectory(prefix="dragoman-") as name:
            for file, content in self.files.items():
                path = Path(name, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return opened, opened.enter_context(self.open_lines(Path(name), self._counts))


def on_nodes(task: UnitTask, nodes: Nodes, cut: Cut, counts: Counter[str]) -> TransformLines:
    """A function for `transform_file` that lets nodes do the work.

    counts: the counts of each unit are added to them.
    """

    def lines(text: Iterable[str], first: int) -> Iterator[list[str]]:
        def units() -> Iterator[tuple[list[str], int]]:
            number = first
            for unit in cut(text):
                yield unit, number
                number += len(unit)

        for written, more in parallel_map(task, units(), workers=nodes):
            counts.update(more)
            yield written

    return lines


@contextmanager
def open_synthesis(
    folder: Path,
    counts: Counter[str],
    *,
    checkpoints: Sequence[str],
    overrides: Sequence[str],
    engine: EngineName,
    threads: int,
    quantization: Quantization | None,
    sampling: Sampling | None,
    target: str,
    direction: SynthesisDirection,
    n_best: int,
) -> Iterator[TransformLines]:
    """The function of `synthesize`, whose parameters these are.

    checkpoints: folders in that of the model; none for an export.
    """
    with open_translator(
        folder,
        checkpoints=[str(folder / name) for name in checkpoints] or ["best"],
        overrides=overrides,
        engine=engine,
        threads=threads,
        quantization=quantization,
        sampling=sampling,
        target=target,
    ) as opened:
        yield Synthesis(opened, direction, n_best, counts).lines


@contextmanager
def open_scorer(
    folder: Path,
    counts: Counter[str],
    *,
    models: Sequence[Sequence[str]],
    columns: int,
    tokens: Sequence[str],
) -> Iterator[TransformLines]:
    """The function of `score`, with PyTorch on one core.

    models: the folder of each model; behind it that of the checkpoint in it, none for an export.
    columns: the columns in each line of the pairs. tokens: the token before the texts of each
    model.
    """
    import torch

    from dragoman.distributed.world import join_world
    from dragoman.formats.load import load_translation_model
    from dragoman.inference.scoring import PairScorer, by_models

    torch.set_num_threads(1)
    keep_freed_memory()
    with join_world() as world:
        opened = [
            load_translation_model(
                folder / model, [str(folder / model / name) for name in names] or ["best"], world
            )
            for model, *names in models
        ]
        yield PairScorer(by_models(opened, tokens), columns=columns, counts=counts).lines


def model_files(
    path: Path, checkpoints: Sequence[str], *, within: str = ""
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of a run or an export that its translations depend on, by their names on a node.

    within: the folder of all these names.
    Returns the names of the checkpoints' folders, too; none for an export.
    Raises CheckpointError.
    """
    folders = []
    if is_bundle(path):
        files = {name: path / name for name in (*read_digests(path), DIGESTS_FILE)}
    else:
        from dragoman.formats.trained_model import checkpoint_path
        from dragoman.model.config import CONFIG_FILE
        from dragoman.model.weights_form import WEIGHTS_FILE

        run = RunDirectory.open(path)
        files = {name: path / name for name in ("recipe.toml", MANIFEST_FILE, *VOCABULARIES)}
        for number, which in enumerate(checkpoints):
            folder = checkpoint_path(run, which, run.recipe())
            folders.append(f"checkpoint-{number}")
            for name in (WEIGHTS_FILE, CONFIG_FILE, DIGESTS_FILE):
                files[f"{folders[-1]}/{name}"] = folder / name
    contents = {}
    for name, file in files.items():
        with open_regular(file) as opened:
            contents[f"{within}{name}"] = opened.read()
    return contents, tuple(folders)
