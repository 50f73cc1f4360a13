"""The model for a budget: its size from one table, and the settings that follow from size and time.

A larger model learns more from each token, and sees fewer of them in the same time. So a size is
taken from a number of target tokens on that it sees in the time: TOKENS_PER_WEIGHT for each weight
of its layers. On Multi30k, in equal time, 192 wide against 128 wide (BLEU on test2016, means of
French and Czech, `benchmarks/results.jsonl`):

    tokens per weight   0.3     1.0     4.0
    difference         -11.0   -1.3    +0.3

Beyond a hundred million tokens, and beyond WEIGHTS_PER_TEXT_TOKEN weights for each token of the
text, nothing was measured here; there the table is a rule of thumb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dragoman.base import units
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.sources import Sources
from dragoman.data.config import LENGTH_GROUPS
from dragoman.recipe.budget import filled
from dragoman.recipe.estimate import TYPICAL_LENGTH, estimate
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.text_size import text_bytes
from dragoman.run.speed import TIMED_GPU_TOKENS, TrainingMachine

SIZE_KEYS: Final = ("d_model", "num_heads", "d_ffn", "encoder_layers", "decoder_layers")
SIZES: Final[dict[str, tuple[int, int, int, int, int]]] = {
    "mini": (128, 4, 512, 3, 2),
    "tiny": (192, 4, 768, 3, 2),
    "small": (256, 4, 1024, 3, 2),
    "medium": (384, 6, 1536, 4, 3),
    "base": (512, 8, 2048, 6, 6),
    "big": (1024, 16, 4096, 6, 6),
}
"""Width, heads, inner width, and layers of encoder and decoder."""
TOKENS_PER_WEIGHT: Final = 4.0
WEIGHTS_PER_TEXT_TOKEN: Final = 10.0
LEAST_STEPS: Final = 100
"""Fewer updates do not make a model that is worth its time."""
_DROPOUTS: Final = ((6.0, 0.0), (30.0, 0.1), (60.0, 0.2))
"""A run of fewer epochs gets this dropout. On Multi30k, 0.1 cost 2.4 BLEU in 2.5 epochs and gained
1.1 in 8.4; 0.2 was still worse than 0.1 after 17 epochs, by 0.04 of the loss and shrinking."""
_MOST_DROPOUT: Final = 0.3
PAIR_BYTES: Final = 150
"""Length of a typical pair of sentences, both sides."""
_PIECE_BYTES: Final = 4.5
"""Length of a typical piece of text."""
VOCABULARY: Final = (200, 32_000)
"""The least and the most pieces."""
_USUAL_CHARACTERS: Final = 200
"""Two alphabets with their marks have no more characters; Chinese has thousands."""
_COUNTED_PAIRS: Final = 100_000
"""In more text, the usual number of pieces is enough for the characters."""
_LINES_AT_ONCE: Final = 10_000
UNKNOWN_PAIRS: Final = 1_000_000
"""The number of pairs to assume if the text is not here yet."""
_CPU_BATCH: Final = (2048, 8192)
_GPU_BATCH: Final = (TIMED_GPU_TOKENS, 65_536)
"""The least and the most cells. On a CPU a million tokens taught less with 1,280 than with 2,048.
On an H100 a step of `big` took 60 ms with 7,424 cells, and 55 ms with 16,384 target tokens."""
_SMALL_GPU_BATCH: Final = 4096
"""The least cells if more do not fit into the memory."""
LEAST_WIDTH: Final = 64
"""Narrower models get no higher rate: one of width 16 diverged with 3.6e-2."""
_WORTH_COMPILING_S: Final = 1800.0
"""The compiler takes a minute or two."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """The text. pairs, target_tokens: those to train on, with ends of sentences. valid_pairs: of
    the dev set. test_pieces: source pieces of the test set; 0 without one."""

    pairs: int
    target_tokens: int
    valid_pairs: int = 1000
    source_pieces_per_pair: float = float(TYPICAL_LENGTH)
    test_pieces: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> TextFacts:
        """The facts about prepared text."""
        train, valid = manifest.train, manifest.splits["valid"]
        test = manifest.splits.get("test")
        return cls(
            train.pairs,
            train.target_pieces + train.pairs,
            valid.pairs,
            valid.source_pieces / max(valid.pairs, 1),
            0 if test is None else test.source_pieces,
        )

    @classmethod
    def guessed(cls, recipe: Recipe) -> TextFacts:
        """An estimate from the sizes of the files, for text that is not prepared."""
        sizes = [text_bytes(entry, Path(recipe.corpus.folder)) for entry in recipe.corpus.train]
        known = [size for size in sizes if size is not None]
        is_here = len(known) == len(sizes)
        pairs = max(1, round(sum(known) / PAIR_BYTES)) if is_here else UNKNOWN_PAIRS
        return cls(pairs, round(pairs * PAIR_BYTES / 2 / _PIECE_BYTES) + pairs)


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A size, with the settings and figures that follow from it.

    tokens_per_s, tokens: target tokens that it is trained on per second, and in the time. is_timed:
    whether its steps were timed; otherwise its speed follows from that of another size and the
    arithmetic of both. training_s: seconds for training. why: why it was taken, or not.
    """

    name: str
    recipe: Recipe
    tokens_per_s: float
    tokens: float
    steps: int
    epochs: float
    training_s: float
    is_timed: bool
    why: str = ""

    @property
    def step_s(self) -> float:
        """Seconds of an update."""
        return self.tokens / self.tokens_per_s / max(self.steps, 1)

    @property
    def tokens_per_weight(self) -> float:
        """Target tokens in the time for each weight of the layers."""
        return self.tokens / inner_weights(self.recipe)


