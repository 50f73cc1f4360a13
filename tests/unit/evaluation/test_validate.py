"""The scores of a validation on real text are the same on any number of ranks."""

from __future__ import annotations

import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from dragoman.base.errors import CorpusError
from dragoman.corpus.directions import Direction
from dragoman.corpus.shards import SideSize, TokenShards, write_entries, write_side
from dragoman.corpus.split import write_text
from dragoman.distributed.world import World, join_world
from dragoman.evaluation.config import EvaluateConfig
from dragoman.evaluation.metrics import METRICS, Score, score_all
from dragoman.evaluation.validate import (
    ValidationData,
    further_scores,
    mean_loss,
    read_lines,
    translate_corpus,
    validate,
)
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from dragoman.telemetry.events import EventWriter, read_events
from dragoman.training.stopping import GivenUpError, StopSignals
from ranks import run_ranks
from real_text import Language, real_lines
from trained_model import (
    VOCAB_SIZE,
    TrainedModel,
    batch_of,
    small_model,
    token_rows,
    train_on_real_text,
)

DEV_PAIRS = 60
CONFIG = EvaluateConfig(
    bleu_pairs=50, train_slice_pairs=40, batch_tokens=500, bootstrap_samples=100
)
GERMAN, FRENCH = Direction("en", "de"), Direction("en", "fr")
SEARCH = SearchConfig(beam_size=2, batch_tokens=400, max_length_extra=10)


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return train_on_real_text()


