"""The stages that need the whole cleaned text: subword models and encoding.

What a worker needs is opened from the workplace, so nothing large is sent to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from dragoman.corpus.clean import run_path
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.dedup import HeldOutSides
from dragoman.corpus.encode import KeyRange, PartReport, RangeEncoder
from dragoman.corpus.files import write_whole
from dragoman.corpus.runs import SortedRuns
from dragoman.corpus.selection import Selector, sample
from dragoman.corpus.shards import SIDES
from dragoman.corpus.split import HELD_OUT_SPLITS, read_text
from dragoman.corpus.subword import RowEncoder, Subword, train_subword
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
            list(parallel_map(partial(_ModelTask, place, config), [side], workers=workers))


def encode(place: Workplace, config: CorpusConfig, *, workers: int) -> Iterator[PartReport]:
    """Encode the training text, a range of keys at a time; reports in the order of the keys."""
    ranges = open_runs(place).ranges()
    parts = [KeyRange(number, low, high) for number, (low, high) in enumerate(ranges)]
    return parallel_map(partial(_range_encoder, place, config), parts, workers=workers)


class _ModelTask:
    """Trains the model of one side on a sample; the source's is that of both where it is joint."""

    def __init__(self, place: Workplace, config: CorpusConfig) -> None:
        self._place = place
        self._config = config

    def __call__(self, side: str) -> None:
        model = train_subword(self._texts(side), self._config.subword)
        write_whole(self._place.result / f"{side}.model", model)

    def _texts(self, side: str) -> Iterator[list[str]]:
        subword = self._config.subword
        pairs = sample(
            open_runs(self._place),
            open_selector(self._place, self._config),
            max_pairs=subword.sample_sentences // (1 + subword.joint) or 1,
        )
        for sources, targets in pairs:
            if subword.joint:
                yield sources + targets
            else:
                yield sources if side == "source" else targets


def _range_encoder(place: Workplace, config: CorpusConfig) -> RangeEncoder:
    return RangeEncoder(
        config,
        runs=open_runs(place),
        files=place.recall("clean")["files"],
        selector=open_selector(place, config),
        encoders=open_encoders(place, config),
        parts=place.parts,
    )
