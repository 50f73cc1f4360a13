"""The choice of a model for a budget: several sizes, and the BLEU expected of each.

Only the size is searched for. All else that the recipe leaves open follows from the size, the text
and the time, by rules:

vocabulary     25 x the square root of the pairs: few thousand pieces for small text, about 32,000
               for millions of pairs (Gowda and May 2020); in small text, each character beyond 200
               counts on top, as each has to be a piece
batch          2,048 cells x (tokens of the run / 3 million)^0.4, no less than 2,048 (the exponent:
               Bergsma et al. 2025); for each GPU no less than 16,384, because a smaller one takes
               as long, unless only a smaller one fits into the memory
peak rate      0.576 / width: the rate that suits Adam falls with the width (Yang et al. 2022); the
               constant is that of Transformer-base with 1.1e-3, and gives 4.5e-3 for a width of
               128; at most 9e-3, the rate for 64
dropout        none; 0.1 from 6 epochs on, 0.2 from 30 on, 0.3 from 60 on (benchmarks/dropout.py;
               for small text that is seen often: Araabi and Monz 2020)
precision      bf16 on a GPU that has it, else fp32; torch.compile on a GPU from half an hour on
schedule       a straight line to zero (Bergsma et al. 2025, "Straight to zero") over all steps that
               fit
averaging      a moving average over a hundredth of the steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
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
from dragoman.recipe.estimate import estimate, text_bytes
from dragoman.recipe.recipe import Recipe
from dragoman.run.curves import inner_weights, text_digest
from dragoman.run.expect import Expected, Law

_DROPOUTS: Final = ((6.0, 0.0), (30.0, 0.1), (60.0, 0.2))
"""A run of fewer epochs gets this dropout; measured up to 17 epochs (benchmarks/dropout.py)."""
_MOST_DROPOUT: Final = 0.3
PAIR_BYTES: Final = 150
"""Length of a typical pair of sentences, both sides."""
_PIECE_BYTES: Final = 4.5
"""Length of a typical piece of text."""
VOCABULARY: Final = (200, 32_000)
"""The least and the most pieces."""
USUAL_CHARACTERS: Final = 200
"""Two alphabets with their marks have no more characters; Chinese has thousands."""
_COUNTED_PAIRS: Final = 100_000
"""In more text, the usual number of pieces is enough for the characters."""
_LINES_AT_ONCE: Final = 10_000
UNKNOWN_PAIRS: Final = 1_000_000
"""The number of pairs to assume if the text is not here yet."""
LEAST_STEPS: Final = 100
"""Fewer updates do not make a model that is worth its time."""
_ALIKE: Final = 0.03
_ALIKE_BLEU: Final = 0.3
"""A larger model has to be better by this share of the BLEU and by this many: it translates more
slowly, and a speed that was timed in seconds is uncertain."""
_CPU_BATCH: Final = (2048, 8192)
TIMED_GPU_TOKENS: Final = 16_384
"""Target tokens at a time with which models are timed on a GPU: enough to keep it busy."""
_GPU_BATCH: Final = (TIMED_GPU_TOKENS, 65_536)
"""The least and the most cells. On a CPU a million tokens taught less with 1,280 than with 2,048.
On an H100 a step of `big` took 60 ms with 7,424 cells, and 55 ms with 16,384 target tokens."""
SHORTEST_S: Final = 10.0
"""The shortest training, until the time of a step is known."""
_SMALL_GPU_BATCH: Final = 4096
"""The least cells if more do not fit into the memory."""
LEAST_WIDTH: Final = 64
"""Narrower models get no higher rate: one of width 16 diverged with 3.6e-2."""
_SPEED_ERROR: Final = 1.25
"""The factor by which a speed that was timed for seconds may be too high or too low for hours."""
_WORTH_TIMING: Final = 0.8
"""A model is not timed if its expected BLEU, at a speed that follows from its arithmetic, would not
be enough better than the best if it were larger by the inverse of this share."""
_WORTH_COMPILING_S: Final = 1800.0
"""The compiler takes a minute or two."""
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


@dataclass(frozen=True, slots=True)
class TextFacts:
    """Facts about the training text. Tokens are those of the target, with ends of sentences."""

    digest: str
    pairs: int
    epoch_tokens: int
    is_guess: bool

    @classmethod
    def of(cls, manifest: Manifest) -> TextFacts:
        """The facts about prepared text."""
        train = manifest.train
        return cls(text_digest(manifest), train.pairs, train.target_pieces + train.pairs, False)

    @classmethod
    def guessed(cls, recipe: Recipe) -> TextFacts:
        """An estimate from the sizes of the files, for text that is not prepared."""
        sizes = [text_bytes(entry, Path(recipe.corpus.folder)) for entry in recipe.corpus.train]
        known = [size for size in sizes if size is not None]
        pairs = (
            max(1, round(sum(known) / PAIR_BYTES)) if len(known) == len(sizes) else UNKNOWN_PAIRS
        )
        pieces = pairs * PAIR_BYTES / 2 / _PIECE_BYTES
        return cls("", pairs, round(pieces) + pairs, True)


@dataclass(frozen=True, slots=True)
class TrainingMachine:
    """The machine that trains.

    speed: target tokens per second with a recipe's model; each GPU computes 16,384 at a time.
    num_gpus: GPUs that train.
    after_s: seconds after the training that depend on the model.
    """

    on_gpu: bool
    has_bf16: bool
    memory_bytes: int
    speed: Callable[[Recipe], float]
    num_gpus: int = 1
    after_s: Callable[[Recipe], float] = lambda _recipe: 0.0


@dataclass(frozen=True, slots=True)
class SizeCandidate:
    """One size, with the settings and figures that follow from it.

    step_s: seconds of an update. least_steps: the fewest updates that are worth their time.
    tokens: target tokens that it sees in the time. most_tokens: target tokens in the steps that the
    recipe sets. is_timed: whether its steps were timed; if not, its speed follows from that of the
    size before it and the arithmetic of both. fits: whether it fits into the memory. after_s:
    seconds after the training that depend on the model. why_not: why another one is better; ""
    for the chosen one.
    """

    name: str
    recipe: Recipe
    tokens_per_s: float
    step_s: float
    tokens: float
    steps: int
    epochs: float
    expected: Expected
    most_tokens: float = math.inf
    least_steps: int = LEAST_STEPS
    is_timed: bool = True
    fits: bool = True
    after_s: float = 0.0
    why_not: str = ""

    @property
    def training_s(self) -> float:
        """Seconds that it trains."""
        return self.tokens / self.tokens_per_s

    @property
    def has_enough_steps(self) -> bool:
        """Whether the time is long enough for this size."""
        return self.steps >= self.least_steps


@dataclass(frozen=True, slots=True)
class Choice:
    """All candidates by size, and the chosen one."""

    candidates: tuple[SizeCandidate, ...]
    best: SizeCandidate


def vocabulary(recipe: Recipe, *, by_hand: frozenset[str]) -> Recipe:
    """The recipe with a vocabulary that suits the size of its text, estimated from its files."""
    pairs = TextFacts.guessed(recipe).pairs
    least, most = VOCABULARY
    wanted = 25 * math.sqrt(pairs)
    is_free = "corpus.subword.vocab_size" not in by_hand
    if pairs < _COUNTED_PAIRS and is_free and recipe.corpus.subword.character_coverage == 1.0:
        wanted += max(_characters(recipe.corpus) - USUAL_CHARACTERS, 0)
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


def choose(
    recipe: Recipe,
    text: TextFacts,
    law: Law,
    machine: TrainingMachine,
    *,
    by_hand: frozenset[str],
    training_s: float,
) -> Choice:
    """The size that is expected to be best after this many seconds, in which a model is trained and
    its last checkpoint copied.

    Larger sizes are tried as long as they may be better. If none has enough steps in the time, the
    smallest is chosen. Raises ConfigError if no size fits into the memory.
    """
    search = _SizeSearch(text, law, machine, by_hand, training_s)
    found: list[SizeCandidate] = []
    speed = 0.0
    for name, sized in _sizes(recipe, by_hand):
        if _is_past_best(found):
            break
        if found:  # steps of a large model take long, and most often it is far from the best
            work = estimate(found[-1].recipe).flop_per_target_token
            speed *= work / estimate(sized).flop_per_target_token
            untimed = search.candidate(name, sized, speed)
            best_bleu = max(one.expected.bleu for one in found)
            may_win = untimed.fits and untimed.has_enough_steps
            if not may_win or not _is_better(untimed.expected.bleu / _WORTH_TIMING, best_bleu):
                found.append(replace(untimed, is_timed=False))
                continue
        speed = machine.speed(sized)
        found.append(search.candidate(name, sized, speed))
    fitting = [one for one in found if one.fits]
    if not fitting:
        raise ConfigError(
            f"no model fits into {units.SIZE.text(machine.memory_bytes)} of memory",
            place="--budget",
            remedy="set a smaller data.batch_tokens, or use another machine",
        )
    long_enough = [one for one in fitting if one.has_enough_steps] or fitting[:1]
    best, _ = _preferred([(one, one.expected) for one in long_enough])
    return _judged(found, best)


def after_pilots(
    choice: Choice,
    best: str,
    text: TextFacts,
    law: Law,
    *,
    piloted: Collection[str],
    time_share: float,
) -> Choice:
    """The choice of `best` after pilots, for the share of the time that is left.

    piloted: the names of the sizes that had a pilot.
    """
    found = []
    for one in choice.candidates:
        tokens = time_share * one.tokens
        found.append(
            replace(
                one,
                tokens=tokens,
                steps=int(time_share * one.steps),
                epochs=tokens / text.epoch_tokens,
                expected=_expected(law, text, one.recipe, tokens),
            )
        )
    return _judged(found, next(one for one in found if one.name == best), piloted)


def _preferred(found: Sequence[tuple[SizeCandidate, Expected]]) -> tuple[SizeCandidate, Expected]:
    """The smallest candidate, unless a larger one is better by enough."""
    best = found[0]
    for one in found[1:]:
        if _is_better(one[1].bleu, best[1].bleu):
            best = one
    return best


def _is_better(bleu: float, other: float) -> bool:
    """Whether a larger model with this BLEU is preferred to a smaller one with the other BLEU."""
    return bleu > max((1 + _ALIKE) * other, other + _ALIKE_BLEU)


def _judged(
    found: Sequence[SizeCandidate], best: SizeCandidate, piloted: Collection[str] = ()
) -> Choice:
    best = replace(best, why_not="")
    others = {one.name: replace(one, why_not=_why_not(one, best, piloted)) for one in found}
    return Choice(tuple((others | {best.name: best}).values()), best)


def at_other_budget(
    choice: Choice, text: TextFacts, law: Law, *, training_s: float
) -> tuple[SizeCandidate, Expected] | None:
    """The best candidate of another budget, and its BLEU; None if the budget is too small.

    training_s: for the training and for the work after it that depends on the model.
    """
    expected = []
    for one in choice.candidates:
        left_s = training_s - one.after_s
        if one.fits and left_s >= one.least_steps * one.step_s:
            tokens = min(left_s * one.tokens_per_s, one.most_tokens)
            expected.append((one, _expected(law, text, one.recipe, tokens)))
    return _preferred(expected) if expected else None


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


@dataclass(frozen=True, slots=True)
class _SizeSearch:
    """The values that all candidates share."""

    text: TextFacts
    law: Law
    machine: TrainingMachine
    by_hand: frozenset[str]
    training_s: float

    def candidate(self, name: str, recipe: Recipe, tokens_per_s: float) -> SizeCandidate:
        """The candidate of this size that trains at this speed, with all that follows from both.

        Its batch is halved, down to 4,096 cells, until it fits into the memory of a GPU.
        """
        _, most = _GPU_BATCH
        found = self._with_batch(name, recipe, tokens_per_s, most)
        while self.machine.on_gpu and not found.fits and most > _SMALL_GPU_BATCH:
            most //= 2
            found = self._with_batch(name, recipe, tokens_per_s, most)
        return found

    def _with_batch(
        self, name: str, recipe: Recipe, tokens_per_s: float, most_cells: int
    ) -> SizeCandidate:
        """A candidate whose batch has at most this many cells."""
        after_s = self.machine.after_s(recipe)
        training_s = max(self.training_s - after_s, SHORTEST_S)
        full_tokens_per_s = tokens_per_s
        tokens = full_tokens_per_s * training_s
        while True:
            recipe = filled(recipe, self.rules(recipe, tokens, most_cells), by_hand=self.by_hand)
            tokens_per_step = self.tokens_per_step(recipe)
            if self.machine.on_gpu:  # fewer tokens at a time take as long
                at_once = tokens_per_step / recipe.data.accumulate / self.machine.num_gpus
                tokens_per_s = full_tokens_per_s * min(1.0, at_once / TIMED_GPU_TOKENS)
            in_time = tokens_per_s * training_s
            steps, least, most_tokens = int(in_time / tokens_per_step), LEAST_STEPS, math.inf
            if "train.max_steps" in self.by_hand:
                steps = min(steps, recipe.train.max_steps)
                least = min(least, recipe.train.max_steps)
                most_tokens = recipe.train.max_steps * tokens_per_step
            seen = min(in_time, most_tokens)
            if seen >= tokens:
                break
            tokens = seen  # fewer than thought: the batch becomes smaller, and they with it
        return SizeCandidate(
            name=name,
            recipe=recipe,
            tokens_per_s=tokens_per_s,
            step_s=tokens_per_step / tokens_per_s,
            tokens=tokens,
            steps=steps,
            epochs=tokens / self.text.epoch_tokens,
            expected=_expected(self.law, self.text, recipe, tokens),
            most_tokens=most_tokens,
            least_steps=least,
            fits=estimate(recipe).memory.total_bytes <= self.machine.memory_bytes,
            after_s=after_s,
        )

    def tokens_per_step(self, recipe: Recipe) -> float:
        """Target tokens per update, by the mean length in this text if batches count sentences."""
        sentences = recipe.data.batch_sentences
        if sentences is None:
            return estimate(recipe).target_tokens_per_update
        return sentences * recipe.data.accumulate * self.text.epoch_tokens / self.text.pairs

    def rules(self, recipe: Recipe, tokens: float, most_cells: int) -> dict[str, Any]:
        """The settings that follow from the size and the length of a run, by their keys."""
        epochs = tokens / self.text.epoch_tokens
        on_gpu = self.machine.on_gpu
        least, most = _GPU_BATCH if on_gpu else _CPU_BATCH
        if on_gpu:
            least = min(least * self.machine.num_gpus, most)
        batch = min(max(2048 * (tokens / 3e6) ** 0.4, least), most, most_cells)
        batch /= recipe.data.accumulate
        return {
            "data.batch_tokens": max(round(batch / 256), 1) * 256,
            "schedule.peak_learning_rate": float(
                f"{0.576 / max(recipe.model.d_model, LEAST_WIDTH):.3g}"
            ),
            "model.dropout": dropout_for(epochs),
            "optimizer.clip_norm": 1.0,
            "train.precision": "bf16" if on_gpu and self.machine.has_bf16 else "fp32",
            # A GPU without bf16 pads rows, and several lengths cost it padding or passes.
            "data.length_groups": 1 if on_gpu and not self.machine.has_bf16 else LENGTH_GROUPS,
            "train.compile": on_gpu and self.training_s > _WORTH_COMPILING_S,
        }


def dropout_for(epochs: float) -> float:
    """The dropout of a run that sees its text this many times."""
    return next((share for most, share in _DROPOUTS if epochs < most), _MOST_DROPOUT)


def _expected(law: Law, text: TextFacts, recipe: Recipe, tokens: float) -> Expected:
    """The BLEU by the law; its interval allows for a speed that was timed too high or too low."""
    middle, few, many = (
        law.expect(
            text=text.digest,
            weights=inner_weights(recipe),
            tokens=max(factor * tokens, 1.0),
            epoch_tokens=text.epoch_tokens,
        )
        for factor in (1.0, 1 / _SPEED_ERROR, _SPEED_ERROR)
    )
    return replace(middle, low=few.low, high=many.high)


def _is_past_best(found: Sequence[SizeCandidate]) -> bool:
    """Whether the last two sizes were each worse than the one before: larger ones will be, too."""
    scores = [one.expected.bleu for one in found[-3:]]
    return len(scores) == 3 and scores[0] > scores[1] > scores[2]


def _why_not(one: SizeCandidate, best: SizeCandidate, piloted: Collection[str]) -> str:
    less_bleu = best.expected.bleu - one.expected.bleu
    less = units.SCORE.text(less_bleu)
    is_smaller = inner_weights(one.recipe) < inner_weights(best.recipe)
    if not one.fits:
        return f"needs {units.SIZE.text(estimate(one.recipe).memory.total_bytes)} of memory"
    if not one.has_enough_steps:
        return f"too few steps: {one.least_steps} are the least that may be of use"
    if less_bleu > 0 and is_smaller:
        return f"{less} BLEU less: too small for this time"
    if less_bleu > 0:
        share = units.SHARE.text(one.tokens / best.tokens)
        return f"{less} BLEU less: sees {share} of the tokens"
    if one.name in piloted:
        return "its pilot was worse"
    if is_smaller or _is_better(one.expected.bleu, best.expected.bleu):
        return "it had no pilot"
    return "no better by 3% and 0.3 BLEU, and slower to translate with"
