"""A validation: the loss on dev text and on training text, and scored translations of dev text.

The ranks share the work in whole batches, which do not depend on the number of ranks, and sums do
not depend on their order. So losses, scores and texts are the same with any number of ranks.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.base.errors import CorpusError
from dragoman.base.line_files import not_utf8
from dragoman.corpus.directions import Direction
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.split import read_directions
from dragoman.corpus.vocabulary import Vocabulary, load_vocabulary
from dragoman.data.batch import make_batch
from dragoman.distributed.world import World
from dragoman.evaluation.bayes_risk import best_first
from dragoman.evaluation.config import EvaluateConfig
from dragoman.evaluation.directions import (
    DirectionScore,
    bleu_and_chrf,
    in_mean,
    mean_scores,
    rows_by_direction,
    score_directions,
)
from dragoman.evaluation.metrics import Score, score_all
from dragoman.evaluation.sentences import cut_into_chunks
from dragoman.model.config import SearchConfig
from dragoman.model.incremental import inference
from dragoman.model.search import plan_batches, translate_batch
from dragoman.model.transformer import Transformer
from dragoman.telemetry.events import MetricScored, Payload, SampleTranslation, Validated
from dragoman.training.stopping import GivenUpError, is_asked_to_stop

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ValidationData:
    """The parts of a prepared corpus that a validation needs.

    subwords: the vocabularies of source and target. sources, references: the normalised dev text.
    max_source_pieces: the longest source, without end of sentence, that is translated in one go.
    directions: the translation direction of each dev pair; empty if there is one only. trained:
        those with training text.
    train_slices: for each trained direction, the indices in `train` of the pairs whose loss is
        measured; equally many, or all if a direction has fewer. Empty: none is measured.
    """

    dev: TokenShards
    train: TokenShards
    subwords: tuple[Vocabulary, Vocabulary]
    sources: list[str]
    references: list[str]
    max_source_pieces: int
    directions: Sequence[Direction] = ()
    trained: Collection[Direction] = ()
    train_slices: Sequence[NDArray[np.int64]] = ()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        max_source_pieces: int,
        trained: Collection[Direction] = (),
        drawn: Sequence[Direction | None] = (),
        train_slice_pairs: int = 0,
        train_share: float = 1.0,
    ) -> Self:
        """Read the parts from the directory that `prepare` has written.

        drawn: the direction of each entry of the training text, None for those that the training
            leaves out; empty: it draws from all of them, in one direction.
        train_slice_pairs: the size of all training slices together.
        train_share: the share of the training text that is used.
        """
        train = TokenShards(directory / "train", share=train_share)
        return cls(
            dev=TokenShards(directory / "valid"),
            train=train,
            subwords=(
                load_vocabulary(directory / "source.model"),
                load_vocabulary(directory / "target.model"),
            ),
            sources=read_lines(directory / "valid" / "source.txt"),
            references=read_lines(directory / "valid" / "target.txt"),
            max_source_pieces=max_source_pieces,
            directions=read_directions(directory / "valid"),
            trained=trained,
            train_slices=_train_slices(train, drawn, train_slice_pairs),
        )


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of one validation, the same on every rank.

    Losses are nats per target token without smoothing, dropout off; None if not measured.
    scores: by the names of METRICS; empty if nothing was decoded. decoded_pairs: the pairs behind
        these scores.
    directions: the scores of each, if there are several; dev_loss and scores are then means over
        those with training text.
    """

    dev_loss: float
    train_slice_loss: float | None
    scores: dict[str, Score]
    samples: list[SampleTranslation]
    dev_pairs: int
    decoded_pairs: int
    loss_s: float
    decode_s: float
    directions: list[DirectionScore] = field(default_factory=list)

    @property
    def dev_perplexity(self) -> float:
        """The exponential of dev_loss."""
        return math.exp(self.dev_loss) if self.dev_loss < 700 else math.inf

    @property
    def further_scores(self) -> list[Payload]:
        """Events of the directions, and of the metrics for which `event` has no place."""
        directions = [one.event("valid") for one in self.directions]
        return [*directions, *further_scores("valid", self.scores)]

    def event(self) -> Validated:
        """As an event; the samples and further scores are events already."""
        return Validated(
            dev_loss=self.dev_loss,
            dev_perplexity=self.dev_perplexity,
            train_slice_loss=self.train_slice_loss,
            **bleu_and_chrf(self.scores),
            dev_pairs=self.dev_pairs,
            decoded_pairs=self.decoded_pairs,
            loss_s=self.loss_s,
            decode_s=self.decode_s,
        )


