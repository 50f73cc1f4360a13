"""The stages that need the whole cleaned text: subword models and encoding.

What a worker needs is opened from the workplace, so nothing large is sent to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from dragoman.base.files import write_whole
from dragoman.corpus.clean import run_path
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.dedup import HeldOutSides
from dragoman.corpus.encode import PartReport, RangeEncoder
from dragoman.corpus.runs import KeyRange, SortedRuns
from dragoman.corpus.selection import Selector
from dragoman.corpus.shards import SIDES
from dragoman.corpus.split import HELD_OUT_SPLITS, read_text
from dragoman.corpus.subword import RowEncoder, Subword, count_words, train_on_words
from dragoman.corpus.workers import parallel_map
from dragoman.corpus.workplace import Workplace


def open_runs(place: Workplace) -> SortedRuns:
    """The cleaned training text."""
    num_blocks = len(place.recall("clean")["files"])
    return SortedRuns([run_path(place.runs, index) for index in range(num_blocks)])


def open_selector(place: Workplace, config: CorpusConfig) -> Selector:
    """What decides which of the cleaned pairs stay."""
    held_out = np.array(place.recall("hold_out")["keys"], dtype=np.uint64)
    sides = HeldOutSides()
    for split in HELD_OUT_SPLITS:
        for source, target in read_text(place.result / split):
            sides.add(source, target)
    return Selector(config.filters, held_out=held_out, sides=sides)


def open_encoders(place: Workplace, config: CorpusConfig) -> tuple[RowEncoder, RowEncoder]:
    """The encoders of both sides; one and the same where the model is joint."""
    source = RowEncoder(Subword.load(place.result / "source.model"), config.subword)
    if config.subword.joint:
        return source, source
    return source, RowEncoder(Subword.load(place.result / "target.model"), config.subword)


def learn_models(place: Workplace, config: CorpusConfig, *, workers: int) -> None:
    """Write source.model and target.model; the same bytes where the model is joint.

    Each is trained in a process of its own, one after the other, whose memory ends with it.
    """
    for side in SIDES:
        path = place.result / f"{side}.model"
        if path.exists():
            continue
        if config.subword.joint and side == "target":
            write_whole(path, (place.result / "source.model").read_bytes())
        else:
            learner = partial(_Learner, place, config, workers)
            list(parallel_map(learner, [side], workers=workers))


def encode(place: Workplace, config: CorpusConfig, *, workers: int) -> Iterator[PartReport]:
    """Encode the training text, a range of keys at a time; reports in the order of the keys."""
    parts = open_runs(place).ranges()
    return parallel_map(partial(_range_encoder, place, config), parts, workers=workers)


class _Learner:
    """Trains the model of one side on a sample; the source's is that of both where it is joint."""

    def __init__(self, place: Workplace, config: CorpusConfig, workers: int) -> None:
        self._place = place
        self._config = config
        self._workers = workers

    def __call__(self, side: str) -> None:
        subword = self._config.subword
        sides = SIDES if subword.joint else (side,)
        sample = open_runs(self._place).ranges(max_pairs=subword.sample_sentences // len(sides))
        counter = partial(_WordCounter, self._place, self._config, sides)
        word_counts = Counter[str]()
        for counts in parallel_map(counter, sample, workers=self._workers):
            word_counts.update(counts)
        model = train_on_words(word_counts, subword)
        write_whole(self._place.result / f"{side}.model", model)


class _WordCounter:
    """Counts the words of some sides in the pairs of a range that stay."""

    def __init__(self, place: Workplace, config: CorpusConfig, sides: tuple[str, ...]) -> None:
        self._runs = open_runs(place)
        self._selector = open_selector(place, config)
        self._sides = sides

    def __call__(self, part: KeyRange) -> Counter[str]:
        selected = self._selector.select(self._runs.read(part))
        texts = {"source": selected.sources, "target": selected.targets}
        return count_words([text for side in self._sides for text in texts[side]])


def _range_encoder(place: Workplace, config: CorpusConfig) -> RangeEncoder:
    return RangeEncoder(
        config,
        runs=open_runs(place),
        files=place.recall("clean")["files"],
        selector=open_selector(place, config),
        encoders=open_encoders(place, config),
        parts=place.parts,
    )
