"""Pairs made from monolingual text. Free of torch until a model needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from dragoman.api.checks import checked, checkpoints_of, path_of
from dragoman.api.kinds import (
    Checkpoints,
    Count,
    EngineName,
    ModelLike,
    Option,
    Overrides,
    RayAddress,
    Target,
)
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.formats.kinds import RunQuantization

if TYPE_CHECKING:
    from dragoman.base.line_files import TransformLines
    from dragoman.formats.ctranslate2_engine import Sampling
    from dragoman.recipe.recipe import Recipe

_IDENTIFIED_BYTES: Final = 4000
_LEAST_IDENTIFIED: Final = 200
"""The least characters of a text whose language is identified; shorter ones are uncertain."""
_CERTAIN: Final = 0.999


@dataclass(frozen=True, slots=True)
class Synthesized:
    """The result of `synthesize`.

    output: a file of `source TAB target`.
    dropped: the number of dropped translations, by reason.
    resumed_after: lines that an earlier, interrupted attempt had finished.
    """

    output: Path
    lines: int
    pairs: int
    dropped: Mapping[str, int]
    resumed_after: int


@checked
def synthesize(
    model: ModelLike,
    text: Annotated[str | Path, Option("--input", "FILE")],
    output: Annotated[str | Path, Option("--output", "FILE")],
    *,
    direction: Literal["back", "forward"] = "back",
    target_language: Target = "",
    any_language: bool = False,
    checkpoint: Checkpoints = "best",
    n_best: Count = 1,
    sample: Annotated[int | Literal["all"] | None, Option(metavar="K|all")] = None,
    temperature: float | None = None,
    quantization: RunQuantization | None = None,
    threads: Count | None = None,
    overrides: Overrides = (),
    ray: RayAddress = None,
    progress: bool = False,
) -> Synthesized:
    """Translate monolingual text into pairs to train on.

    The pairs are for back-translation or distillation. The same command resumes after an
    interruption.

    model: a run or an export.
    text: a file, one sentence per line.
    output: a new file of pairs, source TAB target.
    direction: back: the translation is the source (back-translation), for a model of the opposite
        direction. forward: it is the target (distillation).
    target_language: the language to translate into, if the model has several.
    any_language: take the text even if it seems to be in a language that the model does not
        translate.
    checkpoint: best, last, the number of a step, or a folder (write ./best if the folder has that
        name); several, joined by commas, are an ensemble. The folder of another run with the same
        vocabulary and shape stands for its best checkpoint.
    n_best: translations of each line; each translation makes a pair.
    sample: draw each piece from the K likeliest, or from all, instead of searching, which suits
        back-translation of much text.
    temperature: with sample, above 1 flattens the probabilities and below 1 sharpens them; None: 1.
    quantization: the type of the weights with CTranslate2.
    threads: cores, with Ray those of each unit of work; None: all, with Ray one.
    overrides: a setting to change in the recipe's section search, such as search.beam_size=1; may
        be given again.
    ray: let the nodes of a Ray cluster do the work: HOST:PORT of its head, or auto for the cluster
        of this machine.
    progress: show the progress of the work.
    Raises ConfigError if the output has text already; CorpusError, CheckpointError and
    MachineError; finished lines are kept.
    """
    from dragoman.api.progress import lines_shown
    from dragoman.base.line_files import transform_file
    from dragoman.base.memory import memory_errors_named
    from dragoman.corpus.ray_nodes import Nodes, join_ray
    from dragoman.inference.ray_lines import UnitTask, model_files, on_nodes, open_synthesis
    from dragoman.inference.synthesize import REASONS, Synthesis
    from dragoman.inference.translator import groups_of, open_translator
    from dragoman.model.config import check_beam_holds
    from dragoman.recipe.recipe import check_sections

    check_sections(overrides, ("search",))
    sampling = _sampling(sample, temperature, n_best, overrides)
    if sampling is not None:
        overrides = [*overrides, "search.beam_size=1", "search.candidates=1"]
    source = text_of(Path(text))
    place = place_of_pairs(Path(output), source)
    path = path_of(model)
    checkpoints = checkpoints_of(checkpoint)
    engine: EngineName = "auto"
    if ray is not None:  # the cores of the nodes do the work, whatever this machine has
        engine = "ctranslate2" if len(checkpoints) == 1 else "torch"
    counts: Counter[str] = Counter()
    with (
        memory_errors_named("lower search.beam_size"),
        open_translator(
            path,
            checkpoints=checkpoints,
            overrides=overrides,
            engine=engine,
            threads=threads,
            quantization=quantization,
            sampling=sampling,
            target=target_language,
        ) as opened,
        nullcontext() if ray is None else join_ray(ray),
        lines_shown(progress) as show,
    ):
        check_beam_holds(n_best, opened.recipe.search)
        if not any_language:
            _check_language(source, opened.recipe, target_language)
        pieces = opened.translator.subwords[1].vocab_size
        if sampling is not None and sampling.top_k > pieces:
            raise ConfigError(
                f"{sampling.top_k} is more than the {pieces} pieces of the vocabulary",
                place="sample",
                remedy="give fewer, or all",
            )
        drawn = (sampling.top_k, sampling.temperature) if sampling else None
        lines: TransformLines = Synthesis(opened, direction, n_best, counts).lines
        if ray is not None:
            files, folders = model_files(path, checkpoints)
            nodes = Nodes(("sentencepiece", engine), cores=threads or 1)
            open_lines = partial(
                open_synthesis,
                checkpoints=folders,
                overrides=overrides,
                engine=engine,
                threads=nodes.cores,
                quantization=quantization,
                sampling=sampling,
                target=target_language,
                direction=direction,
                n_best=n_best,
            )
            lines = on_nodes(UnitTask(open_lines, files), nodes, groups_of, counts)
        # Which engine it is depends on the machine and on Ray.
        arithmetic = opened.identity["arithmetic"]
        resumed_after = transform_file(
            source,
            place,
            lines,
            identity={
                **opened.identity,
                "arithmetic": "float32" if arithmetic == "torch" else arithmetic,
                "direction": direction,
                "n_best": n_best,
                "sampling": drawn,
            },
            engine="PyTorch" if arithmetic == "torch" else "CTranslate2",
            tally=counts,
            progress=show,
        )
    dropped = {reason: counts[reason] for reason in REASONS if counts[reason]}
    return Synthesized(place, counts["lines"], counts["pairs"], dropped, resumed_after)


def _sampling(
    sample: int | str | None, temperature: float | None, n_best: int, overrides: Sequence[str]
) -> Sampling | None:
    """How pieces are drawn; None: they are searched for. Raises ConfigError."""
    from dragoman.formats.ctranslate2_engine import Sampling

    if sample is None:
        if temperature is not None:
            raise ConfigError(
                "has no effect on a search", place="temperature", remedy='set sample to "all"'
            )
        return None
    if n_best > 1:
        raise ConfigError(
            "sampling gives one translation per line", place="n_best", remedy="leave one out"
        )
    for override in overrides:
        key, _, value = override.partition("=")
        if key.strip() in ("search.beam_size", "search.candidates") and value.strip() != "1":
            raise ConfigError(
                "has no effect: sampling draws one translation without a beam",
                place=override,
                remedy="leave it or sample out",
            )
    return Sampling(0 if sample == "all" else int(sample), temperature or 1.0)


def _check_language(text: Path, recipe: Recipe, target: str) -> None:
    """Raises ConfigError if a text is in a language that the model does not translate.

    target: the language to translate into; only the directions into it count. "": all count.
    Nothing is checked without py3langid, if it does not know a source language, or if the text is
    short.
    """
    from importlib.util import find_spec

    from dragoman.base.languages import same_language
    from dragoman.corpus.directions import listed
    from dragoman.corpus.language import NO_LANGUAGE, identify_language, is_known

    directions = [
        one for one in recipe.corpus.directions if not target or same_language(one.target, target)
    ]
    sources = {one.source for one in directions}
    if find_spec("py3langid") is None or not text.is_file() or not all(map(is_known, sources)):
        return
    try:
        with text.open("rb") as file:
            head = file.read(_IDENTIFIED_BYTES).decode(errors="ignore")
    except OSError:  # which is an error of its own, later
        return
    if len(head) < _LEAST_IDENTIFIED or "\0" in head:
        return
    language, probability = identify_language(head, sources)
    if probability > _CERTAIN and language not in (*sources, NO_LANGUAGE):
        raise ConfigError(
            f"seems to be in {language}, but the model translates {listed(directions)}",
            place=text,
            remedy="name another text or a model of that language, "
            "or allow any language if the guess is wrong",
        )


def text_of(path: Path) -> Path:
    """The path itself; raises CorpusError if no file is there or it is empty."""
    if not path.exists():
        raise CorpusError("no such file", place=path, remedy="check its name")
    if path.is_file() and not path.stat().st_size:
        raise CorpusError("is empty", place=path, remedy="give one sentence per line")
    return path


def place_of_pairs(output: Path, source: Path) -> Path:
    """The path of the output; raises ConfigError if a file cannot be written there, or if there is
    one with text: it may be the work of a night.
    """
    from dragoman.base.line_files import is_device, output_place

    if is_device(output):
        raise ConfigError(
            "is a device or a pipe, so an interrupted command could not be resumed",
            place=output,
            remedy="name a file as the output",
        )
    place = output_place(output, source)
    if place.exists() and place.stat().st_size:
        raise ConfigError(
            "exists already", place=output, remedy="name another file as the output, or remove it"
        )
    return place