def validate(
    model: Transformer,
    data: ValidationData,
    *,
    config: EvaluateConfig,
    search: SearchConfig,
    world: World,
) -> Validation:
    """Measure a model; every rank takes part. For averaged weights, load them first.

    Raises GivenUpError on every rank, after the current batch, if one rank is asked to stop.
    """
    started = time.perf_counter()
    by_direction = rows_by_direction(data.directions)
    rows_by_text = [*by_direction.values()] or [np.arange(data.dev.num_pairs)]
    dev_losses = [
        mean_loss(model, data.dev, rows, world, batch_tokens=config.batch_tokens)
        for rows in rows_by_text
    ]
    losses = dict(zip(by_direction, dev_losses, strict=False))
    trained_losses = [losses[one] for one in losses if one in data.trained] or dev_losses
    train_slice_loss = None
    if data.train_slices:
        # A mean over directions, like dev_loss: otherwise the two could differ merely because the
        # directions have other sizes.
        slice_losses = [
            mean_loss(model, data.train, pairs, world, batch_tokens=config.batch_tokens)
            for pairs in data.train_slices
        ]
        train_slice_loss = math.fsum(slice_losses) / len(slice_losses)
    decode_started = time.perf_counter()
    share = math.ceil(config.bleu_pairs / len(rows_by_text))
    decoded = [row for rows in rows_by_text for row in rows[:share].tolist()]
    sources = [data.sources[row] for row in decoded]
    references = [data.references[row] for row in decoded]
    hypotheses = translate_corpus(
        [model], data.subwords, sources, search, world, max_source_pieces=data.max_source_pieces
    )
    decode_s = time.perf_counter() - decode_started
    own: dict[str, Score] = {}
    own_directions: list[DirectionScore] = []
    if world.is_main and by_direction:
        ends = np.cumsum([len(rows[:share]) for rows in rows_by_text])
        places = np.split(np.arange(len(decoded)), ends[:-1])
        own_directions = score_directions(
            hypotheses,
            references,
            dict(zip(by_direction, places, strict=True)),
            config,
            trained=data.trained,
            losses=losses,
        )
        own = mean_scores(own_directions)
    elif world.is_main:
        target = next((direction.target for direction in data.trained), "")
        own = score_all(hypotheses, references, config, language=target)
    scores, directions, loss_s, decode_s = world.gather_json(
        [
            {name: asdict(score) for name, score in own.items()},
            [one.as_json() for one in own_directions],
            decode_started - started,
            decode_s,
        ]
    )[0]  # those of rank 0
    scored = [DirectionScore.from_json(values) for values in directions]
    return Validation(
        dev_loss=math.fsum(trained_losses) / len(trained_losses),
        train_slice_loss=train_slice_loss,
        scores={name: Score(**fields) for name, fields in scores.items()},
        samples=[
            SampleTranslation(
                source=sources[row], hypothesis=hypotheses[row], reference=references[row]
            )
            for row in _evenly(len(sources), config.sample_translations).tolist()
        ],
        dev_pairs=data.dev.num_pairs,
        decoded_pairs=sum(one.pairs for one in in_mean(scored)) or len(sources),
        loss_s=loss_s,
        decode_s=decode_s,
        directions=scored,
    )


def mean_loss(
    model: Transformer,
    shards: TokenShards,
    indices: NDArray[np.int64],
    world: World,
    *,
    batch_tokens: int,
) -> float:
    """Nats per target token over these pairs, dropout off, without smoothing; on every rank.

    batch_tokens: most cells of the longer side of a batch. Raises CorpusError without pairs, and
    GivenUpError if a signal asks to stop.
    """
    if not len(indices):
        raise CorpusError("no pairs to measure the loss on", remedy="give the split some text")
    batches = _batches_of_like_length(shards, indices, batch_tokens)
    sums, num_tokens = [], 0
    with inference([model]):
        for batch_indices in _until_asked_to_stop(batches[world.rank :: world.world_size]):
            batch = make_batch(*shards.gather(batch_indices)).to(world.device)
            sums.append(model(batch).nll.double())
            num_tokens += batch.num_target_tokens
    own_sums = torch.stack(sums).tolist() if sums else []
    gathered = _gather_whole(world, [own_sums, num_tokens])
    total_nll = math.fsum(nll for rank_sums, _ in gathered for nll in rank_sums)
    total_tokens: int = sum(rank_tokens for _, rank_tokens in gathered)
    return total_nll / total_tokens