def inner_weights(recipe: Recipe) -> int:
    """Weights of the layers, without embeddings (Kaplan et al. 2020)."""
    model = recipe.model.model_copy(update={"tied_embeddings": "all"})
    size = model.num_parameters(source_vocab_size=1, target_vocab_size=1)
    return size - model.d_model


def choose(
    recipe: Recipe,
    text: TextFacts,
    machine: TrainingMachine,
    *,
    by_hand: frozenset[str],
    training_s: float,
    after_s: Callable[[Recipe], float],
) -> tuple[SizedModel, list[SizedModel]]:
    """The size for this many seconds, and it with its two neighbours, each with the reason.

    after_s: how many of these seconds are not for training, but for work after it.

    The smallest size is timed, then the one that the table takes: if that is slower than its
    arithmetic said, the one before it may be taken. Raises ConfigError if none fits into the
    memory.
    """
    sizes = dict(_sizes(recipe, by_hand))
    names = list(sizes)
    first_speed = machine.speed(sizes[names[0]])
    work = {name: estimate(sized).flop_per_target_token for name, sized in sizes.items()}
    timed = {names[0]: first_speed}

    def sized(name: str) -> SizedModel:
        tokens_per_s = timed.get(name, first_speed * work[names[0]] / work[name])
        left_s = max(training_s - after_s(sizes[name]), 1.0)
        found = _sized(name, sizes[name], tokens_per_s, text, machine, by_hand, left_s)
        return replace(found, is_timed=name in timed, why=_against(found, text, machine))

    if not _fits(sized(names[0]).recipe, machine):
        raise ConfigError(
            f"no model fits into {units.SIZE.text(machine.memory_bytes)} of memory",
            place="budget",
            remedy="set a smaller data.batch_tokens, or use another machine",
        )
    while True:
        taken = max(n for n in range(len(names)) if n == 0 or not sized(names[n]).why)
        if names[taken] in timed:
            break
        timed[names[taken]] = machine.speed(sizes[names[taken]])
    around = [sized(name) for name in names[max(taken - 1, 0) : taken + 2]]
    best = next(one for one in around if one.name == names[taken])
    larger = around[-1] if around[-1].name != best.name else None
    chosen = replace(best, why=_reason(best))
    smaller = "smaller than the time allows"
    return chosen, [
        chosen if one.name == best.name else replace(one, why=one.why if one is larger else smaller)
        for one in around
    ]


def _reason(best: SizedModel) -> str:
    if best.name == "as set":
        return "the recipe sets it"
    if best.name == "mini":
        return "the smallest, for little time or little text"
    return f"the largest that sees {TOKENS_PER_WEIGHT:g} target tokens per weight in the time"


def _against(one: SizedModel, text: TextFacts, machine: TrainingMachine) -> str:
    """Why a size is not taken; "" if it may be. Any recipe may have the smallest."""
    if not _fits(one.recipe, machine):
        size = units.SIZE.text(estimate(one.recipe).memory.total_bytes)
        return f"needs {size} of memory"
    if one.tokens_per_weight < TOKENS_PER_WEIGHT:
        return (
            f"too slow for this time: {one.tokens_per_weight:.2g} target tokens per weight, "
            f"{TOKENS_PER_WEIGHT:g} are needed"
        )
    if one.steps < LEAST_STEPS:
        return f"too few updates: {LEAST_STEPS} are the least"
    if inner_weights(one.recipe) > WEIGHTS_PER_TEXT_TOKEN * text.target_tokens:
        return f"too large for {units.SHORT_COUNT.text(text.target_tokens)} target tokens of text"
    return ""


def _fits(recipe: Recipe, machine: TrainingMachine) -> bool:
    return estimate(recipe).memory.total_bytes <= machine.memory_bytes


def _sizes(recipe: Recipe, by_hand: frozenset[str]) -> Iterator[tuple[str, Recipe]]:
    """The recipe in each size; in one alone if the recipe sets the size."""
    seen = []
    for name, numbers in SIZES.items():
        values = {f"model.{key}": number for key, number in zip(SIZE_KEYS, numbers, strict=True)}
        try:
            sized = filled(recipe, values, by_hand=by_hand)
        except ConfigError:  # a width that was set, with heads that do not divide it
            continue
        if sized.model not in seen:
            seen.append(sized.model)
            yield ("as set" if by_hand.issuperset(values) else name), sized
    if not seen:
        yield "as set", recipe


