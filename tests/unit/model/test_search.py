"""Search against exhaustive enumeration, and its promises to the caller."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from dragoman.base.errors import ConfigError
from dragoman.corpus.shards import EOS
from dragoman.data.batch import make_batch
from dragoman.model.config import ModelConfig, SearchConfig, length_penalty
from dragoman.model.search import (
    Hypothesis,
    best_continuations,
    plan_batches,
    translate_batch,
)
from dragoman.model.transformer import Transformer

VOCAB_SIZE = 6


def make_model(
    seed: int = 1, vocab_size: int = VOCAB_SIZE, start_ids: tuple[int, ...] = (2,)
) -> Transformer:
    """Random weights, large enough that some continuations are much better than others."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=16,
        num_heads=2,
        d_ffn=16,
        encoder_layers=1,
        decoder_layers=2,
        start_ids=start_ids,
    )
    model = Transformer(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    with torch.no_grad():
        model.embeddings.target_matrix.mul_(3.0)
    return model


def log_probabilities(
    models: Sequence[Transformer], source: list[int], ids: Sequence[int]
) -> list[float]:
    """The mean of the models' probabilities of each id, by teacher forcing."""
    decoder_input = np.array(ids[:-1], dtype=np.int64)
    batch = make_batch(
        np.array(source), np.array([len(source)]), decoder_input, np.array([len(decoder_input)])
    )
    probabilities_TV = torch.stack(
        [model.logits(batch)[0].double().softmax(1) for model in models]
    ).mean(0)
    return [math.log(probabilities_TV[t, piece]) for t, piece in enumerate(ids)]


@cache
def every_translation(
    num_models: int, source: tuple[int, ...], limit: int
) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence of at most `limit` tokens, with its log-probability."""
    models = [make_model(seed).eval() for seed in range(1, num_models + 1)]
    ordinary = [piece for piece in range(VOCAB_SIZE) if piece != EOS]
    with torch.no_grad():
        return [
            (ids, sum(log_probabilities(models, [*source], ids)))
            for length in range(1, limit + 1)
            for ids in itertools.product(
                *[ordinary] * (length - 1), range(VOCAB_SIZE) if length == limit else [EOS]
            )
        ]


def enumerate_hypotheses(
    num_models: int, source: list[int], limit: int, config: SearchConfig
) -> list[Hypothesis]:
    """Every translation of at most `limit` tokens, best first."""
    found = [
        Hypothesis(
            [piece for piece in ids if piece != EOS],
            total / length_penalty(len(ids), config),
            total,
        )
        for ids, total in every_translation(num_models, (*source,), limit)
    ]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@pytest.mark.parametrize("num_models", [1, pytest.param(2, marks=pytest.mark.system)])
@pytest.mark.parametrize(
    "config",
    [
        SearchConfig(length_penalty="gnmt", length_penalty_alpha=1.0),
        SearchConfig(length_penalty="power", length_penalty_alpha=1.5),
        SearchConfig(length_penalty_alpha=0.0),
    ],
    ids=["gnmt", "power", "none"],
)
def test_a_huge_beam_finds_the_hypotheses_of_an_enumeration(
    config: SearchConfig, num_models: int
) -> None:
    models = [make_model(seed).eval() for seed in range(1, num_models + 1)]
    source = [4, 5, 4]
    config = config.model_copy(
        update={"beam_size": 200, "max_length_ratio": 1.0, "max_length_extra": 1}
    )
    expected = enumerate_hypotheses(num_models, source, 4, config)[:20]
    (found,) = translate_batch(models, [source], config, num_hypotheses=20)
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.score == pytest.approx(theirs.score, abs=1e-4)
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-4)


def test_length_penalties_are_those_of_their_sources() -> None:
    gnmt = SearchConfig(length_penalty="gnmt", length_penalty_alpha=0.6)
    assert length_penalty(1, gnmt) == 1.0
    assert length_penalty(25, gnmt) == pytest.approx(((5 + 25) / 6) ** 0.6)
    power = SearchConfig(length_penalty="power", length_penalty_alpha=0.5)
    assert length_penalty(16, power) == 4.0


@pytest.mark.parametrize("vocab_size", [7, 97, 1000, 8192])
@pytest.mark.parametrize("width", [1, 5])
def test_best_continuations_equal_a_full_ranking(width: int, vocab_size: int) -> None:
    torch.manual_seed(0)
    logits_BWV = torch.randn(9, width, vocab_size) * 4
    scores_BW = -torch.rand(9, width) * 5
    count = min(10, width * vocab_size)
    scores_BC, places_BC = best_continuations(logits_BWV, scores_BW, count)
    everything = (logits_BWV.log_softmax(2) + scores_BW[:, :, None]).flatten(1).topk(count)
    torch.testing.assert_close(scores_BC, everything.values, atol=1e-5, rtol=1e-5)
    assert torch.equal(places_BC, everything.indices)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_results_do_not_depend_on_order_or_batching(beam_size: int) -> None:
    model = make_model(vocab_size=50)
    rng = np.random.default_rng(0)
    sources = [rng.integers(4, 50, rng.integers(0, 12)).tolist() for _ in range(40)]
    config = SearchConfig(beam_size=beam_size, max_length_extra=5)
    one_batch = translate_batch([model], sources, config)
    assert len(one_batch) == 40
    assert translate_batch([model], sources, config) == one_batch
    backwards = translate_batch([model], sources[::-1], config)[::-1]
    alone = translate_batch([model], sources, config.model_copy(update={"batch_tokens": 1}))
    for expected, *others in zip(one_batch, backwards, alone, strict=True):
        for other in others:
            assert [hypothesis.ids for hypothesis in other] == [h.ids for h in expected]
            assert other[0].score == pytest.approx(expected[0].score, abs=1e-4)


def test_an_ensemble_of_a_model_with_itself_is_the_model() -> None:
    model = make_model(vocab_size=50)
    sources = [[5, 6, 7], [8, 9]]
    config = SearchConfig(beam_size=4)
    (alone, twice) = (translate_batch([model] * n, sources, config) for n in (1, 2))
    for one, two in zip(alone, twice, strict=True):
        assert one[0].ids == two[0].ids
        assert one[0].log_probability == pytest.approx(two[0].log_probability, abs=1e-4)


def test_a_translation_that_does_not_end_is_cut_off_at_its_limit() -> None:
    model = make_model(vocab_size=50)
    norm = model.decoder.norm
    assert isinstance(norm, nn.LayerNorm)
    with torch.no_grad():  # the decoder's output is one vector, and the end opposes it
        norm.weight.zero_()
        norm.bias.fill_(1.0)
        model.embeddings.target_matrix[EOS] = -10.0
    for config in (
        SearchConfig(beam_size=1, max_length_ratio=2.5, max_length_extra=3),
        SearchConfig(beam_size=4, max_length_ratio=2.5, max_length_extra=3),
        SearchConfig(beam_size=2, max_length_ratio=0.1, max_length_extra=0),
    ):
        sources = [[5] * length for length in (1, 4, 9)]
        for source, found in zip(sources, translate_batch([model], sources, config), strict=True):
            limit = int(config.max_length_ratio * len(source) + config.max_length_extra)
            assert len(found[0].ids) == max(1, limit)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_limit_below_the_start_tokens_leaves_room_for_one_piece(beam_size: int) -> None:
    config = SearchConfig(beam_size=beam_size, max_length_ratio=0.0, max_length_extra=1)
    model = make_model(start_ids=(2, 5)).eval()
    ((found, *_),) = translate_batch([model], [[3, 4, 5]], config)
    assert len(found.ids) <= 1


def test_batches_hold_similar_lengths_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, 500).tolist()
    config = SearchConfig(beam_size=4, batch_tokens=1000)
    batches = plan_batches(lengths, config)
    assert sorted(itertools.chain(*batches)) == list(range(500))
    ordered = [lengths[row] for batch in batches for row in batch]
    assert ordered == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) * (lengths[batch[0]] + 1) * 4 <= 1000
        assert plan_batches([lengths[row] for row in batch], config) == [list(range(len(batch)))]
    assert len(batches) < 1.2 * sum((length + 1) * 4 for length in lengths) / 1000
    assert plan_batches([5000], config) == [[0]]


def test_more_hypotheses_than_the_beam_holds_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"search\.beam_size: a beam of 4 cannot give 5 translations"
    ):
        translate_batch([make_model()], [[4]], SearchConfig(beam_size=4), num_hypotheses=5)


def test_nothing_in_nothing_out() -> None:
    assert translate_batch([make_model()], [], SearchConfig()) == []


@pytest.mark.parametrize(
    "size", [*(pytest.param(size, marks=pytest.mark.system) for size in (1, 3)), 2]
)
def test_no_n_gram_comes_twice_and_nothing_better_was_left_out(size: int) -> None:
    """With a beam as wide as all hypotheses, against enumeration of what is left over."""
    model, source, limit = make_model().eval(), [3, 4, 5], 4
    config = SearchConfig(
        beam_size=VOCAB_SIZE**3, max_length_ratio=0, max_length_extra=limit,
        no_repeat_ngram_size=size,
    )  # fmt: skip
    (found,) = translate_batch([model], [source], config, num_hypotheses=5)
    expected = []
    ordinary = [piece for piece in range(VOCAB_SIZE) if piece != EOS]
    for length in range(limit):
        for ids in itertools.product(ordinary, repeat=length):
            likelihood = log_probability_without_repeats(model, source, [*ids, EOS], size)
            expected.append((likelihood / length_penalty(length + 1, config), list(ids)))
    for ids in itertools.product(ordinary, repeat=limit):
        likelihood = log_probability_without_repeats(model, source, [*ids], size)
        expected.append((likelihood / length_penalty(limit, config), list(ids)))
    expected.sort(key=lambda entry: -entry[0])
    assert [one.ids for one in found] == [ids for _, ids in expected[:5]]
    for one, (score, _) in zip(found, expected, strict=False):
        assert one.score == pytest.approx(score, abs=1e-4)


def log_probability_without_repeats(
    model: Transformer, source: list[int], ids: list[int], size: int
) -> float:
    decoder_input = np.array(ids[:-1], dtype=np.int64)
    batch = make_batch(
        np.array(source), np.array([len(source)]), decoder_input, np.array([len(decoder_input)])
    )
    with torch.no_grad():
        logits_TV = model.logits(batch)[0].double()
    total = 0.0
    for place, piece in enumerate(ids):
        grams = {tuple(ids[start : start + size]) for start in range(place - size + 1)}
        last = tuple(ids[place - size + 1 : place]) if place >= size - 1 else None
        for other in range(VOCAB_SIZE):
            if last is not None and (*last, other) in grams:
                logits_TV[place, other] = -math.inf
        total += float(logits_TV[place].log_softmax(0)[piece])
    return total


def test_the_search_of_ctranslate2_differs_only_if_it_must() -> None:
    """An export compares its translations a second time only if the search differs."""
    assert SearchConfig().as_in_ctranslate2() == SearchConfig()
    found = SearchConfig(never_padding=True, early_stopping=False).as_in_ctranslate2()
    assert found == SearchConfig(never_padding=True, renormalize=True)
