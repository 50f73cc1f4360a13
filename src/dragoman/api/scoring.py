"""Scores of pairs of sentences. Free of torch until a model needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dragoman.api.checks import checked, path_of
from dragoman.api.kinds import CheckpointChoice, ModelLike, Option, RayAddress, Target
from dragoman.api.synthetic import place_of_pairs, text_of
from dragoman.base.errors import ConfigError

if TYPE_CHECKING:
    from dragoman.base.line_files import TransformLines
    from dragoman.corpus.directions import Direction
    from dragoman.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Scored:
    """A file of pairs with their scores.

    unscored: pairs with an empty or overlong side. malformed: lines that are no pairs.
    """

    output: Path
    pairs: int
    unscored: int
    malformed: int
    resumed_after: int


@checked
def score(
    model: ModelLike,
    pairs: str | Path,
    output: Annotated[str | Path, Option("--output", "FILE")],
    *,
    reverse: ModelLike | None = None,
    comet: Annotated[str | Path | None, Option(metavar="PYTHON")] = None,
    target_language: Target = "",
    checkpoint: CheckpointChoice = "best",
    ray: RayAddress = None,
    progress: bool = False,
) -> Scored:
    """Add the model's cross-entropy to each pair of sentences.

    It is in nats per target token. The same command resumes after an interruption.

    model: a run or an export; with comet, a checkpoint of COMET.
    pairs: a file of source TAB target; further columns are kept. The first pair sets the number of
        columns.
    output: a new file: the lines of the pairs with columns of scores.
    reverse: a model of the opposite direction. Then there are three columns: cross-entropy of the
        target, of the source, and dual conditional cross-entropy (Junczys-Dowmunt 2018), which is
        low for good pairs.
    comet: a Python that has unbabel-comet. Then the model is a checkpoint that needs no references,
        such as wmt22-cometkiwi-da (Rei et al. 2022), and the score its rating of the pair, mostly 0
        to 1, high for good pairs.
    target_language: the language of the targets, if the model translates into several.
    checkpoint: which weights of each run to use: best, last, a step or a folder.
    ray, progress: as for `synthesize`.
    A pair has no score if a side is empty or longer than the model's max_pieces; neither has a
    line without a tab, or with more columns than the first pair.
    Raises ConfigError if the output has text already; CorpusError if over 1% of the lines are no
    pairs; CheckpointError and MachineError; finished lines are kept.
    """
    from dragoman.api.progress import lines_shown
    from dragoman.base.line_files import input_lines, transform_file
    from dragoman.base.memory import keep_freed_memory, memory_errors_named
    from dragoman.inference.scoring import columns_of

    source = text_of(Path(pairs))
    place = place_of_pairs(Path(output), source)
    paths = [path_of(one) for one in (model, reverse) if one is not None]
    with input_lines(source) as reader:
        columns = columns_of(reader.text(), place=str(source))
    counts: Counter[str] = Counter()
    if comet is None:
        scorer = _model_scorer(paths, str(checkpoint), target_language, ray, columns, counts)
    else:
        _refuse_beside_comet(reverse=reverse, target_language=target_language, ray=ray)
        scorer = _comet_scorer(paths[0], Path(comet), columns, counts)
    keep_freed_memory()
    with (
        memory_errors_named("end other programs"),
        scorer as (lines, identity),
        lines_shown(progress) as show,
    ):
        resumed_after = transform_file(
            source, place, lines, identity=identity, tally=counts, progress=show
        )
    return Scored(place, counts["pairs"], counts["unscored"], counts["malformed"], resumed_after)


def _refuse_beside_comet(**given: object) -> None:
    for name, value in given.items():
        if value:
            raise ConfigError("has no effect on COMET", place=name, remedy="leave it out")


@contextmanager
def _comet_scorer(
    checkpoint: Path, python: Path, columns: int, counts: Counter[str]
) -> Iterator[tuple[TransformLines, dict[str, Any]]]:
    """The function that adds COMET's ratings, and what identifies them."""
    from dragoman.evaluation.comet import open_comet
    from dragoman.inference.scoring import PairScorer, by_comet

    with open_comet(python, checkpoint) as comet:
        scorer = PairScorer(by_comet(comet), columns=columns, counts=counts)
        yield scorer.lines, {"rater": comet.signature}