def _sized(
    name: str,
    recipe: Recipe,
    tokens_per_s: float,
    text: TextFacts,
    machine: TrainingMachine,
    by_hand: frozenset[str],
    training_s: float,
) -> SizedModel:
    """The size with its batch, which is halved until it fits into the memory of a GPU."""
    most_cells = _GPU_BATCH[1]
    while True:
        tokens, at_speed = tokens_per_s * training_s, tokens_per_s
        while True:
            values = _rules(recipe, tokens, text, machine, most_cells, training_s)
            made = filled(recipe, values, by_hand=by_hand)
            per_step = _tokens_per_step(made, text)
            if machine.on_gpu:  # fewer tokens at a time take as long
                at_once = per_step / made.data.accumulate / machine.num_gpus
                at_speed = tokens_per_s * min(1.0, at_once / TIMED_GPU_TOKENS)
            seen = at_speed * training_s
            if "train.max_steps" in by_hand:
                seen = min(seen, made.train.max_steps * per_step)
            if seen >= tokens:
                break
            tokens = seen  # fewer than thought: the batch becomes smaller, and they with it
        if _fits(made, machine) or not machine.on_gpu or most_cells <= _SMALL_GPU_BATCH:
            break
        most_cells //= 2
    steps = int(tokens / per_step)
    epochs = tokens / text.target_tokens
    return SizedModel(name, made, at_speed, tokens, steps, epochs, training_s, is_timed=False)


def _tokens_per_step(recipe: Recipe, text: TextFacts) -> float:
    """Target tokens per update, by the mean length in this text if batches count sentences."""
    sentences = recipe.data.batch_sentences
    if sentences is None:
        return estimate(recipe).target_tokens_per_update
    return sentences * recipe.data.accumulate * text.target_tokens / text.pairs


def _rules(
    recipe: Recipe,
    tokens: float,
    text: TextFacts,
    machine: TrainingMachine,
    most_cells: int,
    training_s: float,
) -> dict[str, Any]:
    """The settings that follow from the size and the time, by their keys.

    batch: 2,048 cells x (tokens of the run / 3 million)^0.4 (the exponent: Bergsma et al. 2025).
    peak rate: it falls with the width (Yang et al. 2022); the constant is that of Transformer-base
    with 1.1e-3. dropout: for small text that is seen often (Araabi and Monz 2020).
    """
    on_gpu = machine.on_gpu
    least, most = _GPU_BATCH if on_gpu else _CPU_BATCH
    if on_gpu:
        least = min(least * machine.num_gpus, most)
    batch = min(max(2048 * (tokens / 3e6) ** 0.4, least), most, most_cells)
    batch /= recipe.data.accumulate
    peak = 0.576 / max(recipe.model.d_model, LEAST_WIDTH)
    return {
        "data.batch_tokens": max(round(batch / 256), 1) * 256,
        "schedule.peak_learning_rate": float(f"{peak:.3g}"),
        "model.dropout": dropout_for(tokens / text.target_tokens),
        "optimizer.clip_norm": 1.0,
        "train.precision": "bf16" if on_gpu and machine.has_bf16 else "auto",
        # A GPU without bf16 pads rows, and several lengths cost it padding or passes.
        "data.length_groups": 1 if on_gpu and not machine.has_bf16 else LENGTH_GROUPS,
        "train.compile": on_gpu and training_s > _WORTH_COMPILING_S,
    }


def dropout_for(epochs: float) -> float:
    """The dropout of a run that sees its text this many times."""
    return next((share for most, share in _DROPOUTS if epochs < most), _MOST_DROPOUT)


def vocabulary(recipe: Recipe, *, by_hand: frozenset[str], pairs: int | None = None) -> Recipe:
    """The recipe with a vocabulary that suits the size of its text: 25 x the square root of the
    pairs (after Gowda and May 2020). In small text, each character beyond 200 counts on top, as
    each has to be a piece. pairs: None: estimated from its files."""
    if pairs is None:
        pairs = TextFacts.guessed(recipe).pairs
    least, most = VOCABULARY
    wanted = 25 * math.sqrt(pairs)
    is_free = "corpus.subword.vocab_size" not in by_hand
    if pairs < _COUNTED_PAIRS and is_free and recipe.corpus.subword.character_coverage == 1.0:
        wanted += max(_characters(recipe.corpus) - _USUAL_CHARACTERS, 0)
    pieces = min(max(round(wanted / 100) * 100, least), most)
    return filled(recipe, {"corpus.subword.vocab_size": pieces}, by_hand=by_hand)


def _characters(corpus: CorpusConfig) -> int:
    """The number of different characters in the files of the training text, up to the first file
    that cannot be read: `prepare` names it."""
    found: set[str] = set()
    train = corpus.model_copy(update={"valid": (), "test": ()})
    with suppress(ConfigError, CorpusError):
        for entry in Sources(train, downloads=Path()).entries["train"]:
            for file in entry.files:
                reader = file.open()
                while (taken := reader.take(_LINES_AT_ONCE))[1]:
                    text = taken[0].decode(errors="ignore")
                    found.update(normalize(text, lowercase=corpus.lowercase))
    return len(found)