def translate_corpus(
    models: Sequence[Transformer],
    subwords: tuple[Vocabulary, Vocabulary],
    sources: Sequence[str],
    config: SearchConfig,
    world: World,
    *,
    max_source_pieces: int,
) -> list[str]:
    """The translation of each line in its place, detokenised, on every rank.

    subwords: the vocabularies of source and target.
    sources: text normalised like the training text.
    A line of more than max_source_pieces is translated in parts; an empty one stays empty.
    Raises GivenUpError if a signal asks to stop training.
    """
    source_subword, target_subword = subwords
    chunks_of_lines = [
        cut_into_chunks(line, source_subword, max_pieces=max_source_pieces) for line in sources
    ]
    chunks = [chunk for chunks_of_line in chunks_of_lines for chunk in chunks_of_line]
    own_texts: list[tuple[int, str]] = []
    config = config.for_candidates()
    batches = plan_batches([len(chunk) for chunk in chunks], config)
    for batch in _until_asked_to_stop(batches[world.rank :: world.world_size]):
        found = translate_batch(
            models, [chunks[row] for row in batch], config, num_hypotheses=config.candidates
        )
        decoded = iter(target_subword.decode([one.ids for row in found for one in row]))
        for row, candidates in zip(batch, found, strict=True):
            texts = [next(decoded) for _ in candidates]
            best, *_ = best_first(texts, [one.score for one in candidates])
            own_texts.append((row, texts[best]))
    translated = {row: text for part in _gather_whole(world, own_texts) for row, text in part}
    rows = iter(range(len(chunks)))
    return [
        " ".join(translated[next(rows)] for _ in chunks_of_line)
        for chunks_of_line in chunks_of_lines
    ]


def _until_asked_to_stop(batches: Iterable[T]) -> Iterator[T]:
    return itertools.takewhile(lambda _batch: not is_asked_to_stop(), batches)


def _gather_whole(world: World, own: Any) -> list[Any]:
    """The measurements of every rank; raises GivenUpError on each if one was asked to stop."""
    gathered = world.gather_json([own, is_asked_to_stop()])
    if any(stopped for _, stopped in gathered):
        raise GivenUpError
    return [found for found, _ in gathered]


def text_name(source: Path, directions: Sequence[Direction]) -> str:
    """The name of a test set, from its source file; a run has its own "test" and "valid".

    It has the file's suffix if the model has several source languages, since their files often
    have the same stem.
    """
    names = [source.stem, source.name, f"other-{source.name}"]
    if len({one.source for one in directions}) > 1:
        del names[0]
    return next(one for one in names if one not in ("test", "valid"))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file without their ends: a newline, or a carriage return and a newline.

    Raises CorpusError if the file cannot be read, is not UTF-8 or holds nothing.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # passes over a byte order mark
    except OSError as error:
        raise CorpusError(
            f"cannot be read: {error.strerror}", place=path, remedy="check the name"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise not_utf8(path, line=line, head=error.object) from error
    if not text:
        raise CorpusError("holds no text", place=path, remedy="give one sentence per line")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_pair(source: Path, reference: Path) -> tuple[list[str], list[str]]:
    """The lines of a text and of its reference, equally many.

    Raises CorpusError if they differ in number, or as `read_lines` does.
    """
    sources, references = read_lines(source), read_lines(reference)
    if len(sources) != len(references):
        raise CorpusError(
            f"the source has {len(sources)} lines, the reference {len(references)}",
            place=f"{source}, {reference}",
            remedy="give files in which line N of one belongs to line N of the other",
        )
    return sources, references


def _batches_of_like_length(
    shards: TokenShards, indices: NDArray[np.int64], batch_tokens: int
) -> list[NDArray[np.int64]]:
    """The pairs, longest first, in batches of at most `batch_tokens` cells on the longer side."""
    lengths = np.maximum(shards.source_lengths[indices], shards.target_lengths[indices]) + 1
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        rows = max(1, batch_tokens // int(lengths[order[start]]))
        batches.append(indices[order[start : start + rows]])
        start += rows
    return batches


def further_scores(text: str, scores: Mapping[str, Score]) -> list[MetricScored]:
    """Events of all scores but BLEU and chrF. text: the translated text, "valid" or a test set."""
    return [
        MetricScored(text=text, metric=name, **asdict(score))
        for name, score in scores.items()
        if name not in ("bleu", "chrf")
    ]


def _train_slices(
    train: TokenShards, drawn: Sequence[Direction | None], num_pairs: int
) -> list[NDArray[np.int64]]:
    """For each direction, indices of training pairs, spread evenly over its drawn entries.

    drawn: as in `ValidationData.open`. num_pairs: in all directions together.
    """
    directions = [one for one in dict.fromkeys(drawn) if one is not None]
    if len(directions) <= 1 and None not in drawn:  # shards may have no list of entries
        slices = [_evenly(train.num_pairs, num_pairs)]
    else:
        entries, share = train.entries(), math.ceil(num_pairs / len(directions))
        slices = []
        for direction in directions:
            numbers = [number for number, one in enumerate(drawn) if one == direction]
            rows = np.flatnonzero(np.isin(entries, numbers))
            slices.append(rows[_evenly(len(rows), share)])
    return [rows for rows in slices if len(rows)]


def _evenly(num_items: int, num_chosen: int) -> NDArray[np.int64]:
    """Positions spread over the whole, always the same ones; all of them if there are fewer."""
    num_chosen = min(num_chosen, num_items)
    return np.arange(num_chosen) * num_items // max(1, num_chosen)
