"""Batches made ahead of time in a thread, so that training rarely waits.

The thread runs NumPy only: no operation of PyTorch, whose thread pool and memory belong to the
training thread. The plan of the next epoch is made by a second thread while this one lasts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.batch import Batch, make_batch
from dragoman.data.config import DataConfig
from dragoman.data.sampler import EpochPlan, Mixture, Sampler, padded_width, rank_rows
from dragoman.data.subword_sampling import SubwordSampling


class PairStore(Protocol):
    """The pairs that batches are made from: corpus.shards.TokenShards, or the same in memory.

    Lengths are pieces without end of sentence, shape (pairs,).
    """

    @property
    def source_lengths(self) -> NDArray[np.integer]:
        """Pieces of every source."""

    @property
    def target_lengths(self) -> NDArray[np.integer]:
        """Pieces of every target."""

    def gather(
        self, indices: NDArray[np.int64], /
    ) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]:
        """The pairs at `indices`: source pieces end to end, source lengths, and both of targets."""


@dataclass(frozen=True, slots=True)
class Update:
    """The batches of one update.

    update_index: steps of the run before this one; epoch counts from 0.
    micro_batches: this rank's rows, on the device; a micro-batch may have no row for this rank.
    global_...: totals of all micro-batches and ranks, known without communication. Tokens count
        the end of sentence; cells are those of both padded sides; cells minus tokens are padding.
    """

    update_index: int
    epoch: int
    micro_batches: list[Batch]
    global_target_tokens: int
    global_source_tokens: int
    global_pairs: int
    global_cells: int


class Stage(NamedTuple):
    """A stretch of a run: its first update, and its mixture of text; None: every pair once."""

    first_update: int
    mixture: Mixture | None


class BatchStream:
    """The updates of a run from `start_update` on, without end; close it, or use it in a `with`.

    seed, stages, start_update: equal values give equal global batches on any number of ranks.
    stages: in their order, the first from update 0 on; the last one has no end.
    device: the device of the micro-batches; copies to a GPU do not block, as they come from
        page-locked memory.
    sampling: splits pieces of each update at random; None: pairs stay as they are.

    An error in making a batch is raised by `next` instead of that batch.
    """

    def __init__(
        self,
        shards: PairStore,
        config: DataConfig,
        *,
        seed: int,
        rank: int,
        world_size: int,
        start_update: int,
        device: torch.device,
        stages: Sequence[Stage] = (Stage(0, None),),
        sampling: SubwordSampling | None = None,
    ) -> None:
        self._shards = shards
        self._sampling = sampling
        self._config = config
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._first_updates = [stage.first_update for stage in stages]
        self.samplers = [
            Sampler(
                shards.source_lengths,
                shards.target_lengths,
                config,
                seed=seed,
                mixture=stage.mixture,
                stage=number,
            )
            for number, stage in enumerate(stages)
        ]
        self._made: SimpleQueue[Update | BaseException] = SimpleQueue()
        self._room = threading.Semaphore(config.prefetch_batches)
        self._closing = False
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plan-epoch")
        self._thread = threading.Thread(
            target=self._make_updates, args=(start_update,), name="make-batches", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        """The next update; during this call the training waits for data."""
        update = self._made.get()
        if isinstance(update, BaseException):
            self._made.put(update)
            raise update
        self._room.release()
        if self._device.type == "cpu":
            return update
        return replace(
            update, micro_batches=[batch.to(self._device) for batch in update.micro_batches]
        )

    def queued(self) -> int:
        """Updates that are ready; if it is 0 again and again, training waits for data."""
        return self._made.qsize()

    def close(self) -> None:
        """Stop the threads; updates that were made but not taken are dropped."""
        self._closing = True
        self._room.release()
        self._thread.join()
        self._planner.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_updates(self, start_update: int) -> None:
        try:
            for update_index, epoch, groups in self._planned(start_update):
                self._room.acquire()
                if self._closing:
                    return
                self._made.put(self._make(update_index, epoch, groups))
        except BaseException as error:
            self._made.put(error)

    def _planned(self, start_update: int) -> Iterator[tuple[int, int, list[NDArray[np.integer]]]]:
        """The number, the epoch and the pair indices of the groups of each update."""
        epochs_before = 0
        ends: list[float] = [*self._first_updates[1:], math.inf]
        for sampler, begin, end in zip(self.samplers, self._first_updates, ends, strict=True):
            if start_update < end:
                first_update = max(start_update, begin)
                stage = self._planned_stage(sampler, first_update - begin, end - begin)
                for update, (epoch, groups) in enumerate(stage, start=first_update):
                    yield update, epochs_before + epoch, groups
            if end < math.inf:
                epochs_before += math.ceil((end - begin) / sampler.updates_per_epoch)

    def _planned_stage(
        self, sampler: Sampler, start_update: int, end_update: float
    ) -> Iterator[tuple[int, list[NDArray[np.integer]]]]:
        """As `_planned`, for one stage, whose updates and epochs count from 0."""
        epoch, first = sampler.position(start_update)
        plan = sampler.epoch(epoch)
        left = end_update - start_update
        while True:
            next_plan: Future[EpochPlan] = self._planner.submit(sampler.epoch, epoch + 1)
            for position in range(first, plan.num_updates):
                if not left:
                    return
                yield epoch, plan.update(position)
                left -= 1
            plan, epoch, first = next_plan.result(), epoch + 1, 0

    def _make(self, update_index: int, epoch: int, groups: Sequence[NDArray[np.integer]]) -> Update:
        pairs, shards = np.concatenate(groups).astype(np.int64), self._shards
        if self._sampling is not None:  # every rank needs the lengths of all pairs of the update
            shards = self._sampling.sampled(shards.gather(pairs), update_index)
            ends = np.cumsum([len(group) for group in groups])
            pairs = np.arange(len(pairs))
            groups = np.split(pairs, ends[:-1])
        size = self.samplers[0].groups_per_batch  # the same in all stages: all have the same pairs
        micro_batches = [groups[first : first + size] for first in range(0, len(groups), size)]
        return Update(
            update_index=update_index,
            epoch=epoch,
            micro_batches=[self._batch(shards, of_batch) for of_batch in micro_batches],
            global_target_tokens=int(shards.target_lengths[pairs].sum()) + len(pairs),
            global_source_tokens=int(shards.source_lengths[pairs].sum()) + len(pairs),
            global_pairs=len(pairs),
            global_cells=sum(self._cells(shards, of_batch) for of_batch in micro_batches),
        )

    def _batch(self, shards: PairStore, groups: Sequence[NDArray[np.integer]]) -> Batch:
        rows = rank_rows(groups, self._rank, self._world_size)
        batch = make_batch(
            *shards.gather(np.concatenate(rows).astype(np.int64)),
            length_multiple=self._config.length_multiple,
            group_rows=[len(group) for group in rows if len(group)] if len(rows) > 1 else (),
        )
        return batch.pin() if self._device.type == "cuda" else batch

    def _cells(self, shards: PairStore, groups: Sequence[NDArray[np.integer]]) -> int:
        """Cells of both sides on all ranks, each of which pads a group to the longest of its own
        rows; a small model on a GPU in fp32 pads all groups to one length, which is not counted."""
        cells = 0
        for rank in range(min(self._world_size, sum(map(len, groups)))):
            for rows in rank_rows(groups, rank, self._world_size):
                for lengths in (shards.source_lengths, shards.target_lengths):
                    widths = padded_width(lengths[rows], self._config.length_multiple)
                    cells += len(rows) * int(widths.max(initial=0))
        return cells
