"""The models of a server, and how a text goes through one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pydantic import BaseModel

from dragoman.base.errors import ConfigError
from dragoman.formats.bundle import Bundle
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
from dragoman.model.config import SearchConfig
from dragoman.serve.batcher import Batcher
from dragoman.serve.bodies import in_thread_if_long
from dragoman.serve.limits import Limits
from dragoman.serve.text import TextFormat
from dragoman.serve.translator import TextTranslator, Translation


class ModelDescription(BaseModel):
    """A model that this server has, or one direction of a model of several languages.

    zero_shot: whether the model had no training text for it.
    """

    name: str
    source: str
    target: str
    parameters: int
    quantization: str
    licence: str
    beam_size: int
    card: str
    zero_shot: bool = False


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A bundle, ready to answer."""

    description: ModelDescription
    translator: TextTranslator
    search: SearchConfig
    batcher: Batcher

    @classmethod
    def of(cls, bundle: Bundle, translator: TextTranslator, limits: Limits) -> list[ServedModel]:
        """Every direction of a bundle over its translator, which must be one of CTranslate2."""
        assert isinstance(translator.engine, CTranslate2Engine)
        info, search = bundle.info, bundle.recipe.search
        description = ModelDescription(
            name=info.name,
            source=info.source_language,
            target=info.target_language,
            parameters=info.num_parameters,
            quantization=info.quantization,
            licence=info.licence,
            beam_size=search.beam_size,
            card=bundle.card(),
        )
        batcher = Batcher(translator.engine, limits.max_waiting_pieces, limits.request_s)
        served = [cls(description, translator, search, batcher)]
        for one in info.directions:
            update = {"source": one.source, "target": one.target, "zero_shot": one.zero_shot}
            served.append(
                cls(
                    description.model_copy(update=update),
                    replace(translator, token=one.token),
                    search,
                    batcher,
                )
            )
        return served[1:] or served

    async def translate(
        self,
        texts: Sequence[str],
        *,
        text_format: TextFormat,
        beam_size: int | None = None,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """The translations of each text, best first; raises OverloadedError."""
        self.batcher.admit()
        search = _of_width(self.search, max(beam_size or self.search.beam_size, num_hypotheses))
        size = sum(map(len, texts))
        encoded = await in_thread_if_long(size, self.translator.encode, texts, text_format)
        found = await self.batcher.translate(encoded.rows, search, num_hypotheses=num_hypotheses)
        return await in_thread_if_long(size, encoded.assemble, found, num_hypotheses)


@cache
def _of_width(search: SearchConfig, beam_size: int) -> SearchConfig:
    """The same object each time: rows of equal settings are put together, and compared for that."""
    return search.model_copy(update={"beam_size": beam_size})


class Models:
    """All models of a server, by their languages."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        """Raises ConfigError if two translate between the same languages."""
        self.by_pair: dict[tuple[str, str], ServedModel] = {}
        for model in models:
            pair = (model.description.source, model.description.target)
            if pair in self.by_pair:
                raise ConfigError(
                    f"two models translate {pair[0]} to {pair[1]}",
                    place=model.description.name,
                    remedy="serve one of them",
                )
            self.by_pair[pair] = model

    def choose(self, source: str | None, target: str | None) -> ServedModel | None:
        """The model for a pair of languages, of which either may be None if only one model fits."""
        fitting = [
            model
            for pair, model in self.by_pair.items()
            if source in (None, pair[0]) and target in (None, pair[1])
        ]
        return fitting[0] if len(fitting) == 1 else None

    def pairs(self) -> str:
        """What there is, for an error message."""
        return ", ".join(f"{source} to {target}" for source, target in self.by_pair)

    def batchers(self) -> Iterator[tuple[tuple[str, str, str], Batcher]]:
        """What runs the models: the name of each, its sources and its targets, with commas."""
        for batcher in {id(model.batcher): model.batcher for model in self}.values():
            own = [model.description for model in self if model.batcher is batcher]
            sources, targets = (
                ",".join(dict.fromkeys(getattr(one, side) for one in own))
                for side in ("source", "target")
            )
            yield (own[0].name, sources, targets), batcher

    def __iter__(self) -> Iterator[ServedModel]:
        """Every model."""
        return iter(self.by_pair.values())
