"""The translations of a text by a run's model, scored against their references and kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.base.errors import CorpusError
from dragoman.base.files import file_sha256, write_whole
from dragoman.distributed.world import World
from dragoman.evaluate.metrics import Score
from dragoman.evaluate.validate import further_scores, read_lines, score_all
from dragoman.inference.translation import TranslationModel, checkpoint_path
from dragoman.recipe.recipe import load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import EventWriter, TestScored
from dragoman.train.durable import DIGESTS_FILE


def score_text(
    run: RunDirectory,
    *,
    checkpoint: str,
    source: Path | None,
    reference: Path | None,
    overrides: Sequence[str],
    world: World,
    events: EventWriter,
) -> None:
    """Translate a text and score it against its reference; without one, the run's test set.

    The translations are kept in `samples/`, the scores as events. Every rank of the world calls it.
    Raises CorpusError where the texts cannot be read or differ in length, CheckpointError where the
    checkpoint is missing, damaged or of another model.
    """
    recipe = load_recipe(run.recipe_file, overrides)
    if source is None or reference is None:
        test = run.prepared() / "test"
        source, reference, name = test / "source.txt", test / "target.txt", "test"
    else:
        # "test" is the run's own test set, whose translations are kept.
        name = source.name if source.stem == "test" else source.stem
    sources, references = read_lines(source), read_lines(reference)
    if len(sources) != len(references):  # before hours of search, not after them
        raise CorpusError(
            f"{len(sources)} lines against {len(references)}",
            place=f"{source}, {reference}",
            remedy="give files in which line N of one belongs to line N of the other",
        )
    path = checkpoint_path(run, checkpoint, recipe)  # which of them is the best may change
    model = TranslationModel.load(run, [str(path)], world)
    weights = file_sha256(path / DIGESTS_FILE)
    started = time.perf_counter()
    hypotheses = model.translate(sources, recipe.search)
    decode_s = time.perf_counter() - started
    if not world.is_main:
        return
    run.samples.mkdir(exist_ok=True)
    text = "".join(f"{line}\n" for line in hypotheses)
    write_whole(run.samples / f"{name}.{recipe.corpus.target_language}", text)
    scores = score_all(hypotheses, references, recipe.evaluate)
    settings = " ".join(overrides)
    events.write(_scored(name, weights, settings, scores, len(hypotheses), decode_s))
    for further in further_scores(name, scores):
        events.write(further)


def _scored(
    name: str,
    weights: str,
    settings: str,
    scores: Mapping[str, Score],
    pairs: int,
    decode_s: float,
) -> TestScored:
    by_words, by_characters = scores["bleu"], scores["chrf"]
    return TestScored(
        name=name,
        weights=weights,
        settings=settings,
        bleu=by_words.value,
        bleu_low=by_words.low,
        bleu_high=by_words.high,
        bleu_signature=by_words.signature,
        chrf=by_characters.value,
        chrf_low=by_characters.low,
        chrf_high=by_characters.high,
        chrf_signature=by_characters.signature,
        pairs=pairs,
        decode_s=decode_s,
    )
