"""Which texts go into a batch, and when; over a real engine whose batches the test lets go."""

from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dragoman.formats.bundle import Bundle
from dragoman.formats.ctranslate2_engine import Candidate, CTranslate2Engine
from dragoman.inference.translator import TextTranslator, translator_of
from dragoman.model.config import SearchConfig
from dragoman.serve.batcher import Batcher, OverloadedError, _QueuedRequest
from dragoman.serve.limits import Limits
from dragoman.serve.models import Chain, Models, ServedModel
from dragoman.telemetry.host import cpu_cores
from real_text import real_lines
from served import served_bundle

SEARCH = SearchConfig(beam_size=2)
_LOOP = asyncio.new_event_loop()


class HeldEngine(CTranslate2Engine):
    """Each batch waits for its turn."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turns = threading.Semaphore(0)
        self.begun: list[int] = []
        self.lengths: list[list[int]] = []
        self.batches: list[list[list[int]]] = []

    def search_batch(
        self, sources: Sequence[list[int]], search: SearchConfig, **options: Any
    ) -> list[list[Candidate]]:
        self.begun.append(len(sources))
        self.lengths.append(sorted(map(len, sources)))
        self.batches.append(list(sources))
        self.turns.acquire()
        return super().search_batch(sources, search, **options)


@pytest.fixture
def bundle() -> Bundle:
    return Bundle.open(served_bundle())


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[HeldEngine]:
    engine = HeldEngine(bundle.path, bundle.subwords(), threads=2, batch_cells=2048)
    yield engine
    for _ in range(100):  # a test that failed may have left batches, whose threads must end
        engine.turns.release()


@pytest.fixture
def rows(bundle: Bundle) -> list[list[int]]:
    lines = real_lines("valid", "en")[:40]
    return bundle.subwords()[0].encode(lines)


@pytest.fixture
def endless_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows can end the pause before a batch."""
    monkeypatch.setattr("dragoman.serve.batcher._LONGEST_PAUSE_S", 1000.0)
    monkeypatch.setattr(
        "dragoman.serve.batcher.time.perf_counter", itertools.count(step=10_000).__next__
    )


def let_wait(batcher: Batcher, pieces: int) -> None:
    """Put a row of so many pieces into the queue, alone."""
    row = [0] * (pieces - 1)
    job = _QueuedRequest([row], SEARCH, 1, asyncio.Future(loop=_LOOP), {0: None}, pieces)
    batcher._jobs = deque([job])


def ask_each(batcher: Batcher, rows: list[list[int]]) -> asyncio.Future[Any]:
    """A request for each row."""
    return asyncio.gather(*(asyncio.create_task(batcher.translate([row], SEARCH)) for row in rows))


async def begun(engine: HeldEngine, count: int) -> None:
    async with asyncio.timeout(60):
        while len(engine.begun) < count:
            await asyncio.sleep(0.001)


