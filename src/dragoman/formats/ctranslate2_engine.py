"""Search with CTranslate2, with the same results as our own search. Free of torch.

CTranslate2 ends the search for a sentence when as many hypotheses are finished as the beam is wide,
as ours does. CTranslate2 lacks two things, which this module adds: a separate length limit for each
sentence of a batch, and the length penalty of Wu et al. 2016 (see `_question`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.model.config import (
    ModelConfig,
    SearchConfig,
    check_beam_holds,
    length_limit,
    length_penalty,
)
from dragoman.telemetry.host import cpu_cores

_BATCH_BYTES: Final = 50_400_000
"""Bytes of the decoder's keys and values for the cells of one batch: 2,048 of Transformer-base."""
_KEY_AND_VALUE_BYTES: Final = 2 * 4
BATCH_SCORES: Final = 1_250_000
"""Rows x beam x vocabulary of one batch, at most: each step makes that many floats several times
over. More than a few megabytes of them are no faster, and take memory on every core."""
BATCH_TOKENS: Final = 4096
"""Rows x longest source of one batch, at most: a greedy search of more tokens is slower."""
_BATCHES_A_WORKER: Final = 4
"""Batches per core, so that no core waits long for the last batch of another."""
_ENOUGH_ROWS: Final = 64
"""A batch is not made smaller than this to give a core several: it would take longer per row."""
_LEAST_ROWS: Final = 32
"""A batch is not made smaller than this to give every core one."""
_NOT_ZERO: Final = 1e-6
"""With an exponent of 0 CTranslate2 ends the search at another point."""
_FIRST_FINISHED: Final = -8.0
"""With such an exponent CTranslate2 keeps the hypotheses that finished first."""
_SCORED_TOGETHER: Final = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A translation as ids without end of sentence; score: as in model.search."""

    ids: list[int]
    score: float


@dataclass(frozen=True, slots=True)
class Results:
    """A search under way. Call it once to wait for the best translations of each source.

    batches: what the search consists of; those that have not begun never do if it is given up.
    """

    found: Callable[[], list[list[Candidate]]]
    batches: Sequence[Future[list[list[Candidate]]]] = ()

    def __call__(self) -> list[list[Candidate]]:
        """The translations, best first; an interruption gives the search up."""
        try:
            return self.found()
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Begin no more batches. One under way cannot be broken off."""
        for batch in self.batches:
            batch.cancel()


def _question(search: SearchConfig, num_hypotheses: int) -> tuple[int, float]:
    """How many hypotheses to ask CTranslate2 for, and with which exponent it orders them.

    CTranslate2 ends a search when that many hypotheses are finished. If it has more, it keeps those
    with the highest log-probability / length^exponent. The two settings make sure that the best
    `num_hypotheses` of our own search are among those that it keeps:

    - "power": CTranslate2 orders as we do, so beam_size hypotheses and our exponent are enough.
      One less would not do: without a hypothesis of the last step, nobody would know how long the
      search of a row went on. A row beyond its own length limit is searched again.
    - "gnmt", the best one: beam_size hypotheses, and the exponent alpha / 6. Our penalty is
      ((5 + L) / 6)^alpha. Its slope over ln L, alpha L / (5 + L), is at least alpha / 6. So a
      hypothesis that the exponent puts before our best one, but our penalty does not, is shorter
      and was finished earlier. If there were beam_size of them, our search would have ended before
      it finished the best one.
    - "gnmt", several: our search has up to 2 beam_size - 1 finished hypotheses when it ends. That
      many are asked for, in the order in which they were finished; `_candidates` drops those that
      were finished after the end of our search.
    """
    beam = search.beam_size
    if search.length_penalty == "power":
        return beam, search.length_penalty_alpha
    if num_hypotheses == 1:
        return beam, max(search.length_penalty_alpha / 6, _NOT_ZERO)
    return 2 * beam - 1, _FIRST_FINISHED


