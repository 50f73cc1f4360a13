"""Requests of many clients -> batches, as soon as a worker is free.

Rows wait while all workers are busy. A free worker takes its share: the row whose turn it is and
those nearest to it in length, because a batch runs as long as its longest row. A batch of few rows
is expensive, and clients tend to ask again as soon as they have an answer. So a worker whose
neighbour is still busy waits for as many rows as it has just answered, but at most a tenth of the
time of that batch.

No search can be broken off, so a request of many rows gets little of a worker at a time:

- Requests take turns. Those of which no batch is under way go first, so one request never holds all
  workers while others wait.
- In its turn a request has rows for half a second of one worker, at the speed that its earlier rows
  had: a model that repeats itself up to the length limit takes ten times as long for a row.
- It has a tenth of a second before its speed is known, beside a batch of its turn, in the turn of
  another request, and if there is but one worker. Until the first batch has told the speed, further
  ones have a row each.
- One row of each request is always taken, whatever it costs. So a sentence waits for one batch of a
  long request at most, or for one row of it, if that takes longer.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from dragoman.base import units
from dragoman.base.errors import DragomanError
from dragoman.base.memory import give_back
from dragoman.formats.ctranslate2_engine import Candidate, CTranslate2Engine
from dragoman.model.config import SearchConfig

Step = Callable[[CTranslate2Engine], Any]
_ROWS_IN_TURN: Final = 16
_CHOICE_ROWS: Final = 512
"""Most rows from which a batch is chosen; the time of looking at the queue grows with it."""
_ENOUGH_CHOICE: Final = 2
"""Rows waiting, as a multiple of the last batch, from which no more are waited for."""
_TURN_S: Final = 0.5
"""Seconds of a batch for the rows of one request in its turn, beyond its first row."""
_SHORT_TURN_S: Final = 0.1
"""The same where others would wait for it, or before its speed is known."""
_MEMORY: Final = 0.8
"""Share of the past in a moving average."""
_PAUSE_SHARE: Final = 0.1
_LONGEST_PAUSE_S: Final = 0.02
_IDLE_S: Final = 1.0
"""Seconds without work until memory is given back: the next batch would need it again."""


class OverloadedError(DragomanError):
    """More rows wait than can be translated in time. retry_s: when to try again."""

    def __init__(self, retry_s: float) -> None:
        after = units.DURATION.text(math.ceil(retry_s))
        super().__init__("the server is busy", remedy=f"try again in {after}")
        self.retry_s = retry_s


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """The rows of one request: those not yet begun, and the results of the others.

    waiting_pieces: of the rows not yet begun. num_running: batches under way that have rows of it.
    has_turn: whether one of them is its turn. pieces_per_s: of a worker, in the batches with its
        rows; 0 before the first.
    """

    rows: Sequence[list[int]]
    search: SearchConfig
    num_hypotheses: int
    done: asyncio.Future[None]
    waiting: dict[int, None]
    waiting_pieces: int
    found: dict[int, list[Candidate]] = field(default_factory=dict)
    num_running: int = 0
    has_turn: bool = False
    pieces_per_s: float = 0.0

    def before(self, turns: int) -> float:
        """The pieces of this request that go before one that comes now and takes so many turns."""
        share = min(1.0, turns * _ROWS_IN_TURN / max(1, len(self.waiting)))
        return share * self.waiting_pieces


@dataclass(slots=True)
class Batcher:
    """One queue for one engine; lives in one event loop.

    max_waiting_pieces: a request with which more would wait, of it and of what goes before it, is
        refused, unless nothing goes before it.
    max_wait_s: a request that would have to wait longer, at the measured speed, is refused.
    num_with_turns: requests with terms.
    """

    engine: CTranslate2Engine
    max_waiting_pieces: int
    max_wait_s: float
    waiting_pieces: int = 0
    pieces_per_s: float = 0.0
    pieces_per_character: float = 0.0
    """As `turns_per_row` and `turn_s`, a moving average; 0 before the first."""
    turns_per_row: float = 0.0
    turn_s: float = 0.0
    num_with_turns: int = 0
    num_rows: int = 0
    _jobs: deque[_QueuedRequest] = field(default_factory=deque)
    _waiting_rows: int = 0
    _running: int = 0
    _running_rows: int = 0
    _expected_rows: int = 0
    _pause: asyncio.TimerHandle | None = None
    _idle: asyncio.TimerHandle | None = None
    _pool: ThreadPoolExecutor = field(init=False)
    _turns: asyncio.Semaphore = field(init=False)
    _in_turn: set[Future[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.engine.num_workers, "batch")
        self._turns = asyncio.Semaphore(self.engine.num_workers)

    async def translate(
        self, rows: Sequence[list[int]], search: SearchConfig, *, num_hypotheses: int = 1
    ) -> list[list[Candidate]]:
        """The best translations of each row, best first.

        Raises OverloadedError at once if too much is waiting. If it is cancelled, its rows leave
        the queue.
        """
        if not rows:
            return []
        pieces = sum(len(row) + 1 for row in rows)
        self.admit(pieces, len(rows))
        loop = asyncio.get_running_loop()
        waiting = dict.fromkeys(range(len(rows)))
        job = _QueuedRequest(rows, search, num_hypotheses, loop.create_future(), waiting, pieces)
        self.waiting_pieces += pieces
        self._waiting_rows += len(rows)
        self._jobs.append(job)
        if self._waiting_rows >= self._expected_rows:
            loop.call_soon(self._pump)
        try:
            await job.done
        finally:  # rows that have not begun leave the queue
            self.waiting_pieces -= job.waiting_pieces
            self._waiting_rows -= len(job.waiting)
            job.waiting.clear()
            job.waiting_pieces = 0
        return [job.found[row] for row in range(len(rows))]

    @contextmanager
    def with_turns(self, rows: int) -> Iterator[Callable[[Step], Awaitable[Any]]]:
        """A function that waits for a turn and says what the engine answers.

        rows: those of the request that have terms, each of which takes turns; 0: hardly any turn.

        Those who ask take turns, and no more than the workers have a turn at a time, so that a
        batch waits for one turn at most. If a turn is cancelled before it begins, it never does.

        Raises OverloadedError if all turns together would take too long, at the measured speed.
        """
        wait_s = rows * self.turns_per_row * self.turn_s * self.num_with_turns
        wait_s /= self.engine.num_workers
        if wait_s > self.max_wait_s:
            raise OverloadedError(max(1.0, wait_s / 2))
        taken_s: list[float] = []

        def timed(step: Step) -> Any:
            started = time.perf_counter()
            answer = step(self.engine)
            taken_s.append(time.perf_counter() - started)
            return answer

        async def turn(step: Step) -> Any:
            async with self._turns:
                asked = self._pool.submit(timed, step)
                self._in_turn.add(asked)
                asked.add_done_callback(self._in_turn.discard)
                return await asyncio.wrap_future(asked)

        self.num_with_turns += rows > 0
        try:
            yield turn
        finally:
            self.num_with_turns -= rows > 0
        if taken_s and rows:
            self.turn_s = _average(self.turn_s, statistics.mean(taken_s))
            self.turns_per_row = _average(self.turns_per_row, len(taken_s) / rows)

    def close(self) -> None:
        """Begin no more batches. One under way goes on: a search cannot be broken off."""
        if self._idle is not None:
            self._idle.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def is_searching(self) -> bool:
        """Whether a batch or a turn is under way."""
        return self._running > 0 or bool(self._in_turn)

    def admit(self, pieces: int = 1, rows: int = 1) -> None:
        """Raises OverloadedError if a request of so many pieces and rows would wait too long."""
        if retry_s := self.retry_s(pieces, rows):
            raise OverloadedError(retry_s)

    def retry_s(self, pieces: int = 1, rows: int = 1) -> float:
        """When to try again with a request that would wait too long; 0 if it would not.

        Requests take turns: of a long one only as many rows go before it as its own turns let by.
        """
        turns = -(-rows // _ROWS_IN_TURN)
        before = sum(job.before(turns) for job in self._jobs)
        wait_s = before / self.pieces_per_s if self.pieces_per_s else 0.0
        if before and (before + pieces > self.max_waiting_pieces or wait_s > self.max_wait_s):
            return max(1.0, wait_s / 2)
        return 0.0

    def admit_text(self, characters: int) -> None:
        """`admit` for a text that is not cut into pieces yet, by about how many it has.

        Cutting takes as long as all else of a refusal together.
        """
        self.admit(max(1, round(characters * self.pieces_per_character)))

    def learn(self, characters: int, pieces: int) -> None:
        """Take note of how many pieces a text has."""
        if characters:
            self.pieces_per_character = _average(self.pieces_per_character, pieces / characters)

    def _pump(self) -> None:
        """Give every free worker a batch, the longer rows together."""
        self._expected_rows = 0
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._jobs = deque(job for job in self._jobs if job.waiting)  # others have left the queue
        while self._jobs and self._running < self.engine.num_workers:
            # Requests of which no batch is under way go first.
            first = min(self._jobs, key=lambda job: job.num_running > 0)
            self._start(first, self._take(first))

    def _take(self, first: _QueuedRequest) -> list[tuple[_QueuedRequest, int]]:
        """Rows for one worker off the queue: the oldest of this request, and those most like it in
        length that may go with it."""
        choice = self._choice(first)
        lengths = [len(job.rows[row]) for job, row in choice]
        most_rows = -(-(self._waiting_rows + self._running_rows) // self.engine.num_workers)
        taken: list[tuple[_QueuedRequest, int]] = []
        jobs: set[_QueuedRequest] = set()
        longest = 0
        used_s = 0.0
        for number in _nearest(lengths):
            job, row = choice[number]
            if len(taken) == most_rows:
                break
            longest_then = max(longest, lengths[number])
            if len(taken) >= self.engine.batch_rows(longest_then, first.search.beam_size):
                continue
            if taken and (job.num_running or job in jobs):
                row_s = self._seconds(job, lengths[number] + 1)
                if used_s + row_s > self._turn_s(job, first):
                    continue
                used_s += row_s
            longest = longest_then
            jobs.add(job)
            taken.append((job, row))
        for job, row in taken:
            del job.waiting[row]
            job.waiting_pieces -= len(job.rows[row]) + 1
            self.waiting_pieces -= len(job.rows[row]) + 1
            self._waiting_rows -= 1
        self._jobs = deque(job for job in self._jobs if job.waiting)
        return taken

    def _seconds(self, job: _QueuedRequest, pieces: int) -> float:
        """How long a worker will need for a row of a request; infinite if nobody knows."""
        speed = job.pieces_per_s or self.pieces_per_s / self.engine.num_workers
        return pieces / speed if speed else math.inf

    def _turn_s(self, job: _QueuedRequest, first: _QueuedRequest) -> float:
        """The seconds that a request may have beyond one row, in a batch that begins with first."""
        if not job.pieces_per_s:
            return 0.0 if job.num_running else _SHORT_TURN_S
        has_turn = job is first and not job.has_turn and self.engine.num_workers > 1
        return _TURN_S if has_turn else _SHORT_TURN_S

    def _choice(self, first: _QueuedRequest) -> list[tuple[_QueuedRequest, int]]:
        """Rows that wait with the settings of this request, a few of each request in turn; its own
        go first."""
        settings = (first.search, first.num_hypotheses)
        jobs = [job for job in self._jobs if (job.search, job.num_hypotheses) == settings]
        jobs.sort(key=lambda job: job is not first)
        found: list[tuple[_QueuedRequest, int]] = []
        turn = 0
        while jobs and len(found) < _CHOICE_ROWS:
            for job in jobs:
                found.extend((job, row) for row in islice(job.waiting, turn, turn + _ROWS_IN_TURN))
            turn += _ROWS_IN_TURN
            jobs = [job for job in jobs if len(job.waiting) > turn]
        return found[:_CHOICE_ROWS]

    def _start(self, first: _QueuedRequest, taken: list[tuple[_QueuedRequest, int]]) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._running += 1
        self._running_rows += len(taken)
        for job in _jobs_of(taken):
            job.num_running += 1
        is_turn = not first.has_turn
        first.has_turn = True
        rows = [job.rows[row] for job, row in taken]
        loop = asyncio.get_running_loop()

        def run() -> tuple[list[list[Candidate]], float]:
            started = time.perf_counter()
            found = self.engine.search_batch(
                rows, first.search, num_hypotheses=first.num_hypotheses
            )
            return found, time.perf_counter() - started

        running = loop.run_in_executor(self._pool, run)

        def finish(future: asyncio.Future[Any]) -> None:
            first.has_turn = first.has_turn and not is_turn
            self._finish(taken, future)

        running.add_done_callback(finish)

    def _finish(self, taken: list[tuple[_QueuedRequest, int]], future: asyncio.Future[Any]) -> None:
        """Distribute the results of a batch, and begin the next."""
        self._running -= 1
        self._running_rows -= len(taken)
        jobs = _jobs_of(taken)
        for job in jobs:
            job.num_running -= 1
        # What came meanwhile goes first.
        self._jobs = deque(sorted(self._jobs, key=lambda job: job in jobs))
        error = future.exception()
        spent_s = 0.0
        if error is None:
            found, spent_s = future.result()
            pieces = sum(len(job.rows[row]) + 1 for job, row in taken)
            speed = pieces / max(spent_s, 1e-6)
            self.pieces_per_s = _average(self.pieces_per_s, speed * self.engine.num_workers)
            for job in jobs:
                job.pieces_per_s = _average(job.pieces_per_s, speed)
            self.num_rows += len(taken)
            for (job, row), candidates in zip(taken, found, strict=True):
                job.found[row] = candidates
        for job in jobs:
            if job.done.done():
                continue
            if error is not None:
                job.done.set_exception(error)
            elif len(job.found) == len(job.rows):
                job.done.set_result(None)
        if not self._running and not self._jobs:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(_IDLE_S, loop.run_in_executor, self._pool, give_back)
        if not self._running or self._waiting_rows >= _ENOUGH_CHOICE * len(taken):
            self._pump()
        elif self._pause is None:  # a little later the batch may be a better one
            self._expected_rows = self._waiting_rows + len(taken)
            pause_s = min(_LONGEST_PAUSE_S, _PAUSE_SHARE * spent_s)
            self._pause = asyncio.get_running_loop().call_later(pause_s, self._pump)


def _average(earlier: float, latest: float) -> float:
    """The next value of a moving average, which is 0 before the first."""
    return _MEMORY * (earlier or latest) + (1 - _MEMORY) * latest


def _jobs_of(taken: Sequence[tuple[_QueuedRequest, int]]) -> dict[_QueuedRequest, None]:
    """The requests of these rows, each once."""
    return dict.fromkeys(job for job, _ in taken)


def _nearest(lengths: Sequence[int]) -> Iterator[int]:
    """The numbers of rows with these lengths: the first, then those nearest to it in length."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = end = order.index(0)
    yield 0
    while start > 0 or end < len(order) - 1:
        shorter = lengths[0] - lengths[order[start - 1]] if start > 0 else math.inf
        longer = lengths[order[end + 1]] - lengths[0] if end < len(order) - 1 else math.inf
        if shorter <= longer:
            start -= 1
            yield order[start]
        else:
            end += 1
            yield order[end]