def test_a_free_worker_takes_its_share_and_leaves_the_rest(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> list[Any]:
        batcher = Batcher(engine, 10_000, 1000.0)
        asked = []
        for count, row in enumerate(rows[:2], 1):
            asked.append(asyncio.create_task(batcher.translate([row], SEARCH)))
            await begun(engine, count)
        asked += [asyncio.create_task(batcher.translate([row], SEARCH)) for row in rows[2:11]]
        await asyncio.sleep(0)
        engine.turns.release()  # 9 wait and 1 runs: 5 are this worker's share
        await begun(engine, 3)
        assert engine.begun == [1, 1, 5]
        for _ in range(20):
            engine.turns.release()
        found = await asyncio.gather(*asked)
        batcher.close()
        assert batcher.num_rows == 11
        assert batcher.waiting_pieces == 0
        return [one for (one,) in found]

    together = asyncio.run(scenario())
    for _ in range(20):
        engine.turns.release()
    alone = [CTranslate2Engine.search_batch(engine, [row], SEARCH)[0] for row in rows[:11]]
    assert [one[0].ids for one in together] == [one[0].ids for one in alone]


def test_fewer_rows_than_were_answered_are_begun_after_a_pause(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        batcher = Batcher(engine, 10_000, 1000.0)
        first = ask_each(batcher, rows[:8])
        await begun(engine, 2)
        engine.turns.release()  # one half is done, the other goes on
        while not batcher.num_rows:
            await asyncio.sleep(0.001)
        again = asyncio.create_task(batcher.translate(rows[8:9], SEARCH))
        await begun(engine, 3)
        assert engine.begun == [4, 4, 1]
        for _ in range(2):
            engine.turns.release()
        await asyncio.gather(first, again)
        batcher.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("endless_pause")
def test_as_many_rows_as_were_answered_are_waited_for(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        batcher = Batcher(engine, 10_000, math.inf)
        first = ask_each(batcher, rows[:8])
        await begun(engine, 2)
        engine.turns.release()  # one half is done, the other goes on
        while not batcher.num_rows:
            await asyncio.sleep(0.001)
        again = []
        for row in rows[8:12]:
            assert engine.begun == [4, 4]
            again.append(asyncio.create_task(batcher.translate([row], SEARCH)))
            for _ in range(3):
                await asyncio.sleep(0)
        await begun(engine, 3)
        assert engine.begun == [4, 4, 4]
        for _ in range(2):
            engine.turns.release()
        await asyncio.gather(first, *again)
        batcher.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("endless_pause")
def test_twice_as_many_rows_as_were_answered_are_begun_at_once(
    engine: HeldEngine, rows: list[list[int]]
) -> None:

    async def scenario() -> None:
        batcher = Batcher(engine, 10_000, math.inf)
        asked = [ask_each(batcher, rows[:8])]
        await begun(engine, 2)
        asked.append(ask_each(batcher, rows[8:16]))
        await asyncio.sleep(0)
        engine.turns.release()  # 8 wait and 4 run: 6 are this worker's share
        await begun(engine, 3)
        assert engine.begun == [4, 4, 6]
        for _ in range(20):
            engine.turns.release()
        await asyncio.gather(*asked)
        batcher.close()

    asyncio.run(scenario())


def test_the_end_does_not_wait_for_a_batch_that_runs(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        batcher = Batcher(engine, 10_000, 1000.0)
        searching = [batcher.is_searching]
        asked = asyncio.create_task(batcher.translate(rows[:1], SEARCH))
        await begun(engine, 1)
        batcher.close()
        searching.append(batcher.is_searching)
        engine.turns.release()
        assert len(await asked) == 1
        assert [*searching, batcher.is_searching] == [False, True, False]

    asyncio.run(scenario())


def batches_of(bundle: Bundle, requests: list[list[list[int]]], *, batch_cells: int) -> Any:
    """Lengths of the rows of each batch, of one worker that is busy until all have asked."""

    async def scenario() -> list[list[int]]:
        engine = HeldEngine(bundle.path, bundle.subwords(), threads=1, batch_cells=batch_cells)
        batcher = Batcher(engine, 10_000, 1000.0, pieces_per_s=1e9)
        busy = asyncio.create_task(batcher.translate([[5]], SEARCH))
        await begun(engine, 1)
        asked = [asyncio.create_task(batcher.translate(rows, SEARCH)) for rows in requests]
        await asyncio.sleep(0)
        for _ in range(20):
            engine.turns.release()
        await asyncio.gather(busy, *asked)
        batcher.close()
        return engine.lengths[1:]

    return asyncio.run(scenario())


def test_the_row_that_waited_longest_goes_with_those_of_like_length(
    bundle: Bundle, rows: list[list[int]]
) -> None:
    pieces = [piece for row in rows for piece in row]
    requests = [[pieces[:length]] for length in (10, 3, 30, 11, 9, 28, 10)]
    cells = 4 * 12 * SEARCH.beam_size  # four rows of at most 11 pieces and their end
    # Nobody is passed over for ever: the oldest of those who are left is in the next batch.
    assert batches_of(bundle, requests, batch_cells=cells) == [[9, 10, 10, 11], [3], [30], [28]]


def test_a_document_does_not_hold_up_a_sentence(bundle: Bundle, rows: list[list[int]]) -> None:
    document, sentence = [rows[1][:9]] * 100, [rows[2][:7]]
    lengths = batches_of(bundle, [document, sentence], batch_cells=480)
    assert lengths[0] == [9] * 24
    assert lengths[1][0] == 7
    assert sum(map(len, lengths)) == 101


def test_other_settings_do_not_wait_for_a_worker_that_is_free(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        batcher = Batcher(engine, 10_000, 1000.0)
        other = SearchConfig(beam_size=3)
        asked = [batcher.translate(rows[:1], SEARCH), batcher.translate(rows[1:2], other)]
        tasks = [asyncio.create_task(one) for one in asked]
        await begun(engine, 2)
        assert engine.begun == [1, 1]
        for _ in range(2):
            engine.turns.release()
        await asyncio.gather(*tasks)
        batcher.close()

    asyncio.run(scenario())


def test_a_request_that_fills_the_queue_shuts_out_its_like_and_no_sentence(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    document = [row[:9] for row in rows if len(row) >= 9][:20] * 40

    async def scenario() -> None:
        batcher = Batcher(engine, 200, 1000.0)
        long = asyncio.create_task(batcher.translate(document, SEARCH))
        await begun(engine, 2)
        assert batcher.waiting_pieces > 200
        with pytest.raises(OverloadedError):
            await batcher.translate(document, SEARCH)
        sentence = asyncio.create_task(batcher.translate([rows[0][:9]], SEARCH))
        await asyncio.sleep(0)
        engine.turns.release()
        await begun(engine, 3)
        assert rows[0][:9] in engine.batches[2], "the sentence goes before the rest"
        for _ in range(100):
            engine.turns.release()
        assert len(await sentence) == 1
        assert len(await long) == len(document)
        assert batcher.waiting_pieces == 0
        batcher.close()

    asyncio.run(scenario())


def test_a_full_queue_refuses_and_those_who_leave_make_room(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        batcher = Batcher(engine, 60, 1000.0)
        running = asyncio.create_task(batcher.translate(rows[:2], SEARCH))
        await begun(engine, 2)
        waiting = [asyncio.create_task(batcher.translate([row], SEARCH)) for row in rows[2:5]]
        await asyncio.sleep(0)
        room = 60 - batcher.waiting_pieces
        assert room < 59
        batcher.admit(room)
        with pytest.raises(OverloadedError):
            batcher.admit(room + 1)
        with pytest.raises(OverloadedError):
            await batcher.translate([rows[5] * 10], SEARCH)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert batcher.waiting_pieces == 0
        batcher.admit(60)
        for _ in range(2):
            engine.turns.release()
        await running
        batcher.close()
        assert engine.begun == [1, 1], "what was cancelled was not begun"

    asyncio.run(scenario())


def test_a_cancelled_request_does_not_delay_other_settings(
    bundle: Bundle, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        engine = HeldEngine(bundle.path, bundle.subwords(), threads=1, batch_cells=2048)
        batcher = Batcher(engine, 1000, 1000.0)
        running = asyncio.create_task(batcher.translate(rows[:1], SEARCH))
        await begun(engine, 1)
        leaving, staying, other = (
            asyncio.create_task(batcher.translate([rows[beam]], SearchConfig(beam_size=beam)))
            for beam in (1, 3, 4)
        )
        await asyncio.sleep(0)
        leaving.cancel()
        other.cancel()
        await asyncio.gather(leaving, other, return_exceptions=True)
        for _ in range(2):
            engine.turns.release()
        await running
        assert len(await asyncio.wait_for(staying, timeout=60)) == 1
        batcher.close()

    asyncio.run(scenario())


def test_a_batch_has_rows_of_the_same_settings_alone(bundle: Bundle, rows: list[list[int]]) -> None:
    settings = [(SearchConfig(beam_size=1), 1), (SearchConfig(beam_size=4), 1), (SEARCH, 2)]

    async def scenario(engine: HeldEngine) -> list[list[list[Candidate]]]:
        batcher = Batcher(engine, 10_000, 1000.0)
        running = asyncio.create_task(batcher.translate(rows[:1], SEARCH))
        await begun(engine, 1)
        asked = [
            asyncio.create_task(
                batcher.translate([rows[number]], search, num_hypotheses=num_hypotheses)
            )
            for number in range(1, 13)
            for search, num_hypotheses in [settings[number % 3]]
        ]
        await asyncio.sleep(0)
        for _ in range(20):
            engine.turns.release()
        found = await asyncio.gather(*asked)
        await running
        batcher.close()
        return found

    engine = HeldEngine(bundle.path, bundle.subwords(), threads=1, batch_cells=2048)
    together = asyncio.run(scenario(engine))
    assert len(engine.begun) <= 1 + 3 * 4
    for batch in engine.batches:
        assert len({rows.index(row) % 3 for row in batch if row != rows[0]}) <= 1
    for number, found in enumerate(together, 1):
        search, num_hypotheses = settings[number % 3]
        engine.turns.release()
        alone = engine.search([rows[number]], search, num_hypotheses=num_hypotheses)
        assert [[c.ids for c in one] for one in found] == [[c.ids for c in one] for one in alone]


def served(bundle: Bundle, max_waiting_pieces: int) -> ServedModel:
    limits = Limits(max_waiting_pieces=max_waiting_pieces)
    (model,) = ServedModel.of(bundle, translator_of(bundle, threads=1), limits)
    return model


def test_a_text_is_refused_by_its_length_before_it_is_cut(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served(bundle, 100)
    texts = [" ".join(real_lines("valid", "en")[:3])]
    asyncio.run(model.translate(texts, text_format="document"))
    let_wait(model.batcher, 99)

    def fail(*_: object) -> None:
        raise AssertionError("a refused text was cut into pieces")

    monkeypatch.setattr(TextTranslator, "encode", fail)
    with pytest.raises(OverloadedError):
        asyncio.run(model.translate(texts, text_format="document"))
    with pytest.raises(AssertionError, match="was cut"):  # of markup, tags are no pieces
        asyncio.run(model.translate(texts, text_format="markup"))
    let_wait(model.batcher, 100)
    with pytest.raises(OverloadedError):
        asyncio.run(model.translate(texts, text_format="markup"))
    model.batcher.close()


def test_the_pieces_of_a_text_are_known_about_from_those_before(bundle: Bundle) -> None:
    model = served(bundle, 100)
    lines = real_lines("valid", "en")[:8]
    asyncio.run(model.translate(lines, text_format="document"))
    pieces = sum(len(row) + 1 for row in model.translator.encode(lines, "document").rows)
    assert model.batcher.pieces_per_character == pytest.approx(pieces / sum(map(len, lines)))
    model.batcher.learn(100, 100)
    model.batcher.learn(0, 0)
    after = 0.8 * pieces / sum(map(len, lines)) + 0.2
    assert model.batcher.pieces_per_character == pytest.approx(after)
    model.batcher.close()


def test_requests_with_terms_are_refused_if_their_turns_would_take_too_long(
    bundle: Bundle,
) -> None:
    """Each turn comes after one of every other such request; plain requests are not held up."""
    lines = real_lines("valid", "en")[:8]

    async def scenario() -> None:
        model = served(bundle, 100_000)
        batcher = model.batcher
        with_terms = Chain.of(model).with_terms({"man": "Kerl", "woman": "Dame", "in": "binnen"})
        alone = await with_terms.translate(lines, text_format="document")
        assert batcher.num_with_turns == 0
        assert batcher.turn_s > 0
        assert batcher.turns_per_row > 0
        turns_s = len(lines) * batcher.turns_per_row * batcher.turn_s
        batcher.max_wait_s = 1.5 * turns_s  # as long as the turns of one other request
        batcher.pieces_per_s = 0.0  # and whatever its first search takes
        asked = [
            asyncio.create_task(with_terms.translate(lines, text_format="document"))
            for _ in range(3)
        ]
        plain = asyncio.create_task(model.translate(lines, text_format="document"))
        *answers, refused = await asyncio.gather(*asked, return_exceptions=True)
        expected = [best.text for best, *_ in alone]
        for answer in answers:
            assert not isinstance(answer, BaseException)
            assert [best.text for best, *_ in answer] == expected
        assert isinstance(refused, OverloadedError)
        assert len(await plain) == len(lines)
        assert batcher.num_with_turns == 0
        batcher.close()

    asyncio.run(scenario())


def test_a_server_refuses_at_once_if_all_of_its_models_are_busy(bundle: Bundle) -> None:
    one = served(bundle, 9)
    description = one.description.model_copy(update={"source": "de", "target": "en"})
    other = replace(served(bundle, 9), description=description)
    models = Models([one, other])
    let_wait(one.batcher, 9)
    models.admit(["A man."], "document")
    let_wait(other.batcher, 9)
    with pytest.raises(OverloadedError):
        models.admit(["A man."], "document")
    one.batcher.close()
    other.batcher.close()


def test_no_more_workers_than_cores(bundle: Bundle) -> None:
    engine = CTranslate2Engine(
        bundle.path, bundle.subwords(), threads=cpu_cores() + 2, batch_cells=2048
    )
    assert engine.num_workers == cpu_cores()


def test_nothing_to_translate_is_no_batch(engine: HeldEngine) -> None:
    batcher = Batcher(engine, 10, 1.0)
    assert asyncio.run(batcher.translate([], SEARCH)) == []
    batcher.close()
    assert engine.begun == []


def test_the_wanted_number_of_hypotheses_is_found(
    engine: HeldEngine, rows: list[list[int]]
) -> None:
    async def scenario() -> list[list[Candidate]]:
        batcher = Batcher(engine, 10_000, 1000.0)
        found = await batcher.translate(rows[:3], SEARCH, num_hypotheses=2)
        batcher.close()
        return found

    for _ in range(3):
        engine.turns.release()
    found = asyncio.run(scenario())
    for _ in range(3):
        engine.turns.release()
    alone = CTranslate2Engine.search_batch(engine, rows[:3], SEARCH, num_hypotheses=2)
    assert [len(one) for one in found] == [2, 2, 2]
    assert [[c.ids for c in one] for one in found] == [[c.ids for c in one] for one in alone]


class FailingEngine(CTranslate2Engine):
    """Fails once. searched: the batches that did not fail."""

    failed = False
    searched = 0

    def search_batch(
        self, sources: Sequence[list[int]], search: SearchConfig, **options: Any
    ) -> list[list[Candidate]]:
        if not self.failed:
            self.failed = True
            raise MemoryError("too large")
        self.searched += 1
        return super().search_batch(sources, search, **options)


def test_a_batch_that_fails_fails_for_all_of_its_requests_and_no_others(
    bundle: Bundle, rows: list[list[int]]
) -> None:
    async def scenario() -> None:
        engine = FailingEngine(bundle.path, bundle.subwords(), threads=1, batch_cells=2048)
        batcher = Batcher(engine, 10_000, 1000.0)
        asked = [asyncio.create_task(batcher.translate([row], SEARCH)) for row in rows[:2]]
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert [type(one) for one in found] == [MemoryError, MemoryError]
        assert (engine.searched, batcher.num_rows, batcher.pieces_per_s) == (0, 0, 0.0)
        assert len(await asyncio.wait_for(ask_each(batcher, rows[2:5]), 60)) == 3
        assert (engine.searched, batcher.num_rows) == (1, 3)
        batcher.close()

    asyncio.run(scenario())


def test_a_request_that_would_wait_too_long_is_refused(engine: HeldEngine) -> None:
    batcher = Batcher(engine, 1000, 5.0, pieces_per_s=10.0)
    batcher.admit(2000)  # nothing waits: it is translated at once, however long it is
    let_wait(batcher, 50)
    batcher.admit(950)
    let_wait(batcher, 51)
    with pytest.raises(OverloadedError, match="the server is busy") as refused:
        batcher.admit()
    assert refused.value.retry_s == pytest.approx(2.55)
    assert refused.value.remedy == "try again in 3 s"
    let_wait(batcher, 5)
    batcher.max_wait_s = 0.1
    with pytest.raises(OverloadedError) as refused:
        batcher.admit()
    assert refused.value.retry_s == 1.0
    batcher.pieces_per_s = 0.0  # nothing was measured yet
    batcher.admit()
    batcher.close()


def test_the_measured_speed_is_mostly_that_of_the_past(
    bundle: Bundle, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of which each takes 0.5 s, then 0.25 s, by this clock."""
    moments = iter([10.0, 10.5, 20.0, 20.25])

    async def scenario() -> list[float]:
        engine = CTranslate2Engine(bundle.path, bundle.subwords(), threads=2, batch_cells=2048)
        batcher = Batcher(engine, 10_000, 1000.0)
        speeds = []
        for row in rows[:2]:
            await batcher.translate([row], SEARCH)
            speeds.append(batcher.pieces_per_s)
        batcher.close()
        return speeds

    monkeypatch.setattr("dragoman.serve.batcher.time.perf_counter", lambda: next(moments))
    speeds = asyncio.run(scenario())
    first, second = (len(row) + 1 for row in rows[:2])
    assert speeds[0] == pytest.approx(first / 0.5 * 2)
    assert speeds[1] == pytest.approx(0.8 * speeds[0] + 0.2 * second / 0.25 * 2)


def test_documents_take_turns_with_sixteen_rows(bundle: Bundle, rows: list[list[int]]) -> None:
    documents = [[row[:7]] * 40 for row in rows if len(row) >= 7][:2]
    assert documents[0] != documents[1]

    async def scenario() -> None:
        engine = HeldEngine(bundle.path, bundle.subwords(), threads=1, batch_cells=24 * 8 * 2)
        batcher = Batcher(engine, 10_000, 1000.0, pieces_per_s=1e9)
        busy = asyncio.create_task(batcher.translate([[5]], SEARCH))
        await begun(engine, 1)
        asked = [asyncio.create_task(batcher.translate(one, SEARCH)) for one in documents]
        await asyncio.sleep(0)
        for _ in range(20):
            engine.turns.release()
        found = await asyncio.gather(busy, *asked)
        batcher.close()
        assert [len(one) for one in found] == [1, 40, 40]
        assert engine.batches[1] == documents[0][:16] + documents[1][:8]

    asyncio.run(scenario())


class ClockedEngine(HeldEngine):
    """Each row takes row_s, by a clock that each worker has for itself."""

    row_s = 0.019
    clock = threading.local()

    def now(self) -> float:
        return getattr(self.clock, "now", 0.0)

    def search_batch(
        self, sources: Sequence[list[int]], search: SearchConfig, **options: Any
    ) -> list[list[Candidate]]:
        found = super().search_batch(sources, search, **options)
        self.clock.now = self.now() + self.row_s * len(sources)
        return found


@pytest.fixture
def clocked(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClockedEngine]:
    engine = ClockedEngine(bundle.path, bundle.subwords(), threads=2, batch_cells=20_000)
    monkeypatch.setattr("dragoman.serve.batcher.time.perf_counter", engine.now)
    yield engine
    for _ in range(1000):
        engine.turns.release()


def test_a_long_request_holds_one_worker_for_half_a_second_at_its_own_speed(
    clocked: ClockedEngine, rows: list[list[int]]
) -> None:
    """The second worker is free for others after a tenth of a second."""

    async def scenario() -> None:
        batcher = Batcher(clocked, 10_000, 1000.0)
        long = asyncio.create_task(batcher.translate([rows[1][:9]] * 100, SEARCH))
        for count in range(2, 6):
            await begun(clocked, count)
            clocked.turns.release()
        await begun(clocked, 6)
        # The speed is not known at first; then a row takes 19 ms.
        assert clocked.begun[:2] == [1, 1]
        assert sorted(clocked.begun[2:4]) == [1 + 5, 1 + 26]
        assert {*clocked.begun[4:]} <= {1 + 5, 1 + 26}
        for _ in range(100):
            clocked.turns.release()
        assert len(await long) == 100
        batcher.close()

    asyncio.run(scenario())


def test_a_long_request_of_unknown_speed_leaves_the_second_worker_to_others(
    clocked: ClockedEngine, rows: list[list[int]]
) -> None:
    sentence = rows[2][:7]

    async def scenario() -> None:
        batcher = Batcher(clocked, 10_000, 1000.0, pieces_per_s=2 * 1001.0)
        long = asyncio.create_task(batcher.translate([rows[1][:9]] * 100, SEARCH))
        await begun(clocked, 2)
        assert clocked.begun == [1 + 10, 1], "rows of 10 pieces for a tenth of a second, and one"
        other = asyncio.create_task(batcher.translate([sentence], SEARCH))
        await asyncio.sleep(0)
        clocked.turns.release()
        await begun(clocked, 3)
        assert clocked.batches[2][0] == sentence
        for _ in range(100):
            clocked.turns.release()
        assert len(await other) == 1
        assert len(await long) == 100
        batcher.close()

    asyncio.run(scenario())


def test_slow_rows_of_a_request_are_begun_one_by_one(
    clocked: ClockedEngine, rows: list[list[int]]
) -> None:
    """Each runs up to the length limit; no search can be broken off."""
    clocked.row_s = 3.0

    async def scenario() -> None:
        batcher = Batcher(clocked, 10_000, 1000.0)
        long = asyncio.create_task(batcher.translate([rows[1][:9]] * 12, SEARCH))
        for _ in range(12):
            clocked.turns.release()
        assert len(await long) == 12
        assert clocked.begun == [1] * 12
        batcher.close()

    asyncio.run(scenario())


def test_many_requests_of_one_row_are_one_batch_whatever_they_cost(
    clocked: ClockedEngine, rows: list[list[int]]
) -> None:
    clocked.row_s = 3.0

    async def scenario() -> None:
        batcher = Batcher(clocked, 10_000, math.inf, pieces_per_s=1.0)
        found = ask_each(batcher, [rows[1][:9]] * 40)
        for _ in range(2):
            clocked.turns.release()
        assert len(await found) == 40
        assert clocked.begun == [20, 20]
        batcher.close()

    asyncio.run(scenario())


def test_memory_is_given_back_when_nobody_asks_any_more(
    bundle: Bundle, rows: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CTranslate2Engine(bundle.path, bundle.subwords(), threads=1, batch_cells=2048)
    batcher = Batcher(engine, 1000, 1000.0)
    given: list[int] = []
    monkeypatch.setattr("dragoman.serve.batcher._IDLE_S", 0.05)
    monkeypatch.setattr("dragoman.serve.batcher.give_back", lambda: given.append(batcher.num_rows))

    async def scenario() -> None:
        await batcher.translate(rows[:2], SEARCH)
        assert given == []
        async with asyncio.timeout(60):
            while not given:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        batcher.close()

    asyncio.run(scenario())
    assert given == [2], "once, after the last batch"


def test_free_memory_goes_back_to_the_system() -> None:
    program = """
from pathlib import Path
from dragoman.base.memory import give_back

def resident_kb():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])

held = [bytearray(100_000) for _ in range(2_000)]  # each below the size that goes back by itself
last = bytearray(100_000)
del held
before = resident_kb()
give_back()
print(before - resident_kb())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(done.stdout) > 150_000
