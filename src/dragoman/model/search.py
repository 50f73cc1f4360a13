"""Greedy and beam search, alone or with an ensemble.

Every step ranks the continuations of a sentence's open hypotheses by log-probability. Those of
the best `beam_size` that end are finished; the best `beam_size` that do not end stay open. The
search for a sentence is over when `beam_size` hypotheses are finished, as in fairseq, CTranslate2
and Hugging Face (`early_stopping=True`). Without early stopping, the default of Hugging Face, it
goes on as long as an open hypothesis, at its present length, has a higher score than the worst of
the best `beam_size` finished ones. Both end earlier, with the same result, if no open hypothesis
can still come before the finished ones that are asked for: log-probabilities only fall, so its
score stays at or below its present log-probability over the largest length penalty. Greedy search
ends with the first end of sentence.

Shapes: B sentences, W open hypotheses of each, C candidates for a sentence, T tokens so far, V
target vocabulary, G groups of pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.corpus.shards import EOS, PAD
from dragoman.model.config import (
    SearchConfig,
    check_beam_holds,
    length_limit,
    length_penalty,
)
from dragoman.model.incremental import DecoderState, decode_step, inference, start_decoding
from dragoman.model.transformer import Transformer

MAX_GROUP = 64
"""Largest number of pieces that are compared as one group at first."""
CHUNK_CELLS = 1 << 18
"""Logits that are exponentiated at a time on a CPU."""
_NEVER = -1e30
"""Log-probability of forbidden pieces: infinite ones would make sums that are not numbers."""
FULL_ENOUGH = 0.75
"""Sentences leave the batch once fewer than this share of its rows are still searched."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation. Ids are without beginning and end of sentence.

    log_probability: in nats, of the ids and of the end of sentence; of the ids alone if the
        length limit cut the translation off.
    score: log_probability over the length penalty, in which the end of sentence counts.
    """

    ids: list[int]
    score: float
    log_probability: float


def translate_batch(
    models: Sequence[Transformer],
    source_ids: Sequence[Sequence[int]],
    config: SearchConfig,
    *,
    num_hypotheses: int = 1,
    beginnings: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """The `num_hypotheses` best translations of each source, best first, in the order given.

    models: one, or several with the same vocabularies, whose probabilities are averaged for each
        token (the mean of probabilities, as in fairseq; not of their logarithms).
    source_ids: pieces without end of sentence.
    beginnings: the pieces that the translations of each source begin with; None: any.

    Raises ConfigError if more hypotheses are asked for than the beam holds.
    """
    check_beam_holds(num_hypotheses, config)
    results: list[list[Hypothesis]] = [[] for _ in source_ids]
    with inference(models):
        for rows in plan_batches([len(ids) for ids in source_ids], config):
            sources = [source_ids[row] for row in rows]
            own = [beginnings[row] if beginnings else () for row in rows]
            found = _BatchSearch(models, sources, config, num_hypotheses, own).run()
            for row, hypotheses in zip(rows, found, strict=True):
                results[row] = hypotheses
    return results


def plan_batches(lengths: Sequence[int], config: SearchConfig) -> list[list[int]]:
    """Rows that are searched together, longest first, of like length, within `batch_tokens`.

    lengths: pieces without end of sentence. A batch given to `translate_batch` stays one batch.
    """
    batches: list[list[int]] = []
    capacity = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not batches or len(batches[-1]) >= capacity:
            batches.append([])
            capacity = max(1, config.batch_tokens // ((lengths[row] + 1) * config.beam_size))
        batches[-1].append(row)
    return batches


class _BatchSearch:
    """The search for one batch. Large values are in tensors, the bookkeeping is in NumPy."""

    def __init__(
        self,
        models: Sequence[Transformer],
        sources: Sequence[Sequence[int]],
        config: SearchConfig,
        num_hypotheses: int,
        beginnings: Sequence[Sequence[int]],
    ) -> None:
        self.beginnings = beginnings
        self.longest_beginning = max(map(len, beginnings))
        self.models = models
        self.config = config
        self.num_hypotheses = num_hypotheses
        self.device = models[0].embeddings.target_matrix.device
        source_BS, lengths_B = _pad(sources, self.device)
        self.states = [start_decoding(model, source_BS, lengths_B) for model in models]
        self.finished: list[list[Hypothesis]] = [[] for _ in sources]
        self.sentences_B = np.arange(len(sources))
        self.searched_B = np.ones(len(sources), dtype=bool)
        start_ids = models[0].config.start_ids  # they count towards the length
        self.limits_B = np.array(
            [max(len(start_ids), length_limit(len(source), config)) for source in sources]
        )
        self.last_penalties_B = np.array(
            [length_penalty(n, config) for n in self.limits_B.tolist()]
        )
        self.num_finished_B = np.zeros(len(sources), dtype=np.int64)
        self.wanted_scores_B = np.full(len(sources), -math.inf)
        self.num_start_ids = len(start_ids)
        self.open_ids_BWT = np.tile(np.array(start_ids), (len(sources), 1, 1))
        for start_id in start_ids[:-1]:
            ids_BW = torch.full((len(sources), 1), start_id, device=self.device)
            _ensemble_logits(models, ids_BW, self.states)
        self.open_scores_BW = np.zeros((len(sources), 1), dtype=np.float32)

    def run(self) -> list[list[Hypothesis]]:
        """The finished hypotheses of each sentence, best first."""
        while self.searched_B.any():
            if self.searched_B.mean() < FULL_ENOUGH:
                self._drop_finished_sentences()
            self._step()
        return [hypotheses[: self.num_hypotheses] for hypotheses in self.finished]

    def _step(self) -> None:
        """One more token for every open hypothesis."""
        ids_BW = torch.from_numpy(self.open_ids_BWT[:, :, -1]).to(self.device)
        logits_BWV = _ensemble_logits(self.models, ids_BW, self.states)
        _, width, vocab_size = logits_BWV.shape
        beam_size = self.config.beam_size
        num_candidates = min(2 * beam_size, width * vocab_size)
        open_scores_BW = torch.from_numpy(self.open_scores_BW).to(self.device)
        length = self.open_ids_BWT.shape[2]
        if self.config.no_repeat_ngram_size:
            self._forbid_repetition(logits_BWV)
        is_beginning = length - self.num_start_ids < self.longest_beginning
        constrained = self.config.never_padding or self.config.end_at_limit or is_beginning
        if constrained:
            logits_BWV = self._constrained(logits_BWV, at_limit_B=self.limits_B == length)
        if is_beginning:
            self._begin(logits_BWV, length - self.num_start_ids)
        best, places = best_continuations(
            logits_BWV, open_scores_BW, num_candidates, normalized=constrained
        )
        scores_BC = best.cpu().numpy()
        parents_BC, tokens_BC = np.divmod(places.cpu().numpy(), vocab_size)
        ends_BC = (tokens_BC == EOS) | (self.limits_B == length)[:, None]
        self._finish(ends_BC[:, :beam_size], scores_BC, parents_BC, tokens_BC)
        # At most `width` of the candidates end a sentence, so enough are left at all times.
        next_width = min(beam_size, num_candidates - width)
        order_BW = np.argsort(ends_BC, axis=1, kind="stable")[:, :next_width]
        self._go_on(
            *(np.take_along_axis(x_BC, order_BW, 1) for x_BC in (scores_BC, parents_BC, tokens_BC))
        )

    def _forbid_repetition(self, logits_BWV: Tensor) -> None:
        """Take out pieces that would end an n-gram which the hypothesis already has.

        The probabilities of the others are normalised again, as in CTranslate2 and fairseq.
        """
        size = self.config.no_repeat_ngram_size
        ids_BWT = self.open_ids_BWT[:, :, self.num_start_ids :]
        if ids_BWT.shape[2] < size:
            return
        grams_BWNG = np.lib.stride_tricks.sliding_window_view(ids_BWT, size, axis=2)
        last_BWG = ids_BWT[:, :, ids_BWT.shape[2] - size + 1 :]
        again_BWN = (grams_BWNG[..., :-1] == last_BWG[:, :, None]).all(axis=3)
        rows, hypotheses, places = again_BWN.nonzero()
        pieces = grams_BWNG[rows, hypotheses, places, -1]
        cells = (torch.from_numpy(x).to(self.device) for x in (rows, hypotheses, pieces))
        logits_BWV[tuple(cells)] = _NEVER

    def _constrained(self, logits_BWV: Tensor, *, at_limit_B: NDArray[np.bool_]) -> Tensor:
        """Log-probabilities, in which pieces that may not be chosen have the lowest numbers.

        The others are not normalised again unless the configuration says so, as in Hugging Face's
        generation.
        """
        if self.config.never_padding and self.config.renormalize:
            logits_BWV[:, :, PAD] = _NEVER
        logits_BWV = logits_BWV - _log_sum_exp(logits_BWV, logits_BWV.amax(2))[:, :, None]
        if self.config.never_padding:
            logits_BWV[:, :, PAD] = _NEVER
        if self.config.end_at_limit and at_limit_B.any():
            rows = torch.from_numpy(at_limit_B.nonzero()[0]).to(self.device)
            logits_BWV[rows] = _NEVER
            logits_BWV[rows, :, EOS] = 0.0
        return logits_BWV

    def _begin(self, log_probabilities_BWV: Tensor, place: int) -> None:
        """Leave nothing but the piece of the beginning at this place, where there is one."""
        for row, sentence in enumerate(self.sentences_B.tolist()):
            if place < len(self.beginnings[sentence]):
                piece = self.beginnings[sentence][place]
                kept_W = log_probabilities_BWV[row, :, piece].clone()
                log_probabilities_BWV[row] = _NEVER
                log_probabilities_BWV[row, :, piece] = kept_W

    def _finish(
        self,
        ends_BW: NDArray[np.bool_],
        scores_BC: NDArray[np.float32],
        parents_BC: NDArray[np.int64],
        tokens_BC: NDArray[np.int64],
    ) -> None:
        """Move candidates that have ended to the finished hypotheses of their sentences."""
        length = self.open_ids_BWT.shape[2]
        for row, candidate in zip(*(ends_BW & self.searched_B[:, None]).nonzero(), strict=True):
            ids = self.open_ids_BWT[row, parents_BC[row, candidate], self.num_start_ids :].tolist()
            if tokens_BC[row, candidate] != EOS:
                ids.append(int(tokens_BC[row, candidate]))
            log_probability = float(scores_BC[row, candidate])
            if log_probability < _NEVER / 2:
                continue
            score = log_probability / length_penalty(length, self.config)
            finished = self.finished[self.sentences_B[row]]
            finished.append(Hypothesis(ids, score, log_probability))
            self.num_finished_B[row] += 1
            finished.sort(key=lambda hypothesis: -hypothesis.score)
            if len(finished) >= self.num_hypotheses:
                self.wanted_scores_B[row] = finished[self.num_hypotheses - 1].score

    def _go_on(
        self,
        scores_BW: NDArray[np.float32],
        parents_BW: NDArray[np.int64],
        tokens_BW: NDArray[np.int64],
    ) -> None:
        """Make these candidates the open hypotheses and see which sentences are done."""
        length = self.open_ids_BWT.shape[2]
        past_BWT = np.take_along_axis(self.open_ids_BWT, parents_BW[:, :, None], 1)
        self.open_ids_BWT = np.concatenate([past_BWT, tokens_BW[:, :, None]], axis=2)
        self.open_scores_BW = scores_BW
        hopeless_B = scores_BW[:, 0] / self.last_penalties_B <= self.wanted_scores_B
        enough_B = self.num_finished_B >= self.config.beam_size
        if self.config.beam_size > 1 and not self.config.early_stopping:
            best_B = scores_BW[:, 0] / length_penalty(length, self.config)
            for row in enough_B.nonzero()[0]:
                finished = self.finished[self.sentences_B[row]]
                enough_B[row] = best_B[row] <= finished[self.config.beam_size - 1].score
        self.searched_B &= ~hopeless_B & ~enough_B & (self.limits_B > length)
        parents = torch.from_numpy(parents_BW).to(self.device)
        for state in self.states:
            state.select(parents)

    def _drop_finished_sentences(self) -> None:
        """Take the rows that are no longer searched out of the batch."""
        rows = self.searched_B.nonzero()[0]
        for state in self.states:
            state.keep(torch.from_numpy(rows).to(self.device))
        self.sentences_B = self.sentences_B[rows]
        self.searched_B = self.searched_B[rows]
        self.limits_B = self.limits_B[rows]
        self.last_penalties_B = self.last_penalties_B[rows]
        self.num_finished_B = self.num_finished_B[rows]
        self.wanted_scores_B = self.wanted_scores_B[rows]
        self.open_ids_BWT = self.open_ids_BWT[rows]
        self.open_scores_BW = self.open_scores_BW[rows]


def best_continuations(
    logits_BWV: Tensor, scores_BW: Tensor, num_candidates: int, *, normalized: bool = False
) -> tuple[Tensor, Tensor]:
    """The best continuations of each sentence, best first: (scores_BC, w * V + piece).

    logits_BWV: unnormalised, or log-probabilities if `normalized`.
    scores_BW: log-probabilities of the open hypotheses.
    The score of a continuation is the log-probability of the hypothesis and the piece.
    """
    rows, width, vocab_size = logits_BWV.shape
    # The C best cells lie in the C groups with the best maxima, so few cells need to be ranked.
    group = max(size for size in range(1, MAX_GROUP + 1) if vocab_size % size == 0)
    groups = vocab_size // group
    best_BWG = logits_BWV.view(rows, width, groups, group).amax(3)
    offsets_BW1 = scores_BW[:, :, None]
    if not normalized:
        offsets_BW1 = offsets_BW1 - _log_sum_exp(logits_BWV, best_BWG.amax(2))[:, :, None]
    best_BWG += offsets_BW1
    num_groups = min(num_candidates, width * groups)
    chosen_BC = best_BWG.view(rows, -1).topk(num_groups, sorted=False).indices
    cells_BGX = logits_BWV.view(rows, width * groups, group)
    cells_BCX = cells_BGX.gather(1, chosen_BC[:, :, None].expand(-1, -1, group))
    cells_BCX = cells_BCX + offsets_BW1.view(rows, width).gather(1, chosen_BC // groups)[:, :, None]
    candidates_BC, places_BC = cells_BCX.view(rows, -1).topk(num_candidates)
    return candidates_BC, chosen_BC.gather(1, places_BC // group) * group + places_BC % group


def _log_sum_exp(logits_BWV: Tensor, largest_BW: Tensor) -> Tensor:
    """log(sum(exp(logits))) of each hypothesis, in pieces that stay in a CPU's cache."""
    if logits_BWV.device.type != "cpu":
        return logits_BWV.logsumexp(2)
    chunk = max(1, CHUNK_CELLS // logits_BWV[0].numel())
    chunks = zip(torch.split(logits_BWV, chunk), torch.split(largest_BW, chunk), strict=True)
    sums = [(logits - largest[:, :, None]).exp_().sum(2) for logits, largest in chunks]
    return torch.cat(sums).log_().add_(largest_BW)


def _ensemble_logits(
    models: Sequence[Transformer], ids_BW: Tensor, states: Sequence[DecoderState]
) -> Tensor:
    """The logits after each hypothesis, or the log of the mean probability of several models."""
    logits = [
        decode_step(model, ids_BW, state) for model, state in zip(models, states, strict=True)
    ]
    if len(logits) == 1:
        return logits[0]
    log_probabilities = torch.stack([logits_BWV.log_softmax(2) for logits_BWV in logits])
    return log_probabilities.logsumexp(0) - math.log(len(models))


def _pad(sources: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(source_BS, source_lengths_B), both with end of sentence."""
    lengths = [len(source) + 1 for source in sources]
    rows = [[*source, EOS] + [PAD] * (max(lengths) - len(source) - 1) for source in sources]
    return torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