@dataclass(frozen=True, slots=True)
class Alignment:
    """The attention of each piece of a translation to the pieces of the source, without its end."""

    target: list[str]
    source: list[str]
    weights: list[list[float]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Pieces are drawn at random instead of searched for (Edunov et al. 2018).

    top_k: draw from this many of the likeliest pieces; 0: from all.
    temperature: above 1 flattens the probabilities, below 1 sharpens them.
    """

    top_k: int = 0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if type(self.top_k) is not int or not 0 <= self.top_k <= 10_000_000:
            raise ConfigError(
                f"{self.top_k!r} is not a number of pieces",
                place="top_k",
                remedy="give a whole number, or 0 for all",
            )
        if not 0 < self.temperature <= 100:
            raise ConfigError(
                f"{self.temperature!r} is not a temperature",
                place="temperature",
                remedy="give a number above 0, up to 100",
            )


def fitting_cells(model: ModelConfig) -> int:
    """The most cells (rows x longest source x beam) that one batch of this model should have.

    The memory for keys and values grows with the cells. A small model may have more cells than a
    large one, and is faster with more.
    """
    return max(1, _BATCH_BYTES // (_KEY_AND_VALUE_BYTES * model.d_model * model.decoder_layers))


class CTranslate2Engine:
    """A model in CTranslate2's format, in memory. Safe to use from several threads."""

    def __init__(
        self,
        directory: Path,
        subwords: tuple[Vocabulary, Vocabulary],
        *,
        threads: int | None = None,
        batch_cells: int,
        sampling: Sampling | None = None,
    ) -> None:
        """threads: cores to use, one batch on each; None: all that this process may use, which is
        the most in any case: further threads only take memory.
        batch_cells: rows x longest source x beam of one batch, at most.
        sampling: used with a beam of 1; None: the likeliest is searched for.

        Raises MachineError if CTranslate2 is not installed, CheckpointError if it cannot
        read the model.
        """
        try:
            import ctranslate2
        except ImportError as error:
            raise MachineError(
                "CTranslate2 is not installed", remedy="install it: pip install 'dragoman[serve]'"
            ) from error
        ctranslate2.set_log_level(logging.ERROR)  # a CPU widens fp16, which needs no warning
        self.batch_cells = batch_cells
        self._sampling = sampling
        self.num_workers = min(threads or cpu_cores(), cpu_cores())
        try:
            self._translator = ctranslate2.Translator(
                str(directory),
                inter_threads=self.num_workers,
                intra_threads=1,
                max_queued_batches=-1,
            )
        except (RuntimeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"CTranslate2 cannot read it: {error}", place=directory, remedy="export it again"
            ) from error
        # Two for each core: a batch is there when another ends. All others wait here, not in
        # CTranslate2, which would do them all before the process can end.
        self._pool = ThreadPoolExecutor(2 * self.num_workers, "search")
        source, target = subwords
        self._source_pieces = source.all_pieces()
        self._target_pieces = target.all_pieces()
        # Translations of some imported models begin with a token for their language.
        self._prefix_ids = target.prefix("")[0]
        self._prefix = target.pieces(self._prefix_ids)
        self._target_ids = {piece: number for number, piece in enumerate(self._target_pieces)}

    def batch_rows(self, longest: int, beam_size: int) -> int:
        """The most rows to search together, if the longest one has this many pieces."""
        by_tokens = min(self.batch_cells // beam_size, BATCH_TOKENS) // (longest + 1)
        return max(1, min(by_tokens, BATCH_SCORES // (len(self._target_pieces) * beam_size)))

    def submit(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        *,
        num_hypotheses: int = 1,
        scored: bool = True,
    ) -> Results:
        """Begin to translate rows of pieces (without end of sentence); the results are in order.

        They wait in a queue, the longest first, in batches of like length, some for every core.
        scored: False if the scores are not used; a greedy search, which needs no probabilities,
        then returns scores of 0.
        Raises ConfigError if more hypotheses are asked for than the beam holds.
        """
        order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
        share = share_of_rows(len(order), self.num_workers)
        batches: list[list[int]] = []
        start = 0
        while start < len(order):
            most = self.batch_rows(len(sources[order[start]]), search.beam_size)
            batches.append(order[start : start + min(most, share)])
            start += len(batches[-1])
        check_beam_holds(num_hypotheses, search)
        begun = [
            self._begin(
                self.search_batch,
                [sources[row] for row in rows],
                search,
                num_hypotheses=num_hypotheses,
                scored=scored,
            )
            for rows in batches
        ]

        def found() -> list[list[Candidate]]:
            in_order: list[list[Candidate]] = [[] for _ in sources]
            for rows, batch in zip(batches, begun, strict=True):
                for row, candidates in zip(rows, batch.result(), strict=True):
                    in_order[row] = candidates
            return in_order

        return Results(found, begun)

    def _begin(
        self, batch: Callable[..., list[list[Candidate]]], *arguments: Any, **named: Any
    ) -> Future[list[list[Candidate]]]:
        """Put a batch into the pool; once the main thread has ended, which closes every pool, the
        thread that asks does it."""
        try:
            return self._pool.submit(batch, *arguments, **named)
        except RuntimeError:
            done: Future[list[list[Candidate]]] = Future()
            done.set_result(batch(*arguments, **named))
            return done

    def search(
        self, sources: Sequence[list[int]], search: SearchConfig, *, num_hypotheses: int = 1
    ) -> list[list[Candidate]]:
        """`submit`, and wait: the best translations of each source, best first."""
        return self.submit(sources, search, num_hypotheses=num_hypotheses)()

    def go_on(
        self,
        sources: Sequence[list[int]],
        beginnings: Sequence[list[int]],
        search: SearchConfig,
    ) -> list[list[Candidate]]:
        """As many translations as the beam has, each with the beginning of its source."""
        if not sources:
            return []
        longest = max(map(len, sources))
        limits = [length_limit(len(source), search) for source in sources]
        results = self._translator.translate_batch(
            [[self._source_pieces[piece] for piece in source] for source in sources],
            target_prefix=[
                [*self._prefix, *(self._target_pieces[piece] for piece in beginning)]
                for beginning in beginnings
            ],
            max_batch_size=self.batch_rows(longest, search.beam_size),
            beam_size=search.beam_size,
            num_hypotheses=search.beam_size,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max(limits),
            no_repeat_ngram_size=search.no_repeat_ngram_size,
        )
        rows = [
            (row, [self._target_ids[piece] for piece in pieces[len(self._prefix) :]])
            for row, result in enumerate(results)
            for pieces in result.hypotheses
        ]
        # The scores of CTranslate2 are without the beginning.
        scores = self.log_probabilities([sources[row] for row, _ in rows], [ids for _, ids in rows])
        found: list[list[Candidate]] = [[] for _ in sources]
        for (row, ids), nats in zip(rows, scores, strict=True):
            found[row].append(Candidate(ids, sum(nats) / length_penalty(len(ids) + 1, search)))
        return found

    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log probabilities of each piece of given translations and of their end, in nats."""
        results = self._translator.score_batch(
            [[self._source_pieces[piece] for piece in source] for source in sources],
            [
                [*self._prefix, *(self._target_pieces[piece] for piece in target)]
                for target in targets
            ],
            max_batch_size=_SCORED_TOGETHER,
            max_input_length=0,
        )
        return [list(result.log_probs)[len(self._prefix) :] for result in results]

    def align(self, source: list[int], target: list[int]) -> Alignment:
        """The model's attention to the source when it is made to write this translation."""
        (attention,) = self.attention([source], [target])
        return Alignment(
            [self._target_pieces[piece] for piece in target],
            [*(self._source_pieces[piece] for piece in source), "</s>"],
            attention.tolist(),
        )

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """As `model.alignment.attention_to_source`."""
        targets = [[*self._prefix_ids, *target] for target in targets]
        # In a batch CTranslate2 mixes up the attention of beams, but not of a greedy search.
        results = self._translator.translate_batch(
            [[self._source_pieces[piece] for piece in source] for source in sources],
            target_prefix=[[self._target_pieces[piece] for piece in target] for target in targets],
            beam_size=1,
            max_batch_size=_SCORED_TOGETHER,
            max_input_length=0,
            max_decoding_length=max(map(len, targets), default=0) + 1,
            min_decoding_length=0,
            return_attention=True,
        )
        return [
            np.array(result.attention[0], dtype=np.float32).reshape(-1, len(source))[
                len(self._prefix) : len(target)
            ]
            for result, source, target in zip(results, sources, targets, strict=True)
        ]

    def search_batch(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        *,
        num_hypotheses: int = 1,
        scored: bool = True,
    ) -> list[list[Candidate]]:
        """`search` for rows that are one batch already, in this thread. scored: as for `submit`."""
        check_beam_holds(num_hypotheses, search)
        scored = scored or search.beam_size > 1
        limits = [length_limit(len(source), search) for source in sources]
        if search.end_at_limit:  # the last token is the end, which CTranslate2 is not asked for
            limits = [max(1, limit - 1) for limit in limits]
        longest = max(limits, default=0)
        results = self._translated(sources, search, num_hypotheses, longest, scored=scored)
        found = []
        # The limit of a batch is that of its longest row; a row may have gone beyond its own.
        for source, limit, result in zip(sources, limits, results, strict=True):
            best, last = self._candidates(result, search, num_hypotheses, longest)
            if last > limit and scored:
                (result,) = self._translated([source], search, num_hypotheses, limit, scored=True)
                best, _ = self._candidates(result, search, num_hypotheses, limit)
            elif last > limit:  # a greedy search would have begun the same
                room = max(0, limit - len(self._prefix))
                best = [replace(one, ids=one.ids[:room]) for one in best]
            found.append(best)
        return found

    def _translated(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        num_hypotheses: int,
        limit: int,
        *,
        scored: bool,
    ) -> list[Any]:
        """What CTranslate2 returns for each row of one batch."""
        num_finished, exponent = _question(search, num_hypotheses)
        drawn = {}
        if self._sampling is not None and search.beam_size == 1:
            drawn = {
                "sampling_topk": self._sampling.top_k,
                "sampling_temperature": self._sampling.temperature,
            }
        results: list[Any] = self._translator.translate_batch(
            [[self._source_pieces[piece] for piece in source] for source in sources],
            target_prefix=[self._prefix] * len(sources) if self._prefix else None,
            beam_size=search.beam_size,
            num_hypotheses=num_finished,
            patience=(num_finished + 0.25) / search.beam_size,  # it rounds beam x patience
            length_penalty=exponent,
            max_input_length=0,
            min_decoding_length=0,  # a translation may be empty, as in our search
            max_decoding_length=limit,
            no_repeat_ngram_size=search.no_repeat_ngram_size,
            return_scores=scored,
            **drawn,
        )
        return results

    def _candidates(
        self, result: Any, search: SearchConfig, num_hypotheses: int, limit: int
    ) -> tuple[list[Candidate], int]:
        """Hypotheses of CTranslate2 with our scores, best first, and the last step of our search.

        limit: the length limit of the row's batch.
        """
        _, exponent = _question(search, num_hypotheses)
        steps = [min(len(tokens) + 1, limit) for tokens in result.hypotheses]
        last = sorted(steps)[: search.beam_size][-1]
        scores = result.scores or [0.0] * len(steps)
        found = []
        for tokens, score, step in zip(result.hypotheses, scores, steps, strict=True):
            if step <= last:
                length = len(tokens) + 1 if search.end_at_limit else step
                found.append((score * step**exponent / length_penalty(length, search), tokens))
        found.sort(key=lambda one: -one[0])
        known = self._target_ids
        best = [
            Candidate([known[token] for token in tokens[len(self._prefix) :]], score)
            for score, tokens in found[:num_hypotheses]
        ]
        return best, last


def share_of_rows(num_rows: int, num_workers: int) -> int:
    """The most rows of a batch, if this many rows are translated by this many workers."""
    if num_workers == 1:
        return num_rows
    for_each_core = min(_ENOUGH_ROWS, math.ceil(num_rows / num_workers))
    return max(_LEAST_ROWS, for_each_core, math.ceil(num_rows / (_BATCHES_A_WORKER * num_workers)))
