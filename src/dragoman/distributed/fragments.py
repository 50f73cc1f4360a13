"""All weights of a model laid end to end, in parts that are equal to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


class WeightRow:
    """A model's weights in order, and flat tensors that are as long as all of them."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.names = [name for name, _ in model.named_parameters()]

    def weights(self) -> list[Tensor]:
        """The weights themselves."""
        return [weight.detach() for weight in self.parameters]

    def copied(self) -> Tensor:
        """The weights in one flat tensor of their own."""
        return torch.cat([weight.flatten() for weight in self.weights()])

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """Parts of a flat tensor in the shapes of the weights; the tensors themselves."""
        parts = torch.split(flat, [weight.numel() for weight in self.parameters])
        return [part.view_as(weight) for part, weight in zip(parts, self.parameters, strict=True)]

    def named(self, flat: Tensor, kind: str = "") -> dict[str, Tensor]:
        """`shaped`, by the weight's name and, where there is one, by kind."""
        suffix = f"/{kind}" if kind else ""
        names = (f"{name}{suffix}" for name in self.names)
        return dict(zip(names, self.shaped(flat), strict=True))


@dataclass(frozen=True, slots=True)
class Fragment:
    """Numbers start to end of all weights laid end to end.

    pieces: what of which weight that is: its index, and where the piece starts and ends in it.
    """

    start: int
    end: int
    pieces: tuple[tuple[int, int, int], ...]

    def of(self, flat: Tensor) -> Tensor:
        """Its part of all numbers laid end to end; the numbers themselves."""
        return flat[self.start : self.end]

    def gather(self, weights: Sequence[Tensor]) -> Tensor:
        """Its numbers in a tensor of their own."""
        return torch.cat(list(self._in(weights)))

    def copy(self, numbers: Tensor, weights: Sequence[Tensor]) -> None:
        """Numbers of its own size become the weights'."""
        for piece, copied in self._pairs(numbers, weights):
            piece.copy_(copied)

    def add(self, numbers: Tensor, weights: Sequence[Tensor]) -> None:
        """Numbers of its own size are added to the weights."""
        for piece, difference in self._pairs(numbers, weights):
            piece.add_(difference)

    def scale(self, numbers: Tensor, factors: Sequence[float]) -> None:
        """Numbers of its own size are multiplied by the factors of the weights they belong to."""
        parts = torch.split(numbers, [end - start for _, start, end in self.pieces])
        for (index, _, _), part in zip(self.pieces, parts, strict=True):
            part.mul_(factors[index])

    def _pairs(self, numbers: Tensor, weights: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        pieces = list(self._in(weights))
        return zip(pieces, torch.split(numbers, [one.numel() for one in pieces]), strict=True)

    def _in(self, weights: Sequence[Tensor]) -> Iterator[Tensor]:
        for index, start, end in self.pieces:
            yield weights[index].view(-1)[start:end]


def cut(weights: Sequence[Tensor], count: int) -> list[Fragment]:
    """All weights in order, in so many equal parts."""
    sizes = [weight.numel() for weight in weights]
    bounds = [round(sum(sizes) * part / count) for part in range(count + 1)]
    fragments = []
    for start, end in pairwise(bounds):
        pieces, offset = [], 0
        for index, size in enumerate(sizes):
            first, last = max(start - offset, 0), min(end - offset, size)
            if first < last:
                pieces.append((index, first, last))
            offset += size
        fragments.append(Fragment(start, end, tuple(pieces)))
    return fragments
