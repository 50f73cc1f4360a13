"""The choice of lines: n-grams against plain Python, the lazy greedy choice against a naive one."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from random import Random

import numpy as np
import pytest

from dragoman.corpus.choose import (
    NgramCounts,
    Ngrams,
    choose,
    coverage,
    expected_counts,
    words_of,
)
from dragoman.corpus.shards import TokenRows
from real_text import real_lines

LINES = real_lines("train", "en")[:400]
WANTED = real_lines("valid", "en")[:60]
TRAINED = real_lines("test", "en")[:100]


def plain_ngrams(line: str) -> set[tuple[str, ...]]:
    words = ["".join(filter(str.isalpha, word)) for word in line.casefold().split()]
    words = [word for word in words if word]
    return {tuple(words[at : at + n]) for n in (1, 2, 3) for at in range(len(words) - n + 1)}


def plain_lines(lines: list[str]) -> list[str]:
    """Lines of letters alone, in which our words are those of plain Python."""
    return [line for line in lines if line.isascii() and not any(map(str.isdigit, line))]


def counted(lines: list[str], wanted: list[str], trained: list[str]) -> NgramCounts:
    ngrams = Ngrams(words_of(wanted))
    counts = [
        np.bincount(ngrams.of(words_of(text)).ids, minlength=len(ngrams))
        for text in (wanted, trained)
    ]
    rows = ngrams.of(words_of(lines))
    return NgramCounts(rows, counts[0], counts[1], ngrams.are_words, counts[0].astype(float))


def naive(
    lines: list[str], wanted: list[str], trained: list[str], budget: int
) -> list[tuple[int, float]]:
    """The greedy choice by the formula, with every line looked at each time."""
    of_lines, of_wanted, of_trained = (
        [plain_ngrams(line) for line in text] for text in (lines, wanted, trained)
    )
    weights = Counter(one for ngrams in of_wanted for one in ngrams)
    known = Counter(one for ngrams in of_trained for one in ngrams)
    chosen: list[tuple[int, float]] = []
    left = set(range(len(lines)))
    while len(chosen) < budget:
        worth = {
            row: round(sum(math.sqrt(weights[one]) / (1 + known[one]) for one in of_lines[row]), 9)
            for row in left
        }
        best = min(left, key=lambda row: (-worth[row], row))
        if not worth[best]:
            break
        chosen.append((best, worth[best]))
        left.remove(best)
        known.update(of_lines[best])
    return chosen


def test_the_lazy_choice_is_the_greedy_choice_by_the_formula() -> None:
    lines, wanted, trained = map(plain_lines, (LINES, WANTED, TRAINED))
    found = choose(counted(lines, wanted, trained), 60, scale=np.ones(len(lines)))
    expected = naive(lines, wanted, trained, 60)
    assert [one.row for one in found] == [row for row, _ in expected]
    assert [one.worth for one in found] == pytest.approx([worth for _, worth in expected])


def test_equal_lines_are_chosen_in_their_order_and_a_repeat_is_worth_half() -> None:
    counts = counted(["a dog", "a dog", "a cat", "a cat"], ["a dog", "a cat"], [])
    found = choose(counts, 9, scale=np.ones(4))
    # a is wanted twice, dog and "a dog" once; then each is worth as little as it is known.
    two = math.sqrt(2)
    assert [one.row for one in found] == [0, 2, 1, 3]
    assert [one.new for one in found] == pytest.approx([1, 2 / 3, 0, 0])
    worths = [two + 2, two / 2 + 2, two / 3 + 1, two / 4 + 1]
    assert [one.worth for one in found] == pytest.approx(worths)


def test_a_scale_and_a_refusal_decide() -> None:
    counts = counted(["one two three", "four five six", "seven"], ["one two four five seven"], [])
    rows = [one.row for one in choose(counts, 3, scale=np.array([1.0, 2.0, 0.0]))]
    assert rows == [1, 0]
    refusing = choose(counts, 3, scale=np.ones(3), accepts=lambda row: row != 0)
    assert [one.row for one in refusing] == [1, 2]
    assert choose(counted(["nothing"], ["of that"], []), 3, scale=np.ones(1)) == []


@pytest.mark.parametrize(
    ("line", "same", "number"),
    [
        ("The dog, 3 times!", "the DOG times", 3),
        ("我喜欢狗。", "我 喜 欢 狗", 4),
        ("हिन्दी भाषा", "हिन्दी, भाषा", 2),
        ("12 % - 3.5", "", 0),
    ],
)
def test_words_of_any_script_without_case_numbers_and_marks(
    line: str, same: str, number: int
) -> None:
    found = words_of([line, same, "other"])
    assert found.lengths.tolist() == [number, number, 1]
    assert found.ids[:number].tolist() == found.ids[number : 2 * number].tolist()
    assert found.ids[-1] not in found.ids[:-1]


def test_what_lines_at_random_cover_is_the_mean_over_all_draws() -> None:
    lines = ["a b", "b c", "c d", "d", "b"]
    counts = counted(lines, ["a b", "c d e"], ["d"])
    words, phrases = coverage(counts, [0, 2])
    assert words[:2] == (4, 3)  # of a, b, c and e all but e
    assert words.in_all == 3
    assert phrases[:2] == (4, 2)  # a b, c d, d e, c d e
    draws = [
        sum(any(letter in lines[row].split() for row in rows) for letter in "abce")
        for rows in combinations(range(5), 2)
    ]
    assert words.at_random == pytest.approx(sum(draws) / len(draws))


def test_lines_like_the_wanted_text_say_what_else_is_expected() -> None:
    lines, like = ["a red dog", "a red cat", "to be or not"], ["a red dog"]
    ngrams = Ngrams(words_of([*lines, *lines]), least=2)
    rows, words = ngrams.of(words_of(lines)), words_of(lines)
    wanted = np.bincount(ngrams.of(words_of(like)).ids, minlength=len(ngrams))
    expected = expected_counts(rows, words, wanted, 1)
    (cat,), (dog,), (to,) = (ngrams.of(words_of([word])).ids for word in ("cat", "dog", "to"))
    # All 6 of its n-grams, 3 of 6 and none are wanted: 1, 1/4 and 0 of a line.
    assert expected[[cat, dog, to]] == pytest.approx([0.2, 1.8, 0.0])


def test_the_rows_of_many_lines_are_those_of_each() -> None:
    random = Random(1)
    lines = [" ".join(random.choices("abcdef", k=random.randrange(5))) for _ in range(25_000)]
    ngrams = Ngrams(words_of(lines[:50]))
    together = ngrams.of(words_of(lines))
    ends = np.cumsum(together.lengths)
    for row in (0, 19_999, 20_000, 24_999):
        alone: TokenRows = ngrams.of(words_of([lines[row]]))
        own = together.ids[ends[row] - together.lengths[row] : ends[row]]
        assert alone.ids.tolist() == own.tolist()