@pytest.fixture(scope="module")
def corpus(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as `prepare` leaves it, and the weights in model.safetensors."""
    directory = tmp_path_factory.mktemp("corpus")
    for side in ("source", "target"):
        (directory / f"{side}.model").write_bytes(trained.subword_file)
    for split in ("train", "valid"):
        (directory / split).mkdir()
    languages: dict[str, Language] = {"source": "en", "target": "de"}
    for side, language in languages.items():
        lines = real_lines("valid", language)[:DEV_PAIRS]
        (directory / f"valid/{side}.txt").write_text("\n".join(lines) + "\n", "utf-8")
        train_rows = trained.sources if side == "source" else trained.targets
        for split, ids in (("valid", trained.subword.encode(lines)), ("train", train_rows)):
            rows = token_rows(ids)
            size = SideSize(len(ids), len(rows.ids), rows.ids.dtype)
            write_side(directory / split, side, [rows], size=size)
    save_file(trained.model.state_dict(), directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def data(corpus: Path) -> ValidationData:
    slice_pairs = CONFIG.train_slice_pairs
    return ValidationData.open(corpus, max_source_pieces=64, train_slice_pairs=slice_pairs)


@pytest.fixture
def world() -> World:
    with join_world() as world:
        return world


def test_mean_loss_equals_pytorch_token_by_token(
    trained: TrainedModel, data: ValidationData, world: World
) -> None:
    pairs = np.array([5, 3, 17, 40, 8])
    total, tokens = 0.0, 0
    for pair in pairs.tolist():
        batch = batch_of([data.dev.source(pair).tolist()], [data.dev.target(pair).tolist()])
        with torch.no_grad():
            logits_TV = trained.model.logits(batch)[0]
        total += float(F.cross_entropy(logits_TV.double(), batch.target_BT[0], reduction="sum"))
        tokens += len(logits_TV)
    for batch_tokens in (1, 70, 10_000):
        loss = mean_loss(trained.model, data.dev, pairs, world, batch_tokens=batch_tokens)
        assert loss == pytest.approx(total / tokens, rel=1e-5)


def test_loss_is_measured_without_dropout_and_the_mode_comes_back(
    data: ValidationData, world: World
) -> None:
    model = small_model()
    pairs = np.arange(30)
    assert model.config.dropout > 0
    losses = set()
    for training in (True, False):
        model.train(training)
        losses.add(mean_loss(model, data.dev, pairs, world, batch_tokens=500))
        assert model.training == training
    assert len(losses) == 1


def test_no_pairs_have_no_loss(trained: TrainedModel, data: ValidationData, world: World) -> None:
    with pytest.raises(CorpusError, match="no pairs"):
        mean_loss(trained.model, data.dev, np.array([], np.int64), world, batch_tokens=10)


def test_an_untrained_model_scores_about_nothing(data: ValidationData, world: World) -> None:
    result = validate(small_model(), data, config=CONFIG, search=SEARCH, world=world)
    assert result.scores["bleu"].value < 0.5
    assert result.dev_loss == pytest.approx(math.log(VOCAB_SIZE), abs=2.0)
    assert result.dev_perplexity == pytest.approx(math.exp(result.dev_loss))


@pytest.mark.system
def test_validation_reports_the_losses_scores_and_samples_of_the_model(
    trained: TrainedModel, data: ValidationData, world: World
) -> None:
    result = validate(trained.model, data, config=CONFIG, search=SEARCH, world=world)
    everything = np.arange(DEV_PAIRS)
    assert result.dev_loss == mean_loss(
        trained.model, data.dev, everything, world, batch_tokens=500
    )
    assert result.train_slice_loss is not None
    assert result.train_slice_loss < result.dev_loss
    hypotheses = translate_corpus(
        [trained.model], data.subwords, data.sources[:50], SEARCH, world, max_source_pieces=64
    )
    expected = sacrebleu.corpus_bleu(hypotheses, [data.references[:50]])
    assert result.scores["bleu"].value == expected.score
    assert result.scores["bleu"].value > 1.0
    assert result.scores["chrf"].value > 15.0
    assert result.scores["bleu"].low is not None
    assert (result.dev_pairs, result.decoded_pairs) == (60, 50)
    assert len(result.samples) == CONFIG.sample_translations
    for sample in result.samples:
        row = data.sources.index(sample.source)
        assert sample.hypothesis == hypotheses[row]
        assert sample.reference == data.references[row]
    assert min(result.loss_s, result.decode_s) > 0


def of_two_directions(corpus: Path, trained: TrainedModel, directory: Path) -> Path:
    """The same corpus, whose training text is the dev text and pairs that are not drawn.

    45 pairs are English to German, 15 English to French by their names, 60 from a third entry.
    """
    shutil.copytree(corpus, directory)
    entries = np.repeat(np.array([0, 1, 2], dtype=np.int32), [45, 15, 60])
    order = np.random.default_rng(1).permutation(len(entries))
    lines = [read_lines(directory / f"valid/{side}.txt") for side in ("source", "target")]
    write_text(directory / "valid", [*zip(*lines, strict=True)], [GERMAN] * 45 + [FRENCH] * 15)
    for side, text, others in (
        ("source", lines[0], trained.sources),
        ("target", lines[1], trained.targets),
    ):
        ids = [*trained.subword.encode(text), *others[: len(entries) - len(text)]]
        rows = token_rows([ids[row] for row in order])
        size = SideSize(len(ids), len(rows.ids), rows.ids.dtype)
        write_side(directory / "train", side, [rows], size=size)
    write_entries(directory / "train", [entries[order]], num_pairs=len(entries))
    return directory


@pytest.mark.parametrize(("slice_pairs", "sizes"), [(90, [45, 15]), (21, [11, 11]), (0, [])])
def test_training_text_is_measured_like_the_dev_text(
    slice_pairs: int, sizes: list[int], corpus: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    data = ValidationData.open(
        of_two_directions(corpus, trained, tmp_path / "two"),
        max_source_pieces=64,
        trained=[GERMAN, FRENCH],
        drawn=[GERMAN, FRENCH, None],
        train_slice_pairs=slice_pairs,
    )
    assert [len(pairs) for pairs in data.train_slices] == sizes
    entries = [set(data.train.entries()[pairs].tolist()) for pairs in data.train_slices]
    assert entries == [{0}, {1}][: len(sizes)]
    with join_world() as world:
        result = validate(trained.model, data, config=CONFIG, search=SEARCH, world=world)
    losses = {one.direction: one.loss for one in result.directions}
    assert losses[GERMAN] != losses[FRENCH]
    if slice_pairs == 90:  # it is the dev text, all of it
        assert result.train_slice_loss == pytest.approx(result.dev_loss, rel=1e-6)
    assert (result.train_slice_loss is None) == (not slice_pairs)


def test_an_entry_that_is_not_drawn_is_not_measured(
    corpus: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    directory = of_two_directions(corpus, trained, tmp_path / "two")

    def found(*drawn: Direction | None) -> list[list[int]]:
        data = ValidationData.open(
            directory, max_source_pieces=64, drawn=drawn, train_slice_pairs=12
        )
        return [pairs.tolist() for pairs in data.train_slices]

    of_first = np.flatnonzero(TokenShards(directory / "train").entries() == 0)
    assert found(GERMAN, None, None) == [of_first[np.arange(12) * 45 // 12].tolist()]
    # Text of one direction that is all drawn is measured evenly, with and without a list of it.
    evenly = [(np.arange(12) * 120 // 12).tolist()]
    assert found(GERMAN, GERMAN, GERMAN) == found() == evenly
    (directory / "train/entries.npy").unlink()
    assert found(GERMAN) == evenly


@pytest.mark.parametrize("number", [3, 30, 49, 50])
def test_samples_are_spread_over_the_whole_set(
    number: int, trained: TrainedModel, data: ValidationData, world: World
) -> None:
    config = CONFIG.model_copy(update={"sample_translations": number})
    search = SEARCH.model_copy(update={"beam_size": 1})
    result = validate(trained.model, data, config=config, search=search, world=world)
    rows = [data.sources.index(sample.source) for sample in result.samples]
    assert len(rows) == number
    assert {b - a for a, b in zip(rows, [*rows[1:], 50], strict=True)} <= {
        50 // number,
        -(-50 // number),
    }


def test_a_validation_is_an_event(
    trained: TrainedModel, data: ValidationData, world: World, tmp_path: Path
) -> None:
    result = validate(trained.model, data, config=CONFIG, search=SEARCH, world=world)
    undecoded = validate(
        trained.model,
        replace(data, train_slices=()),
        config=CONFIG.model_copy(update={"bleu_pairs": 0}),
        search=SEARCH,
        world=world,
    )
    with EventWriter(tmp_path) as events:
        events.write(result.event(), step=4)
        events.write(undecoded.event(), step=4)
    first, second = read_events(events.path)
    assert first.payload["dev_loss"] == result.dev_loss
    assert first.payload["bleu"] == result.scores["bleu"].value
    assert first.payload["chrf_signature"].startswith("chrF2|nrefs:1|bs:100|")
    assert first.payload["bleu_low"] < first.payload["bleu"] < first.payload["bleu_high"]
    assert second.payload["bleu"] is second.payload["chrf_low"] is None
    assert second.payload["train_slice_loss"] is None
    assert (undecoded.samples, undecoded.decoded_pairs) == ([], 0)


def test_lines_keep_their_places_and_long_ones_are_whole(
    trained: TrainedModel, data: ValidationData, world: World
) -> None:
    subwords, lines = data.subwords, data.sources
    long_line = " ".join(lines[:6])
    longest = max(len(ids) for ids in subwords[0].encode(lines))
    texts = translate_corpus(
        [trained.model],
        subwords,
        ["", lines[0], long_line, "", lines[1]],
        SEARCH,
        world,
        max_source_pieces=longest,
    )
    alone = translate_batch([trained.model], subwords[0].encode(lines[:2]), SEARCH)
    expected = subwords[1].decode([hypotheses[0].ids for hypotheses in alone])
    assert [texts[0], texts[1], texts[3], texts[4]] == ["", expected[0], "", expected[1]]
    assert len(texts[2].split()) > 3 * len(expected[0].split())
    assert translate_corpus([trained.model], subwords, [], SEARCH, world, max_source_pieces=9) == []


def validate_as_rank(world: World, corpus: str) -> dict[str, Any]:
    """The results of one rank, as JSON."""
    torch.manual_seed(world.rank)
    model = small_model()
    model.load_state_dict(load_file(Path(corpus) / "model.safetensors"))
    data = ValidationData.open(Path(corpus), max_source_pieces=20, train_slice_pairs=40)
    result = validate(model, data, config=CONFIG, search=SEARCH, world=world)
    uneven = mean_loss(model, data.dev, np.arange(3), world, batch_tokens=1)
    single = mean_loss(model, data.dev, np.arange(1), world, batch_tokens=1)
    return {
        "times_s": [result.loss_s, result.decode_s],
        "result": str(replace(result, loss_s=0.0, decode_s=0.0)),
        "uneven": [uneven, single],
    }


@pytest.mark.system
def test_one_rank_and_two_agree_to_the_last_digit(corpus: Path) -> None:
    (alone,) = run_ranks(validate_as_rank, str(corpus), world_size=1)
    first, second = run_ranks(validate_as_rank, str(corpus), world_size=2)
    assert first == second
    del alone["times_s"], first["times_s"]
    assert first == alone


def stopped_as_rank(world: World, corpus: str) -> str:
    """The end of a validation if rank 1 is asked to stop in its first batch."""
    model, batches = small_model(), []
    model.load_state_dict(load_file(Path(corpus) / "model.safetensors"))
    data = ValidationData.open(Path(corpus), max_source_pieces=20)

    def ask(*_: object) -> None:
        batches.append(1)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    model.register_forward_hook(ask)
    config = CONFIG.model_copy(update={"batch_tokens": 1})
    with StopSignals(alone=False):
        try:
            validate(model, data, config=config, search=SEARCH, world=world)
        except GivenUpError:
            return f"given up after {len(batches)} batches"
    return "measured"


@pytest.mark.system
def test_a_signal_to_one_rank_ends_a_validation_on_all(corpus: Path) -> None:
    first, second = run_ranks(stopped_as_rank, str(corpus), world_size=2)
    assert second == "given up after 1 batches"
    assert first == f"given up after {(DEV_PAIRS + 1) // 2} batches"


def test_a_metric_that_is_added_is_measured_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def same_lines(hypotheses: list[str], references: list[str], **_: object) -> Score:
        same = sum(h == r for h, r in zip(hypotheses, references, strict=True))
        return Score(100 * same / len(references), None, None, "same|v1")

    monkeypatch.setitem(METRICS, "same", same_lines)
    config = EvaluateConfig().model_copy(update={"metrics": ("same",)})
    scores = score_all(["a", "b", "c", "d"], ["a", "b", "c", "e"], config)
    assert list(scores) == ["bleu", "chrf", "same"]
    (reported,) = further_scores("valid", scores)
    assert (reported.text, reported.metric, reported.value, reported.signature) == (
        "valid",
        "same",
        75.0,
        "same|v1",
    )


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes("\ufeffone\rand a half\r\n\u2028two\n\nlast".encode())
    assert read_lines(file) == ["one\rand a half", "\u2028two", "", "last"]
    file.write_bytes(b"")
    with pytest.raises(CorpusError, match="holds no text"):
        read_lines(file)
