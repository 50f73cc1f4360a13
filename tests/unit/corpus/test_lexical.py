"""IBM Model 1 against the paper's formulas, word by word, and on pairs that belong to others."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.lexical import Counts, LexicalTable, OftenMet, PieceKeys, met_keys
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import BOS, TokenRows
from real_text import real_lines
from rejected_pairs import read_rejected

SIZE = 9
SOURCES = [[4, 5, 6], [4, 5], [6, 7, 7], [4, 7]]
TARGETS = [[8, 4, 5], [8, 4], [5, 6], [8, 6, 6]]


def rows(texts: list[list[int]]) -> TokenRows:
    flat = [piece for text in texts for piece in text]
    lengths = np.array([len(text) for text in texts], dtype=np.int32)
    return TokenRows(np.array(flat, dtype=np.uint16), lengths)


def often_met(parts: list[tuple[PieceKeys, NDArray[np.int64]]]) -> PieceKeys:
    found = OftenMet()
    for part in parts:
        found.add(*part)
    return found.keys()


def expectation(
    t: dict[tuple[int, int], float], given: list[list[int]], asked: list[list[int]]
) -> dict[tuple[int, int], float]:
    """c(asked | given) of equations 17 and 18 of Brown et al., over distinct pieces and none."""
    counts: dict[tuple[int, int], float] = defaultdict(float)
    for ours, theirs in zip(asked, given, strict=True):
        for piece in set(ours):
            sums = sum(t.get((other, piece), 0.0) for other in {*theirs, BOS})
            for other in {*theirs, BOS}:
                if (other, piece) in t:
                    counts[other, piece] += t[other, piece] / sums
    return counts


def test_expectation_and_maximisation_are_those_of_the_paper() -> None:
    keys = often_met([met_keys(rows(SOURCES), rows(TARGETS), target_vocab_size=SIZE)])
    known = {(int(key) // SIZE, int(key) % SIZE) for key in keys}
    meetings: dict[tuple[int, int], int] = defaultdict(int)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        for pair in {(s, t) for s in {*source, BOS} for t in {*target, BOS}} - {(BOS, BOS)}:
            meetings[pair] += 1
    assert known == {pair for pair, count in meetings.items() if count >= 2}
    table = LexicalTable.uniform(keys, vocab_sizes=(SIZE, SIZE))
    forward = dict.fromkeys(known, 1.0)
    for _ in range(3):
        counts = table.counts(rows(SOURCES), rows(TARGETS))
        table = LexicalTable.of(keys, counts, last=False)
        expected = expectation(forward, SOURCES, TARGETS)
        sums: dict[int, float] = defaultdict(float)
        for (source_piece, _), count in expected.items():
            sums[source_piece] += count
        forward = {pair: count / sums[pair[0]] for pair, count in expected.items()}
        for key, found in zip(keys, table.forward, strict=True):
            pair = (int(key) // SIZE, int(key) % SIZE)
            assert found == pytest.approx(forward.get(pair, 0.0), abs=1e-12)
    source_pieces = [piece for text in SOURCES for piece in set(text)]
    assert table.source[7] == source_pieces.count(7) / len(source_pieces)


def test_both_directions_are_the_same_with_the_sides_exchanged() -> None:
    def table(sources: list[list[int]], targets: list[list[int]]) -> LexicalTable:
        keys = often_met([met_keys(rows(sources), rows(targets), target_vocab_size=SIZE)])
        uniform = LexicalTable.uniform(keys, vocab_sizes=(SIZE, SIZE))
        return LexicalTable.of(keys, uniform.counts(rows(sources), rows(targets)), last=True)

    one, other = table(SOURCES, TARGETS), table(TARGETS, SOURCES)
    gains = one.gains(rows(SOURCES), rows(TARGETS))
    assert gains == pytest.approx(other.gains(rows(TARGETS), rows(SOURCES)))


def test_a_gain_is_the_mean_log_ratio_over_pieces() -> None:
    keys = np.array([4 * SIZE + 5, 6 * SIZE + 7])
    half = np.full(SIZE, 0.5)
    table = LexicalTable(keys, np.array([0.9, 0.6]), np.array([0.9, 0.6]), half, half)
    pair = rows([[4, 6]]), rows([[5, 7, 7]])
    expected = [math.log((p / 3 + 0.001 * 0.5) / (0.5 * 1.001)) for p in (0.9, 0.6)]
    assert table.gains(*pair) == pytest.approx([sum(expected) / 2])


def test_parts_add_up_to_the_whole_and_may_be_empty() -> None:
    whole = met_keys(rows(SOURCES), rows(TARGETS), target_vocab_size=SIZE)
    parts = [
        met_keys(rows(SOURCES[part]), rows(TARGETS[part]), target_vocab_size=SIZE)
        for part in (slice(0, 1), slice(1, 1), slice(1, 4))
    ]
    keys = often_met([whole])
    assert np.array_equal(often_met(parts), keys)
    table = LexicalTable.uniform(keys, vocab_sizes=(SIZE, SIZE))
    sums = table.counts(rows([]), rows([]))
    for pair in zip(SOURCES, TARGETS, strict=True):
        sums = sums + table.counts(*(rows([side]) for side in pair))
    at_once = table.counts(rows(SOURCES), rows(TARGETS))
    for name in Counts.__slots__:
        assert getattr(sums, name) == pytest.approx(getattr(at_once, name))


def some_wrong(pairs: int) -> list[tuple[str, str]]:
    """Real pairs; the targets of every tenth and the one after it are exchanged."""
    english, german = real_lines("train", "en")[:pairs], real_lines("train", "de")[:pairs]
    for row in range(0, pairs - 1, 10):
        german[row], german[row + 1] = german[row + 1], german[row]
    return [*zip(english, german, strict=True)]


def corpus(folder: Path, pairs: int, workers: int = 1) -> Manifest:
    """Made of `some_wrong`."""
    lines = [f"{source}\t{target}\n" for source, target in some_wrong(pairs)]
    (folder / "a.tsv").write_text("".join(lines), "utf-8")
    config = CorpusConfig.model_validate(
        {
            "folder": str(folder),
            "train": [{"tsv": "a.tsv"}],
            "source_language": "en",
            "target_language": "de",
            "subword": {"vocab_size": 1000},
            "filters": {"min_lexical_gain": -0.6},
        }
    )
    return prepare(config, folder / f"prepared-{workers}", workers=workers)


def test_pairs_that_belong_to_others_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.corpus.prepare.LEAST_PAIRS", 1000)
    manifest = corpus(tmp_path, 1500)
    dropped = [
        one for one in read_rejected(tmp_path / "prepared-1", "train") if one.filter == "lexical"
    ]
    assert all(one.score < -0.6 for one in dropped)
    wrong = sum((one.line - 1) % 10 < 2 for one in dropped)
    assert wrong > 0.8 * 300
    assert len(dropped) - wrong < 0.2 * 1200
    assert manifest.train.dropped["lexical"] == len(dropped)
    surveys = json.loads((tmp_path / "prepared-1/rejected/filters.json").read_bytes())
    assert "lexical" in json.dumps(surveys)


@pytest.mark.system
def test_each_direction_is_judged_as_if_it_were_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one table of all directions, a source predicts a target merely by its language."""
    monkeypatch.setattr("dragoman.corpus.prepare.LEAST_PAIRS", 1000)
    monkeypatch.setattr("dragoman.corpus.prepare.SAMPLE_PAIRS", 500)  # too few: all are read
    pairs = some_wrong(1500)
    (tmp_path / "ende.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs), "utf-8")
    (tmp_path / "deen.tsv").write_text("".join(f"{two}\t{one}\n" for one, two in pairs), "utf-8")
    vocabulary: tuple[bytes, bytes] | None = None
    found = {}
    for name in ("both", "ende", "deen"):
        entries = [
            {"tsv": f"{way}.tsv", "source_language": way[:2], "target_language": way[2:]}
            for way in ("ende", "deen")
            if name in (way, "both")
        ]
        config = CorpusConfig.model_validate(
            {
                "folder": str(tmp_path),
                "train": entries,
                "subword": {"vocab_size": 1000, "joint": True},
                "language_token": True,
                "filters": {"min_lexical_gain": -0.6},
            }
        )
        prepare(config, tmp_path / name, workers=1, vocabulary=vocabulary)
        source, target = (tmp_path / name / f"{side}.model" for side in ("source", "target"))
        vocabulary = source.read_bytes(), target.read_bytes()
        for one in read_rejected(tmp_path / name, "train"):
            if one.filter == "lexical":
                found[name, Path(one.file).stem, one.line] = one.score
    for way in ("ende", "deen"):
        alone = {line: score for (name, _, line), score in found.items() if name == way}
        together = {
            line: score
            for (name, file, line), score in found.items()
            if (name, file) == ("both", way)
        }
        assert together == pytest.approx(alone)
        assert sum((line - 1) % 10 < 2 for line in alone) > 0.8 * 300


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    one, two = corpus(tmp_path, 6000, 1), corpus(tmp_path, 6000, 2)
    assert one.digest == two.digest
    for name in ("train.tsv.zst", "filters.json"):
        files = [tmp_path / f"prepared-{workers}" / "rejected" / name for workers in (1, 2)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_too_few_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError, match=r"min_lexical_gain: 4[0-9]+ pairs are too few to learn which words"
    ):
        corpus(tmp_path, 500)
