"""Search with PyTorch, behind the interface of `CTranslate2Engine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.export.ctranslate2_engine import Candidate
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """A model, or several as an ensemble."""

    models: Sequence[Transformer]

    def submit(
        self,
        sources: Sequence[list[int]],
        search: SearchConfig,
        *,
        num_hypotheses: int = 1,
        scored: bool = True,  # the scores are there in any case
    ) -> PendingTorchSearch:
        """The search is made when its results are asked for."""
        return PendingTorchSearch(self.models, sources, search, num_hypotheses)


@dataclass(frozen=True, slots=True)
class PendingTorchSearch:
    """Rows that are to be translated."""

    models: Sequence[Transformer]
    sources: Sequence[list[int]]
    config: SearchConfig
    num_hypotheses: int

    def results(self) -> list[list[Candidate]]:
        """The best translations of each source, best first."""
        found = translate_batch(
            self.models, self.sources, self.config, num_hypotheses=self.num_hypotheses
        )
        return [
            [Candidate(hypothesis.ids, hypothesis.score) for hypothesis in row] for row in found
        ]