@contextmanager
def _model_scorer(
    paths: Sequence[Path],
    checkpoint: str,
    target_language: str,
    ray: str | None,
    columns: int,
    counts: Counter[str],
) -> Iterator[tuple[TransformLines, dict[str, Any]]]:
    """The function that adds cross-entropies by one model or two, and what identifies them."""
    from dragoman.corpus.directions import language_token
    from dragoman.corpus.ray_nodes import Nodes, join_ray
    from dragoman.distributed.world import join_world
    from dragoman.formats.bundle import refuse_checkpoint_of_export
    from dragoman.formats.load import load_translation_model
    from dragoman.inference.ray_lines import UnitTask, model_files, on_nodes, open_scorer
    from dragoman.inference.scoring import PairScorer, by_models, groups_of_pairs
    from dragoman.training.checkpoint import is_choice

    if len(paths) > 1 and not is_choice(checkpoint) and Path(checkpoint).is_dir():
        raise ConfigError(
            "a checkpoint directory belongs to one model, but two models are given",
            place=f"checkpoint {checkpoint}",
            remedy="give best, last or a step: it is looked up in both runs",
        )
    for path in paths:
        refuse_checkpoint_of_export(path, [checkpoint])
    with join_world() as world, nullcontext() if ray is None else join_ray(ray):
        models = [load_translation_model(path, [checkpoint], world) for path in paths]
        recipes = [_recipe(path) for path in paths]
        direction = _direction(recipes, target_language, place=paths[-1])
        tokens = [language_token(direction.target) if recipes[0].corpus.language_tokens else ""]
        if len(recipes) == 2:
            several = recipes[1].corpus.language_tokens
            tokens.append(language_token(direction.source) if several else "")
        lines: TransformLines = PairScorer(
            by_models(models, tokens), columns=columns, counts=counts
        ).lines
        if ray is not None:
            files: dict[str, bytes] = {}
            folders = []
            for number, path in enumerate(paths):
                more, within = model_files(path, [checkpoint], within=f"model-{number}/")
                files |= more
                folders.append((f"model-{number}", *within))
            open_lines = partial(open_scorer, models=folders, columns=columns, tokens=tokens)
            nodes = Nodes(("sentencepiece", "torch"))
            lines = on_nodes(UnitTask(open_lines, files), nodes, groups_of_pairs, counts)
        identity: dict[str, Any] = {"weights": [weights_digest(path, checkpoint) for path in paths]}
        yield lines, identity | ({"tokens": tokens} if any(tokens) else {})


def _recipe(path: Path) -> Recipe:
    from dragoman.formats.bundle import Bundle, is_bundle
    from dragoman.recipe.run_directory import RunDirectory

    return Bundle.open(path).recipe if is_bundle(path) else RunDirectory.open(path).recipe()


def weights_digest(path: Path, checkpoint: str) -> str:
    """A digest of the weights that are used."""
    from dragoman.base.files import file_sha256
    from dragoman.formats.bundle import is_bundle
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.training.durable import DIGESTS_FILE

    if not is_bundle(path):
        from dragoman.formats.trained_model import checkpoint_path

        path = checkpoint_path(RunDirectory.open(path), checkpoint, _recipe(path))
    return file_sha256(path / DIGESTS_FILE)


def _direction(recipes: Sequence[Recipe], target: str, *, place: Path) -> Direction:
    """The direction of the pairs: that of the model into this language, or its only one.

    recipes: the recipe of the model and, if there is a reverse model, that of the reverse model,
        which must have the opposite direction.
    place: the directory of the last model, for errors.
    Raises ConfigError if the model has no such target, or if the reverse model has none or several
    of the opposite directions.
    """
    from dragoman.corpus.directions import Direction, listed, same_direction, target_of

    corpus = recipes[0].corpus
    into = target_of(target, corpus.directions)
    found = [one for one in corpus.directions if one.target == into]
    if len(recipes) == 1:
        return found[0]
    back = recipes[1].corpus.directions
    both = [one for one in found if any(same_direction(one[::-1], other) for other in back)]
    if not both:
        expected = [Direction(one.target, one.source) for one in found]
        raise ConfigError(
            f"translates {listed(back)}, not {listed(expected)}",
            place=place,
            remedy="name a model of the opposite direction",
        )
    if len(both) > 1:
        raise ConfigError(
            f"translates back into several languages: {', '.join(one.source for one in both)}",
            place=place,
            remedy="name a reverse model whose only target language is the source of the pairs",
        )
    return both[0]
