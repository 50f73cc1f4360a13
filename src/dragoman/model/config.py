"""The model and search sections of a recipe. Free of torch: a dry run needs only arithmetic."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from dragoman.base.errors import ConfigError
from dragoman.base.settings import Section

CONFIG_FILE: Final = "config.json"
"""The file with the configuration of a model in Hugging Face form."""


class ModelConfig(Section):
    """Transformer encoder-decoder (Vaswani et al. 2017)."""

    d_model: int = Field(default=512, ge=2)
    """Width of embeddings and of every layer's input and output."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads of every layer; they share the width."""
    d_ffn: int = Field(default=2048, ge=1)
    """Width inside the feed-forward sub-layer."""
    # The limit is far beyond use: a recipe that others wrote may ask for anything.
    encoder_layers: int = Field(default=6, ge=1, le=10_000)
    """Layers that read the source."""
    decoder_layers: int = Field(default=6, ge=1, le=10_000)
    """Layers that write the target."""
    norm: Literal["pre", "post"] = "pre"
    """pre: LayerNorm before each sub-layer and at the end of both stacks; post: after each."""
    activation: Literal["relu", "gelu", "silu", "swiglu"] = "relu"
    """silu is x * sigmoid(x), also called swish; swiglu has a gate, and so a third matrix."""
    tied_embeddings: Literal["all", "decoder", "none"] = "all"
    """all: source, target and softmax share one matrix; decoder: target and softmax do."""
    attention_bias: bool = True
    """Biases in the projections of attention; the feed-forward layers always have theirs."""
    positions: Literal["tensor2tensor", "marian"] = "tensor2tensor"
    """Wavelengths of the sinusoids: from 2 pi to 10000 * 2 pi, or Marian's, which end shorter."""
    first_position: int = Field(default=1, ge=0, le=1_000_000)
    """Position of the first token of a sentence."""
    scaled_embeddings: bool = True
    """Embeddings are multiplied by the square root of `d_model`."""
    output_bias: bool = False
    """A bias on the logits; training leaves it as it is. Imported models have one."""
    start_ids: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(2,), min_length=1, max_length=8
    )
    """Tokens that the decoder gets before the first piece: in imported models a start token, and
    in some a token for the target language."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """On embeddings and on the output of each sub-layer before it is added to the residual."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """After the activation of the feed-forward sub-layer."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Probability that is spread over all pieces in the training loss (Szegedy et al. 2016)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}"
            )
        if self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} is odd; sinusoidal positions need pairs")
        return self

    def check_start_ids(self, target_vocab_size: int) -> None:
        """Raises ValueError if the decoder would begin with an id that no piece has."""
        if max(self.start_ids) >= target_vocab_size:
            raise ValueError(
                f"model.start_ids has {max(self.start_ids)}, "
                f"and the target's vocabulary has ids up to {target_vocab_size - 1}"
            )

    def num_parameters(self, *, source_vocab_size: int, target_vocab_size: int) -> int:
        """Parameters of the model with these vocabularies, the bias on the logits included.

        Raises ValueError as `parameter_shapes` does.
        """
        shapes = self.parameter_shapes(
            source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size
        )
        return sum(map(math.prod, shapes.values()))

    def parameter_shapes(
        self, *, source_vocab_size: int, target_vocab_size: int
    ) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of `transformer.Transformer` by its name, by arithmetic.

        With it, a stranger's file of weights is checked before a model is built.
        Raises ValueError if `tied_embeddings` is "all" and the vocabularies differ in size.
        """
        if self.tied_embeddings == "all" and source_vocab_size != target_vocab_size:
            raise ValueError("tied_embeddings = 'all' needs one joint vocabulary")
        d = self.d_model
        names = {"all": ("shared",), "decoder": ("source", "target")}.get(
            self.tied_embeddings, ("source", "target", "output")
        )
        shapes: dict[str, tuple[int, ...]] = {
            f"embeddings.{name}": (source_vocab_size if name == "source" else target_vocab_size, d)
            for name in names
        }
        if self.output_bias:
            shapes["embeddings.output_bias"] = (target_vocab_size,)

        def linear(name: str, out: int, into: int, *, bias: bool = True) -> None:
            shapes[f"{name}.weight"] = (out, into)
            if bias:
                shapes[f"{name}.bias"] = (out,)

        def norm(name: str) -> None:
            shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (d,)

        for side, num_layers in (
            ("encoder", self.encoder_layers),
            ("decoder", self.decoder_layers),
        ):
            for number in range(num_layers):
                layer = f"{side}.layers.{number}"
                own, bias = f"{layer}.self_attention", self.attention_bias
                linear(f"{own}.query_key_value", 3 * d, d, bias=bias)
                linear(f"{own}.output", d, d, bias=bias)
                norm(f"{own}_residual.norm")
                if side == "decoder":
                    cross = f"{layer}.cross_attention"
                    linear(f"{cross}.query", d, d, bias=bias)
                    linear(f"{cross}.key_value", 2 * d, d, bias=bias)
                    linear(f"{cross}.output", d, d, bias=bias)
                    norm(f"{cross}_residual.norm")
                gates = 2 if self.activation == "swiglu" else 1
                linear(f"{layer}.feed_forward.input", gates * self.d_ffn, d)
                linear(f"{layer}.feed_forward.output", d, self.d_ffn)
                norm(f"{layer}.feed_forward_residual.norm")
            if self.norm == "pre":
                norm(f"{side}.norm")
        return shapes


class SearchConfig(Section):
    """How translations are searched for."""

    # Upper bounds: far beyond use, and short of what overflows a float or a C integer.
    beam_size: int = Field(default=4, ge=1, le=1000)
    """1 is greedy search."""
    candidates: int = Field(default=1, ge=1, le=1000)
    """From so many translations of a sentence, that which is most like all of them is chosen
    (minimum Bayes risk, by chrF); 1: the likeliest. The beam is at least as wide."""
    length_penalty: Literal["gnmt", "power"] = "gnmt"
    """Scores are divided by ((5 + length) / 6)^alpha (Wu et al. 2016) or by length^alpha."""
    length_penalty_alpha: float = Field(default=0.6, ge=0.0, le=5.0)
    """The exponent of the length penalty; 0 for none."""
    max_length_ratio: float = Field(default=2.0, ge=0.0, le=1000.0)
    """See `max_length_extra`."""
    max_length_extra: int = Field(default=20, ge=0, le=1_000_000)
    """A translation has at most `max_length_ratio` x source pieces + this many pieces."""
    batch_tokens: int = Field(default=16_384, ge=1)
    """Sentences of like length are searched together: rows x longest source x beam at most."""
    never_padding: bool = False
    """Padding is never chosen, whatever its probability, as transformers has it for MarianMT."""
    renormalize: bool = False
    """The probabilities without padding are scaled to add up to 1: `renormalize_logits` of
    transformers."""
    early_stopping: bool = True
    """The search ends with the first `beam_size` finished translations. false: it goes on while the
    best open one has a higher score, at its present length, than the worst of the best
    `beam_size` finished ones."""
    end_at_limit: bool = False
    """The last token that the length limit allows is the end of sentence, at no cost."""
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=100)
    """No sequence of this many pieces occurs twice in a translation, which ends loops of a model
    that repeats itself; 0: no limit."""

    def as_in_ctranslate2(self) -> SearchConfig:
        """This search with the two rules of CTranslate2 that have no switch there."""
        # Without never_padding nothing is left to be normalised again.
        renormalize = self.renormalize or self.never_padding
        return self.model_copy(update={"early_stopping": True, "renormalize": renormalize})

    def with_beam(self, beam_size: int) -> SearchConfig:
        """This search with a beam of this width, from which no more candidates come."""
        update = {"beam_size": beam_size, "candidates": min(self.candidates, beam_size)}
        return self.model_copy(update=update)

    def for_candidates(self) -> SearchConfig:
        """This search with a beam that holds the candidates."""
        return self.model_copy(update={"beam_size": max(self.beam_size, self.candidates)})

    def without_guard(self) -> SearchConfig:
        """This search without the guard against repetition, for programs that lack one."""
        return self.model_copy(update={"no_repeat_ngram_size": 0})


def check_beam_holds(num_hypotheses: int, config: SearchConfig) -> None:
    """Raises ConfigError if more translations of a sentence are asked for than the beam has."""
    beam_size = config.for_candidates().beam_size
    if num_hypotheses > beam_size:
        raise ConfigError(
            f"a beam of {beam_size} cannot give {num_hypotheses} translations of a sentence",
            place="search.beam_size",
            remedy=f"set it to {num_hypotheses} or more",
        )


def length_limit(num_pieces: int, config: SearchConfig) -> int:
    """The most tokens of a translation, its end included, for a source of this many pieces."""
    return max(1, int(num_pieces * config.max_length_ratio + config.max_length_extra))


def length_penalty(length: int, config: SearchConfig) -> float:
    """The divisor of a log-probability; length counts the end of sentence."""
    base = (5 + length) / 6 if config.length_penalty == "gnmt" else float(length)
    return math.pow(base, config.length_penalty_alpha)


def power_search(config: SearchConfig, length: float) -> SearchConfig:
    """This search with the power penalty that ranks translations of about this length most alike.

    d ln ((5 + L) / 6)^alpha / d ln L = alpha L / (5 + L) is the exponent for lengths around L.
    """
    if config.length_penalty == "power":
        return config
    alpha = round(config.length_penalty_alpha * length / (5 + length), 3)
    return config.model_copy(update={"length_penalty": "power", "length_penalty_alpha": alpha})
