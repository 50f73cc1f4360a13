"""All weights of a model laid end to end, in parts that are equal to the byte."""

from __future__ import annotations

from collections.abc import Sequence
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

    def part(self, start: int, end: int) -> Fragment:
        """Numbers start to end of all weights laid end to end, which lie in it."""
        pieces, offset = [], self.start
        for index, first, last in self.pieces:
            low, high = max(start - offset, 0), min(end - offset, last - first)
            if low < high:
                pieces.append((index, first + low, first + high))
            offset += last - first
        return Fragment(start, end, tuple(pieces))

    def parts(self, size: int) -> list[Fragment]:
        """All of it in order, at most so many numbers at a time."""
        starts = range(self.start, self.end, size)
        return [self.part(start, min(start + size, self.end)) for start in starts]

    def within(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Its pieces of the weights; the numbers themselves."""
        return [weights[index].view(-1)[start:end] for index, start, end in self.pieces]

    def gather(self, weights: Sequence[Tensor]) -> Tensor:
        """Its numbers in a tensor of their own."""
        return torch.cat(self.within(weights))

    def copy(self, numbers: Tensor, weights: Sequence[Tensor]) -> None:
        """Numbers of its own size become the weights'."""
        for piece, copied in zip(self.within(weights), self._split(numbers), strict=True):
            piece.copy_(copied)

    def add(self, numbers: Tensor, weights: Sequence[Tensor], *, times: float = 1.0) -> None:
        """Numbers of its own size are added to the weights, so many times."""
        for piece, difference in zip(self.within(weights), self._split(numbers), strict=True):
            piece.add_(difference, alpha=times)

    def scale(self, numbers: Tensor, factors: Sequence[float]) -> None:
        """Numbers of its own size are multiplied by the factors of the weights they belong to."""
        for (index, _, _), part in zip(self.pieces, self._split(numbers), strict=True):
            part.mul_(factors[index])

    def _split(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return torch.split(numbers, [end - start for _, start, end in self.pieces])


def cut(weights: Sequence[Tensor], count: int) -> list[Fragment]:
    """All weights in order, in so many equal parts."""
    sizes = [weight.numel() for weight in weights]
    total = sum(sizes)
    whole = Fragment(0, total, tuple((index, 0, size) for index, size in enumerate(sizes)))
    bounds = [round(total * part / count) for part in range(count + 1)]
    return [whole.part(start, end) for start, end in pairwise(bounds)]
