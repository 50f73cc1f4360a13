"""Scores of pairs are the model's own loss; lines that cannot be scored say so."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import dragoman
from dragoman.base.errors import CheckpointError, ConfigError, CorpusError
from dragoman.cli.command_line import main
from dragoman.corpus.normalize import normalize
from dragoman.data.batch import Batch, make_batch
from dragoman.distributed.world import join_world
from dragoman.formats.trained_model import TranslationModel
from dragoman.inference.scoring import (
    PairScorer,
    by_models,
    cross_entropies,
    dual_cross_entropy,
)
from dragoman.model.incremental import inference
from dragoman.recipe.run_directory import RunDirectory
from parallel_text import sentences, write_lines
from real_text import real_lines
from small_run import small_run
from tiny_recipe import TINY


def loaded() -> TranslationModel:
    with join_world() as world:
        return TranslationModel.load(small_run(), ["best"], world)


def test_each_score_is_the_loss_of_its_pair() -> None:
    model = loaded()
    sources, targets = real_lines("valid", "en")[:60], real_lines("valid", "de")[:60]
    found = cross_entropies(model, sources, targets)
    (network,) = model.models
    checked = 0
    for source, target, score in zip(sources, targets, found, strict=True):
        rows = [
            np.array(vocabulary.encode([normalize(text)])[0])
            for vocabulary, text in zip(model.subwords, (source, target), strict=True)
        ]
        if max(len(row) for row in rows) > model.max_source_pieces:
            assert math.isnan(score)
            continue
        batch = make_batch(*(x for row in rows for x in (row, np.array([len(row)]))))
        with inference([network]):
            loss = float(network(batch).nll) / batch.num_target_tokens
            logits = network.logits(batch)[0]
        assert score == pytest.approx(loss, abs=1e-5)
        by_pytorch = torch.nn.functional.cross_entropy(logits, batch.target_BT[0])
        assert score == pytest.approx(float(by_pytorch), abs=1e-5)
        checked += 1
    assert checked > 40


def test_short_targets_of_long_sources_make_no_huge_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
    (network,) = model.models
    score, cells = network.token_nll, list[int]()

    def token_nll(batch: Batch) -> torch.Tensor:
        cells.append(max(batch.source_BS.numel(), batch.target_BT.numel()))
        return score(batch)

    monkeypatch.setattr(network, "token_nll", token_nll)
    sources = ["A house."] * 999 + ["A man in a blue shirt is standing on a ladder."]
    found = cross_entropies(model, sources, ["Ja."] * 1000)
    assert np.isfinite(found).all()
    assert max(cells) <= 8192


def test_a_pair_without_text_or_too_long_has_no_score() -> None:
    found = cross_entropies(
        loaded(),
        ["", "A house.", " ", "A " * 200, "A house."],
        ["Ein Haus.", "", "x", "Ein", "Ein"],
    )
    assert np.isnan(found).tolist() == [True, True, True, True, False]


def test_lines_keep_their_columns_and_get_new_ones() -> None:
    model = loaded()
    counts: Counter[str] = Counter()
    scorer = PairScorer(by_models([model, model]), columns=3, counts=counts)
    (written,) = scorer.lines(["A house.\tEin Haus.\t0.5", "\tnothing"], 1)
    source, target, kept, *scores = written[0].rstrip("\n").split("\t")
    assert (source, target, kept) == ("A house.", "Ein Haus.", "0.5")
    forward, reverse, dual = map(float, scores)
    both = np.array([forward]), np.array([reverse])
    assert dual == pytest.approx(dual_cross_entropy(*both)[0], abs=1e-5)
    assert dual == pytest.approx(abs(forward - reverse) + (forward + reverse) / 2, abs=1e-5)
    assert written[1] == "\tnothing\t\t\t\t\n", "its scores are in the columns of the others"
    assert counts == {"pairs": 2, "unscored": 1, "malformed": 0}


@pytest.mark.parametrize(
    ("bad", "kept", "says"),
    [
        ("no tab", "no tab\t\t\n", "has no tab"),
        ("A\tB\tC", "A\tB C\t\n", "has 3 columns, the first pair has 2"),
    ],
)
def test_a_hundredth_of_lines_that_are_no_pairs_is_counted_and_kept_without_a_score(
    bad: str, kept: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs, output = tmp_path / "pairs.tsv", tmp_path / "scored.tsv"
    good = ["A house.\tEin Haus."] * 99
    pairs.write_text("\n".join([*good[:40], bad, *good[40:]]) + "\n")
    done = dragoman.score(small_run(), pairs, output)
    assert (done.pairs, done.malformed, done.unscored) == (99, 1, 0)
    lines = output.read_text().splitlines(keepends=True)
    assert lines[40] == kept
    assert all(float(line.split("\t")[2]) > 0 for line in (*lines[:40], *lines[41:]))
    output.unlink()
    assert main(["score", str(small_run().path), str(pairs), "--output", str(output)]) == 0
    assert "no pairs, kept without a score: lines 1" in capfd.readouterr().out

    pairs.write_text("\n".join([*good[:40], bad, *good[40:98]]) + "\n")
    again = tmp_path / "again.tsv"
    with pytest.raises(CorpusError, match=rf"pairs\.tsv, line 41: {says}"):
        dragoman.score(small_run(), pairs, again)
    assert not again.exists()


def test_a_first_line_that_is_no_pair_does_not_set_the_columns(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source and target\n" + "A house.\tEin Haus.\n" * 99)
    done = dragoman.score(small_run(), pairs, tmp_path / "scored.tsv")
    assert (done.pairs, done.malformed) == (99, 1)


def tiny(name: str, *directions: str) -> RunDirectory:
    """A run of one update, from train.LANGUAGE; directions: such as "en-de"."""
    entries = [
        f'{{source = "train.{source}", target = "train.{target}", '
        f'source_language = "{source}", target_language = "{target}"}}'
        for source, target in (direction.split("-") for direction in directions)
    ]
    head, end = TINY.split('train = [{source = "train.en", target = "train.de"}]')
    Path(f"{name}.toml").write_text(f"{head}train = [{', '.join(entries)}]{end}")
    settings = ["train.max_steps=1", "evaluate.bleu_pairs=0", "data.batch_tokens=256"]
    return dragoman.train(dragoman.load_recipe(f"{name}.toml", settings))


@pytest.mark.system
def test_a_reverse_model_sets_the_source_language_of_the_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    english, german = sentences(60)
    french = [" ".join(reversed(line.split())) for line in english]
    for language, lines in (("en", english), ("de", german), ("fr", french)):
        write_lines(Path(f"train.{language}"), lines)
    pairs = [f"{source}\t{target}" for source, target in zip(french, german, strict=True)][:20]
    write_lines(Path("pairs.tsv"), pairs)
    write_lines(Path("swapped.tsv"), ["\t".join(reversed(pair.split("\t"))) for pair in pairs])
    model = tiny("model", "en-de", "fr-de")
    reverse = tiny("reverse", "de-fr", "fr-en")
    dragoman.score(model, "pairs.tsv", "both.tsv", reverse=reverse)
    dragoman.score(reverse, "swapped.tsv", "back.tsv", target_language="fr")
    both = [line.split("\t")[3] for line in Path("both.tsv").read_text().splitlines()]
    back = [line.split("\t")[2] for line in Path("back.tsv").read_text().splitlines()]
    assert both == back
    with pytest.raises(ConfigError, match="translates back into several languages: en, fr"):
        dragoman.score(model, "pairs.tsv", "no.tsv", reverse=tiny("several", "de-fr", "de-en"))


@pytest.mark.system
def test_models_of_other_languages_are_not_one_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    english, german = sentences(60)
    write_lines(Path("train.en"), english)
    write_lines(Path("train.de"), german)
    write_lines(Path("text"), english[:3])
    write_lines(
        Path("pairs.tsv"), [f"{one}\t{other}" for one, other in zip(english, german, strict=True)]
    )
    model, reverse = tiny("model", "en-de"), tiny("reverse", "de-en")
    (checkpoint,) = model.checkpoints.iterdir()
    for other in (reverse.path, next(reverse.checkpoints.iterdir())):
        with pytest.raises(CheckpointError, match=r"translates de to en, not en to de; name"):
            dragoman.synthesize(model, "text", "out", checkpoint=["best", str(other)])
    with pytest.raises(ConfigError, match="belongs to one model, but two models are given"):
        dragoman.score(model, "pairs.tsv", "out", reverse=reverse, checkpoint=str(checkpoint))
    assert not Path("out").exists()


def test_bad_input_is_named(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("A house.\tEin Haus.\n")
    with pytest.raises(ConfigError, match="translates en to de, not de to en"):
        dragoman.score(small_run(), pairs, tmp_path / "scored.tsv", reverse=small_run())
    pairs.write_text("")
    with pytest.raises(CorpusError, match="is empty"):
        dragoman.score(small_run(), pairs, tmp_path / "scored.tsv")
    with pytest.raises(CorpusError, match="no such file"):
        dragoman.score(small_run(), tmp_path / "nothing", tmp_path / "scored.tsv")
    assert not (tmp_path / "scored.tsv").exists()


def test_a_directory_that_is_no_checkpoint_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("A house.\tEin Haus.\n")
    Path("runs").mkdir()
    with pytest.raises(CheckpointError, match=r"^runs: is not a checkpoint: it holds no weights;"):
        dragoman.score(small_run(), "pairs.tsv", "scored.tsv", checkpoint="runs")
    torn = Path("torn")
    shutil.copytree(next(small_run().checkpoints.iterdir()), torn)
    (torn / "digests.json").unlink()
    with pytest.raises(CheckpointError, match=r"torn/digests.json: is missing or torn"):
        dragoman.score(small_run(), "pairs.tsv", "scored.tsv", checkpoint="torn")
    assert not Path("scored.tsv").exists()
