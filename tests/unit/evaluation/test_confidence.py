"""The regression of confidence, beside PyTorch's optimizer, and what is measured of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu import sentence_chrf

from dragoman.base.errors import CorpusError
from dragoman.evaluation.confidence import (
    CONFIDENCE_FILE,
    Confidence,
    Measured,
    Signs,
    are_right,
    colour_of,
    fit_confidence,
    read_confidence,
    write_confidence,
)
from dragoman.formats.bundle import Bundle
from dragoman.inference.translator import Segment, Translation, translator_of
from dragoman.model.config import SearchConfig
from served import served_bundle

Pairs = list[tuple[Signs, bool]]


def drawn(count: int, seed: int) -> Pairs:
    """Translations that are the likelier right, the higher the score and the shorter the text."""
    generator = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        score, source = float(generator.uniform(-3, 0)), int(generator.integers(1, 60))
        target = max(1, int(source * generator.uniform(0.7, 1.5)))
        probability = 1 / (1 + np.exp(-(3 + 2 * score - 0.02 * source)))
        signs = Signs(score, source, target)
        pairs.append((signs, bool(generator.uniform() < probability)))
    return pairs


def fitted(dev: Pairs, test: Pairs) -> Confidence:
    return fit_confidence(dev, test, right_chrf=60, test_name="test")


def test_the_weights_are_those_of_another_optimizer() -> None:
    dev = drawn(400, 1)
    ours = fitted(dev, drawn(200, 2))
    scores = torch.tensor([signs.score for signs, _ in dev], dtype=torch.float64)
    source, target = (
        torch.log1p(torch.tensor([signs[side] for signs, _ in dev], dtype=torch.float64))
        for side in (1, 2)
    )
    columns = torch.stack([scores, source, target - source], dim=1)
    columns = (columns - columns.mean(0)) / columns.std(0, correction=0)
    right = torch.tensor([float(is_right) for _, is_right in dev], dtype=torch.float64)
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=500, tolerance_grad=1e-10)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = columns @ weights + bias
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, right, reduction="sum")
        value = value + weights.square().sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    theirs = torch.sigmoid(columns @ weights + bias).detach().numpy()
    found = np.array([ours.of(signs) for signs, _ in dev])
    np.testing.assert_allclose(found, theirs, atol=1e-6)


def test_what_is_promised_holds_on_other_text() -> None:
    measured = fitted(drawn(2000, 1), drawn(5000, 2)).measured
    assert measured.green.right / measured.green.sentences > 2 / 3
    assert measured.red.right / measured.red.sentences < 1 / 3
    assert measured.error < 0.03


def test_the_error_is_the_mean_distance_of_bins_from_what_was_right() -> None:
    dev, test = drawn(400, 3), drawn(150, 4)
    confidence = fitted(dev, test)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for signs, is_right in test:
        probability = confidence.of(signs)
        bins.setdefault(int(probability * 10), []).append((probability, is_right))
    error = sum(
        len(one) / 150 * abs(np.mean([p for p, _ in one]) - np.mean([right for _, right in one]))
        for one in bins.values()
    )
    assert confidence.measured.error == pytest.approx(error)
    counts = (confidence.measured.green, confidence.measured.yellow, confidence.measured.red)
    assert sum(kept.sentences for kept in counts) == 150
    assert sum(kept.right for kept in counts) == sum(is_right for _, is_right in test)


def test_lengths_that_are_all_alike_are_no_obstacle() -> None:
    pairs = [(Signs(-0.01 * number, 7, 7), number < 100) for number in range(200)]
    confidence = fitted(pairs, pairs)
    assert confidence.of(Signs(-0.1, 7, 7)) > 0.9
    assert confidence.of(Signs(-1.9, 7, 7)) < 0.1


@pytest.mark.parametrize(("count", "right"), [(99, 50), (200, 9), (200, 191)])
def test_too_few_translations_are_refused_in_words(count: int, right: int) -> None:
    pairs = [(Signs(-1.0, 5, 5), number < right) for number in range(count)]
    with pytest.raises(CorpusError, match=f"{right} of {count} translations of the test text"):
        fitted(drawn(200, 1), pairs)


def test_a_translation_is_right_from_the_wanted_chrf_on() -> None:
    texts, references = ["A man sings.", "A dog."], ["A man sings!", "Zwei Katzen"]
    scores = [
        sentence_chrf(text, [other]).score for text, other in zip(texts, references, strict=True)
    ]
    assert are_right(texts, references, scores[0]) == [True, False]


def test_colours_begin_at_thirds() -> None:
    assert [colour_of(one) for one in (0, 0.33, 0.34, 0.66, 0.67, 1)] == [
        *("red", "red", "yellow", "yellow", "green", "green")
    ]


def test_a_file_is_read_as_it_was_written_and_another_one_is_none(tmp_path: Path) -> None:
    assert read_confidence(tmp_path) is None
    confidence = fitted(drawn(200, 1), drawn(200, 2))
    write_confidence(confidence, tmp_path)
    assert read_confidence(tmp_path) == confidence
    file = tmp_path / CONFIDENCE_FILE
    whole = file.read_text()
    for text in ("", "{}", whole.replace('"weights"', '"weight"'), whole.replace("60.0", "NaN")):
        file.write_text(text)
        assert read_confidence(tmp_path) is None


def test_words_that_the_model_cannot_read_are_red_and_a_number_is_not() -> None:
    translator = replace(
        translator_of(Bundle.open(served_bundle()), threads=1),
        calibration=fitted(drawn(200, 1), drawn(200, 2)),
    )
    texts = ["Где вокзал?", "A man. Где вокзал?", "\U0001f600 ..."]
    found = translator.translate(texts, SearchConfig(), text_format="document")
    colours = [best.colour for (best,) in found]
    assert colours == ["red", "red", None]


def test_a_translation_of_a_translation_is_no_surer_than_that() -> None:
    segments = (Segment("Ein Mann.", None, 0.9), Segment(" "), Segment("Da!", None, 0.3))
    translation = Translation("Ein Mann. Da!", -1.0, segments)
    for confidence, least in ((0.5, 0.3), (0.2, 0.2), (0.0, 0.0), (None, None)):
        assert translation.no_surer_than(confidence).confidence == least
    assert translation.no_surer_than(0.5).segments[0].confidence == 0.5


def test_a_text_of_several_rows_is_as_sure_as_the_least_sure_of_them() -> None:
    measured = Measured.model_validate(
        {
            "test": "t",
            "error": 0,
            **{key: {"sentences": 0, "right": 0} for key in ("green", "yellow", "red")},
        }
    )
    surer_if_longer = Confidence(right_chrf=60, weights=(-6, 0, 2, 0), measured=measured)
    bundle = Bundle.open(served_bundle())
    translator = replace(translator_of(bundle, threads=1), calibration=surer_if_longer)
    row = " ".join(["A man in a red shirt"] * 4)
    longest = surer_if_longer.of(Signs(0, translator.max_source_pieces, 1))
    text = f"{row} {row} {row} {row}"
    ((best,),) = translator.translate([text], SearchConfig(), text_format="line")
    assert best.segments[0].signs is not None
    assert best.segments[0].signs.source_pieces > translator.max_source_pieces
    assert best.confidence is not None
    assert best.confidence <= longest
