"""The scores of an export: a model without a run, so no event or translation is stored."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dragoman.base.errors import ConfigError
from dragoman.base.files import file_sha256
from dragoman.corpus.directions import target_of
from dragoman.evaluation.directions import bleu_and_chrf
from dragoman.evaluation.metrics import score_all
from dragoman.evaluation.validate import further_scores, read_pair, text_name
from dragoman.recipe.recipe import check_sections
from dragoman.serve.translator import open_translator
from dragoman.telemetry.events import EventListener, EventWriter, TestScored
from dragoman.training.durable import DIGESTS_FILE


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
        path,
        checkpoints=[checkpoint],
        overrides=overrides,
        engine="auto",
        threads=None,
        target=target,
    ) as opened:
        recipe = opened.recipe.with_languages(languages)
        started = time.perf_counter()
        hypotheses = [
            translations[0].text
            for group in opened.translator.stream(
                sources, recipe.search, text_format="line", scored=False
            )
            for translations in group
        ]
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
