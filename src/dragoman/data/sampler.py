"""Which pairs form which batch: a pure function of (seed, stage, epoch, position).

An update is a few groups of pairs. The pairs of a group are of like length, so that padding them
costs little; the groups of an update are drawn at random.

The lengths in the groups are planned once for a run; in every epoch, other pairs of the same
lengths fill them. So every epoch has the same number of updates, an update's number alone gives its
epoch and position, and a run resumes from one integer without planning earlier epochs.

Pairs are ordered by target length, and by source length within one target length, alternately
ascending and descending, so that sources are alike at the border of two target lengths. Ordering by
both keeps the padding of both sides low; alternating halves that of the source side. If groups are
so large that few of them share one target length, neighbouring lengths count as one.

A mixture draws more or fewer pairs of an entry of text than it has. Every entry fills a fixed
number of places in an epoch, and each of its pairs is drawn once before any is drawn again. The
places of an entry are spread evenly over its pairs in the order of their lengths, from a start
that moves on from epoch to epoch (systematic sampling, Madow and Madow 1944). So a place always
holds pairs of about one length, and the lengths in the groups stay those that were planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.data.config import DataConfig

_SLOTS_STREAM: Final = 2**64 - 1
"""The stream of the random bits of the run; epoch n draws from streams 2n and 2n + 1."""
_ENTRY_STREAMS: Final = 2**40
_STAGE_STREAMS: Final = 2**56
"""The distance between the streams of two entries and of two stages."""
_MOST_ORDERS: Final = 1024
"""Orders of equal pairs in a mixture; a small entry with a large weight needs many turns."""
_SMALL_STRETCH: Final = 8
"""Fewer groups of a mixture than this are shuffled without regard to their lengths."""
_TARGET_STEPS: Final = (1, 2, 3, 4)
"""How many target lengths may count as one; the number that pads least is taken."""
_LONGEST_SORTED: Final = 2**16 - 1
"""Longer sides are grouped as if they were this long; their true length still counts as cells."""


class GlobalPosition(NamedTuple):
    """The position of an update: update `update` (from 0) of epoch `epoch` (from 0)."""

    epoch: int
    update: int


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The updates of one epoch, for all ranks together.

    pairs: indices of all pairs, group after group, shape (pairs,), int32 or int64.
    bounds: where groups begin and the last one ends, shape (groups + 1,).
    sequence: numbers of the groups in the order of training.
    groups_per_update: the last update of an epoch may have fewer.
    """

    pairs: NDArray[np.integer]
    bounds: NDArray[np.int64]
    sequence: NDArray[np.integer]
    groups_per_update: int

    @property
    def num_updates(self) -> int:
        """Updates in this epoch."""
        return -(-len(self.sequence) // self.groups_per_update)

    def update(self, position: int) -> list[NDArray[np.integer]]:
        """The groups of one update, each the indices of its pairs on all ranks."""
        if not 0 <= position < self.num_updates:
            raise IndexError(f"update {position} of an epoch of {self.num_updates}")
        first = position * self.groups_per_update
        return [
            self.pairs[self.bounds[group] : self.bounds[group + 1]]
            for group in self.sequence[first : first + self.groups_per_update]
        ]


class Sampler:
    """Plans the epochs of one stage of a run; most runs have one stage.

    source_lengths, target_lengths: pieces of every pair without end of sentence, shape (pairs,).
    mixture: draws more or fewer pairs of an entry of text than it has; None: every pair once.
    stage: number of the stage, from 0; each stage draws random bits of its own.

    Planning 4.5 million pairs took 1.4 s for the run and 0.25 s for each epoch, on one core; it
    needs 40 bytes per pair while it runs; 12 of them stay for the run and 4 for each plan.
    """

    def __init__(
        self,
        source_lengths: NDArray[np.integer],
        target_lengths: NDArray[np.integer],
        config: DataConfig,
        *,
        seed: int,
        mixture: Mixture | None = None,
        stage: int = 0,
    ) -> None:
        assert len(source_lengths) == len(target_lengths) > 0
        source_lengths, target_lengths = np.asarray(source_lengths), np.asarray(target_lengths)
        longest = padded_width(np.maximum(source_lengths, target_lengths), config.length_multiple)
        too_wide = longest > (config.batch_tokens or np.inf)
        self.groups_per_batch = config.groups(int(longest.max()))
        """Groups in one micro-batch; the last one of an epoch may have fewer."""
        self._groups_per_update = config.accumulate * self.groups_per_batch
        config = _of_groups(config, self.groups_per_batch)
        self._seed = seed
        self._stream = stage * _STAGE_STREAMS
        step = _target_step(source_lengths, target_lengths, config)
        keys = _length_keys(source_lengths, target_lengths, step)
        parts = [(np.arange(len(keys)), len(keys))] if mixture is None else mixture.parts()
        self._parts = [
            _Part(pairs, keys[pairs], draws, seed, self._stream + entry * _ENTRY_STREAMS)
            for entry, (pairs, draws) in enumerate(parts)
            if draws
        ]
        widest = _widest(source_lengths, target_lengths, config, step)
        widths = np.concatenate([part.widths(widest) for part in self._parts])
        self._slots = _slots(len(widths), config, seed, _SLOTS_STREAM - stage)
        if len(self._parts) > 1:
            lengths = np.concatenate([part.lengths() for part in self._parts])
            self._slots = np.argsort(lengths, kind="stable")[self._slots]
        self._bounds = _bounds(widths[self._slots], config)
        self.num_oversized = sum(int(too_wide[part.pairs].sum()) for part in self._parts)
        """Pairs longer than the budget; each is a micro-batch of its own, above the budget."""

    @property
    def num_groups(self) -> int:
        """Groups in every epoch."""
        return len(self._bounds) - 1

    @property
    def updates_per_epoch(self) -> int:
        """Updates in every epoch."""
        return -(-self.num_groups // self._groups_per_update)

    def position(self, updates_consumed: int) -> GlobalPosition:
        """The position of the next update, by the number of updates since the beginning of the
        stage."""
        return GlobalPosition(*divmod(updates_consumed, self.updates_per_epoch))

    def epoch(self, number: int) -> EpochPlan:
        """The plan of epoch `number`, which counts from 0."""
        drawn = np.concatenate([part.draw(number) for part in self._parts])
        sequence = _permutation(self.num_groups, self._seed, self._stream + 2 * number + 1)
        if len(self._parts) > 1:  # entries differ in length, and their shares must hold throughout
            sequence = _spread(np.arange(len(sequence)), sequence)
        return EpochPlan(
            pairs=drawn[self._slots],
            bounds=self._bounds,
            sequence=sequence,
            groups_per_update=self._groups_per_update,
        )


@dataclass(frozen=True, slots=True)
class Mixture:
    """The share of each entry of text in an epoch.

    entries: the entry of each pair, from 0, shape (pairs,).
    weights: for each entry, its share of the pairs in any unit; at least one is above 0.
    """

    entries: NDArray[np.integer]
    weights: tuple[float, ...]

    def parts(self) -> list[tuple[NDArray[np.int64], int]]:
        """The pairs of each entry, and how many of them an epoch draws.

        An epoch draws as many pairs as the entries with a weight above 0 have together. The shares
        are rounded down, and the remaining draws go to the largest fractions (Hamilton's method).
        Raises: CorpusError if these entries have no pair.
        """
        pairs = [np.flatnonzero(self.entries == entry) for entry in range(len(self.weights))]
        sizes = np.array([len(part) for part in pairs])
        weights = np.where(sizes > 0, self.weights, 0.0)
        total = int(sizes[weights > 0].sum())
        if not total:
            raise CorpusError(
                "no pair is left of the entries that a stage draws from",
                place="corpus.train",
                remedy="give a weight to another entry; if two entries hold the same pair, only "
                "the first keeps it (dragoman prepare lists the dropped pairs)",
            )
        exact = weights / weights.sum() * total
        draws = np.floor(exact).astype(np.int64)
        most = np.argsort(draws - exact, kind="stable")[: total - int(draws.sum())]
        draws[most] += 1
        return list(zip(pairs, draws.tolist(), strict=True))


class _Part:
    """Pairs of one entry. Every epoch draws the same number, each once before any is drawn again.

    pairs: their indices, ascending.
    keys: their length keys; see `_length_keys`.
    stream: the first stream of its random bits.
    """

    def __init__(
        self,
        pairs: NDArray[np.integer],
        keys: NDArray[np.uint32],
        num_draws: int,
        seed: int,
        stream: int,
    ) -> None:
        self.pairs = pairs.astype(_index_type(int(pairs[-1]) + 1))
        self._keys = keys
        self._num_draws = num_draws
        self._seed = seed
        self._stream = stream

    def widths(self, widest: NDArray[np.int64]) -> NDArray[np.int64]:
        """The largest number of cells of any pair that can fill each place, shape (draws,).

        widest: that number for each pair of the text, shape (pairs,); see `_widest`.
        """
        by_length: NDArray[np.int64] = widest[self.pairs[self._ranked(0)]]
        size, draws = len(by_length), self._num_draws
        if size == draws:
            return by_length
        first = np.arange(draws) * size // draws
        after_last = (np.arange(draws) * size + size - 1) // draws + 1
        # reduceat takes what lies between two bounds; every other result is between two places.
        bounds = np.stack((first, after_last), axis=1).ravel()
        return np.maximum.reduceat(np.append(by_length, 0), bounds)[::2]

    def lengths(self) -> NDArray[np.uint64]:
        """A number for each place, ascending, by which the places of several parts are sorted.

        It is the length key of the pair there and, in its lower bits, the rank of the place among
        those of this key. So pairs of one length from several parts are evenly mixed.
        """
        size, draws = len(self._keys), self._num_draws
        keys = np.sort(self._keys)[np.arange(draws) * size // draws]
        begin, end = np.searchsorted(keys, keys), np.searchsorted(keys, keys, side="right")
        fraction = ((2 * (np.arange(draws) - begin) + 1) << 31) // (end - begin)
        number: NDArray[np.uint64] = keys.astype(np.uint64) << np.uint64(32)
        return number | fraction.astype(np.uint64)

    def draw(self, epoch: int) -> NDArray[np.integer]:
        """The pair in each place, shape (draws,)."""
        size, draws = len(self.pairs), self._num_draws
        if size == draws:
            pairs: NDArray[np.integer] = self.pairs[self._ranked(epoch)]
            return pairs
        # Place j takes the pair of rank floor((j + u) * size / draws), u = epoch * draws / size
        # mod 1. So in `size` epochs each rank comes `draws` times, as evenly as may be.
        start = epoch * draws % size
        places = np.arange(draws)
        ranks = (places * size + start) // draws
        # How often this rank was drawn before decides which order of equal pairs it uses now.
        in_epoch = places - _ceil_div(ranks * draws - start, size)
        before = _ceil_div((ranks + 1) * draws, size) - _ceil_div((ranks + 1 - epoch) * draws, size)
        turns = (before + in_epoch) % _MOST_ORDERS
        by_turn = np.argsort(turns, kind="stable")
        used, first = np.unique(turns[by_turn], return_index=True)
        drawn = np.zeros_like(self.pairs, shape=draws)
        for turn, now in zip(used.tolist(), np.split(by_turn, first[1:]), strict=True):
            drawn[now] = self.pairs[self._ranked(turn)[ranks[now]]]
        return drawn

    def _ranked(self, turn: int) -> NDArray[np.integer]:
        """Its pairs by length; pairs of equal lengths in an order drawn for this turn."""
        drawn = _permutation(len(self.pairs), self._seed, self._stream + 2 * turn)
        ranked: NDArray[np.integer] = drawn[_order(self._keys[drawn])]
        return ranked


def _ceil_div(numbers: NDArray[np.int64], divisor: int) -> NDArray[np.int64]:
    return -(-numbers // divisor)


def _spread(groups: NDArray[np.integer], rank: NDArray[np.integer]) -> NDArray[np.integer]:
    """Groups in a random order in which any stretch has groups of all lengths.

    Two neighbours in length go into different halves of the result, and so on inside each half:
    a van der Corput sequence, scrambled (Owen 1995).
    groups: their numbers, by length. rank: a random place for every group.
    """
    if len(groups) <= _SMALL_STRETCH:
        return groups[np.argsort(rank[groups])]
    odd = groups[len(groups) // 2 * 2 :]
    pairs = groups[: len(groups) // 2 * 2].reshape(-1, 2)
    pairs = np.take_along_axis(pairs, np.argsort(rank[pairs], axis=1), axis=1)
    halves = [pairs[:, 0], pairs[:, 1]]
    if len(odd):
        half = int(rank[odd[0]]) % 2
        halves[half] = np.append(halves[half], odd)
    return np.concatenate([_spread(half, rank) for half in halves])


def rank_rows(
    groups: Sequence[NDArray[np.integer]], rank: int, world_size: int
) -> list[NDArray[np.integer]]:
    """The rows of each group of a micro-batch that one rank takes; none if there are too few.

    Neighbours are of like length, so dealing them out in turn gives every rank like work. Dealing
    goes on from group to group, so that the rest of each does not fall to the same ranks.
    """
    dealt = accumulate((len(group) for group in groups), initial=0)
    return [
        group[(rank - before) % world_size :: world_size]
        for group, before in zip(groups, dealt, strict=False)
    ]


def _of_groups(config: DataConfig, groups: int) -> DataConfig:
    """The settings with the budget of one group in place of that of a micro-batch."""
    if config.batch_tokens is not None:
        return config.model_copy(update={"batch_tokens": config.batch_tokens // groups})
    assert config.batch_sentences is not None
    return config.model_copy(update={"batch_sentences": config.batch_sentences // groups})


def padded_width(longest: NDArray[np.integer], length_multiple: int) -> NDArray[np.int64]:
    """Cells of a row of this many pieces with its end of sentence, rounded up as configured."""
    return -(-(longest.astype(np.int64) + 1) // length_multiple) * length_multiple


def _target_step(
    source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer], config: DataConfig
) -> int:
    """How many target lengths to treat as one so that the groups have the fewest cells."""
    if not config.bucket:
        return config.length_multiple
    # Pairs are grouped inside pools, so a sample of the size of a pool shows how good a step is.
    stride = -(-len(source_lengths) // config.pool_pairs)
    source, target = source_lengths[::stride], target_lengths[::stride]
    steps = [config.length_multiple * factor for factor in _TARGET_STEPS]
    return min(steps, key=lambda step: _num_cells(source, target, config, step))


def _num_cells(
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    config: DataConfig,
    step: int,
) -> int:
    """Cells of both sides of all groups, if the pairs were one pool."""
    order = _order(_length_keys(source_lengths, target_lengths, step))
    source = padded_width(source_lengths[order], config.length_multiple)
    target = padded_width(target_lengths[order], config.length_multiple)
    bounds = _bounds(_widest(source_lengths[order], target_lengths[order], config, step), config)
    longest = np.maximum.reduceat(source, bounds[:-1]) + np.maximum.reduceat(target, bounds[:-1])
    return int((longest * np.diff(bounds)).sum())


def _length_keys(
    source_lengths: NDArray[np.integer], target_lengths: NDArray[np.integer], step: int
) -> NDArray[np.uint32]:
    """Numbers in whose order neighbours pad each other least: target, then source up or down.

    step: this many target lengths, from a multiple of it on, count as one.
    """
    source = np.minimum(source_lengths, _LONGEST_SORTED).astype(np.uint32)
    target = padded_width(target_lengths, step) // step
    target = np.minimum(target, _LONGEST_SORTED).astype(np.uint32)
    descending = target % 2 == 1
    source[descending] = _LONGEST_SORTED - source[descending]
    keys: NDArray[np.uint32] = target << np.uint32(16) | source
    return keys


def _slots(num_pairs: int, config: DataConfig, seed: int, stream: int) -> NDArray[np.integer]:
    """Places in the order of lengths, in the order in which groups are cut from them.

    Pools are drawn at random and sorted inside; every other one runs from long to short, so that
    a group on the seam of two pools holds like lengths.
    """
    if config.bucket and config.pool_pairs >= num_pairs:
        return np.arange(num_pairs, dtype=_index_type(num_pairs))
    slots = _permutation(num_pairs, seed, stream)
    if not config.bucket:
        return slots
    for number, first in enumerate(range(0, num_pairs, config.pool_pairs)):
        pool = slots[first : first + config.pool_pairs]
        pool[:] = np.sort(pool)[:: -1 if number % 2 else 1]
    return slots


def _widest(
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
    config: DataConfig,
    step: int,
) -> NDArray[np.int64]:
    """For each pair, the most cells that the longer side of a pair with the same key may have.

    Another epoch may put another pair of this key in its place, with a longer target.
    """
    source = padded_width(source_lengths, config.length_multiple)
    widest: NDArray[np.int64] = np.maximum(source, padded_width(target_lengths, step))
    return widest


def _bounds(widths: NDArray[np.int64], config: DataConfig) -> NDArray[np.int64]:
    """Cut rows of these widths into groups as large as the settings allow, in order."""
    num_rows = len(widths)
    if config.batch_sentences is not None:
        starts = range(0, num_rows, config.batch_sentences)
        return np.array([*starts, num_rows], dtype=np.int64)
    assert config.batch_tokens is not None
    bounds = [0]
    while bounds[-1] < num_rows:
        first = bounds[-1]
        at_most = max(1, config.batch_tokens // int(widths[first]))
        longest = np.maximum.accumulate(widths[first : first + at_most])
        cells = longest * np.arange(1, len(longest) + 1)
        # Cells only grow with every row, so those within the budget are the first ones.
        bounds.append(first + max(1, int(np.count_nonzero(cells <= config.batch_tokens))))
    return np.array(bounds, dtype=np.int64)


def _permutation(size: int, seed: int, stream: int) -> NDArray[np.integer]:
    """0 to size - 1 in a random order, the same with every numpy and on every processor.

    NumPy keeps the raw bits of Philox the same for ever, but not the numbers that Generator makes
    from them.
    """
    key = np.array([seed % 2**64, stream], dtype=np.uint64)
    return _order(np.random.Philox(key=key).random_raw(size) >> np.uint64(32))


def _order(keys: NDArray[np.unsignedinteger]) -> NDArray[np.integer]:
    """Indices that sort numbers below 2^32; equal ones keep their order.

    Sorting key and index packed into one number is several times faster than argsort.
    """
    assert len(keys) < 2**32
    packed = keys.astype(np.uint64) << np.uint64(32) | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64(2**32 - 1)
    return packed.astype(_index_type(len(keys)))


def _index_type(size: int) -> type[np.integer]:
    return np.int32 if size <= 2**31 else np.int64
