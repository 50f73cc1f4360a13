"""Scores of pairs are the model's own loss; lines that cannot be scored say so."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import dragoman
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.corpus.normalize import normalize
from dragoman.data.batch import Batch, make_batch
from dragoman.distributed.world import join_world
from dragoman.inference.scoring import PairScorer, cross_entropies, dual_cross_entropy
from dragoman.inference.translation import TranslationModel
from dragoman.model.incremental import inference
from real_text import real_lines
from small_run import small_run


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
    scorer = PairScorer(model, model, place="pairs", counts=counts)
    (written,) = scorer.lines(["A house.\tEin Haus.\t0.5", "\tnothing"], 1)
    source, target, kept, *scores = written[0].rstrip("\n").split("\t")
    assert (source, target, kept) == ("A house.", "Ein Haus.", "0.5")
    forward, reverse, dual = map(float, scores)
    both = np.array([forward]), np.array([reverse])
    assert dual == pytest.approx(dual_cross_entropy(*both)[0], abs=1e-5)
    assert dual == pytest.approx(abs(forward - reverse) + (forward + reverse) / 2, abs=1e-5)
    assert written[1] == "\tnothing\t\t\t\n"
    assert counts == {"pairs": 2, "unscored": 1}


def test_bad_input_is_named(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("A house.\tEin Haus.\nno tab\n")
    with pytest.raises(CorpusError, match=r"pairs.tsv, line 2: has no tab"):
        dragoman.score(small_run(), pairs, tmp_path / "scored.tsv")
    with pytest.raises(ConfigError, match="translates en to de, not de to en"):
        dragoman.score(small_run(), pairs, tmp_path / "scored.tsv", reverse=small_run())
    pairs.write_text("")
    with pytest.raises(CorpusError, match="is empty"):
        dragoman.score(small_run(), pairs, tmp_path / "scored.tsv")
    with pytest.raises(CorpusError, match="no such file"):
        dragoman.score(small_run(), tmp_path / "nothing", tmp_path / "scored.tsv")
    assert not (tmp_path / "scored.tsv").exists()
