"""The scores of a text: of a run's checkpoint, which keeps them, and of an export."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dragoman.base.errors import ConfigError
from dragoman.base.files import file_sha256, write_whole
from dragoman.corpus.directions import Direction, target_of, token_for, with_token
from dragoman.corpus.split import read_directions
from dragoman.distributed.world import World
from dragoman.evaluation.directions import (
    bleu_and_chrf,
    in_mean,
    mean_scores,
    rows_by_direction,
    score_directions,
)
from dragoman.evaluation.metrics import score_all
from dragoman.evaluation.validate import further_scores, read_pair, text_name
from dragoman.formats.trained_model import TranslationModel, checkpoint_path
from dragoman.inference.translator import open_translator
from dragoman.recipe.recipe import check_sections, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import EventListener, EventWriter, Recorder, TestScored
from dragoman.training.durable import DIGESTS_FILE


def score_text(
    run: RunDirectory,
    *,
    checkpoint: str,
    source: Path | None,
    reference: Path | None,
    target: str = "",
    languages: str = "",
    overrides: Sequence[str],
    world: World,
    events: Recorder,
) -> None:
    """Translate a text and score it against its reference; without both, the run's test set.

    target: the language of the reference, if the model translates into several.
    languages: the right languages of a run that was trained under wrong ones, such as "en-fr".
    The translations are kept in `samples/`, the scores as events; for a test set of several
    directions, the scores of each and their mean. Every rank of the world calls it.
    Raises CorpusError if the texts cannot be read or differ in length, CheckpointError if the
    checkpoint is missing, damaged or of another model, ConfigError if the model has no such target.
    """
    recorded = load_recipe(run.recipe_file, overrides, is_recorded=True)
    recipe = recorded.with_languages(languages)
    corpus = recipe.corpus
    directions: list[Direction] = []
    token = ""
    given = source
    if source is None or reference is None:
        test = run.prepared() / "test"
        source, reference, name = test / "source.txt", test / "target.txt", "test"
        directions = read_directions(test)
    else:
        token = token_for(target, corpus.directions, corpus.language_tokens)
        name = text_name(source, corpus.directions)
    sources, references = read_pair(source, reference)  # before hours of search, not after them
    path = checkpoint_path(run, checkpoint, recorded)  # once: another may become the best
    model = TranslationModel.load(run, [str(path)], world)
    weights = file_sha256(path / DIGESTS_FILE)
    started = time.perf_counter()
    hypotheses = model.translate([with_token(token, line) for line in sources], recipe.search)
    decode_s = time.perf_counter() - started
    if not world.is_main:
        return
    run.samples.mkdir(exist_ok=True)
    by_direction = rows_by_direction(directions)
    for direction, rows in by_direction.items():
        text = "".join(f"{hypotheses[row]}\n" for row in rows)
        write_whole(run.samples / f"{name}.{direction}", text)
    targets = dict.fromkeys(one.target for one in corpus.directions)
    language = target_of(target, corpus.directions) if target else next(iter(targets))
    if not directions:
        text = "".join(f"{line}\n" for line in hypotheses)
        write_whole(run.samples / f"{name}.{language}", text)
    scored = score_directions(
        hypotheses, references, by_direction, recipe.scoring, trained=corpus.train_directions
    )
    scores = mean_scores(scored) or score_all(
        hypotheses, references, recipe.scoring, language=language
    )
    events.write(
        TestScored(
            name=name,
            weights=weights,
            settings=" ".join(overrides),
            **bleu_and_chrf(scores),
            pairs=sum(one.pairs for one in in_mean(scored)) or len(hypotheses),
            decode_s=decode_s,
            checkpoint=checkpoint,
            source=None if given is None else str(given.absolute()),
            target=None if directions or len(targets) == 1 else language,
        )
    )
    for further in (*(one.event(name) for one in scored), *further_scores(name, scores)):
        events.write(further)


def score_export(
    path: Path,
    *,
    checkpoint: str,
    source: Path | None,
    reference: Path | None,
    target: str,
    languages: str = "",
    overrides: Sequence[str],
    listeners: Sequence[EventListener],
) -> None:
    """Translate a text with an export as `translate` does, and score it against its reference.

    An export has no run, so no event and no translation is stored.

    checkpoint: "best", the only one that an export has.
    target: the language of the reference, if the model translates into several.
    languages: the right languages of a model that was trained under wrong ones, such as "en-fr".
    overrides: settings to change in the recipe's sections search and evaluate.
    listeners: called with the event of the scores.
    Raises ConfigError, CorpusError and CheckpointError.
    """
    if source is None or reference is None:
        raise ConfigError(
            "an export has no test set of its own",
            place=path,
            remedy="give both source and reference",
        )
    check_sections(overrides, ("search", "evaluate"))
    sources, references = read_pair(source, reference)  # before hours of search, not after them
    with open_translator(
        path, checkpoints=[checkpoint], overrides=overrides, target=target
    ) as opened:
        recipe = opened.recipe.with_languages(languages)
        started = time.perf_counter()
        hypotheses = [best.text for best in opened.best(sources, scored=False)]
        decode_s = time.perf_counter() - started
    targets = dict.fromkeys(one.target for one in recipe.corpus.directions)
    language = target_of(target, recipe.corpus.directions) if target else next(iter(targets))
    scores = score_all(hypotheses, references, recipe.scoring, language=language)
    name = text_name(source, recipe.corpus.directions)
    with (
        tempfile.TemporaryDirectory(prefix="dragoman-") as folder,
        EventWriter(Path(folder)) as events,
    ):
        for listener in listeners:
            events.subscribe(listener)
        events.write(
            TestScored(
                name=name,
                weights=file_sha256(path / DIGESTS_FILE),
                settings=" ".join(overrides),
                **bleu_and_chrf(scores),
                pairs=len(hypotheses),
                decode_s=decode_s,
                checkpoint=checkpoint,
                source=str(source.absolute()),
                target=None if len(targets) == 1 else language,
            )
        )
        for further in further_scores(name, scores):
            events.write(further)
