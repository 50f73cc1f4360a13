"""Search with PyTorch, behind the interface of `CTranslate2Engine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.export.ctranslate2_engine import Candidate, Results
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
    ) -> Results:
        """The search is made when its results are asked for."""

        def results() -> list[list[Candidate]]:
            found = translate_batch(self.models, sources, search, num_hypotheses=num_hypotheses)
            return [[Candidate(one.ids, one.score) for one in row] for row in found]

        return results
