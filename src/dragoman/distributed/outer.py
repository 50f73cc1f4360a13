"""The outer optimizers of `diloco`: they move the global weights by what replicas send.

`OuterSgd` is that of DiLoCo (Douillard et al. 2023). `OuterAdam` is Adam over the whole batch, from
sums that replicas send once in n steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from dragoman.distributed.gradient_sync import Tensors


class WeightRow:
    """A model's weights in order, and flat tensors of the same total length."""

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
        """Views of a flat tensor, in the shapes of the weights."""
        parts = torch.split(flat, [weight.numel() for weight in self.parameters])
        return [part.view_as(weight) for part, weight in zip(parts, self.parameters, strict=True)]

    def named(self, flat: Tensor, kind: str = "") -> dict[str, Tensor]:
        """`shaped`, by the weight's name and, if given, by kind."""
        suffix = f"/{kind}" if kind else ""
        names = (f"{name}{suffix}" for name in self.names)
        return dict(zip(names, self.shaped(flat), strict=True))


@dataclass(frozen=True, slots=True)
class Fragment:
    """The numbers from `start` to `end` of all weights laid end to end.

    pieces: the weights that these numbers belong to: the index of each, and the start and end of
    the piece in it.
    """

    start: int
    end: int
    pieces: tuple[tuple[int, int, int], ...]

    def of(self, flat: Tensor) -> Tensor:
        """A view of its part of all numbers laid end to end."""
        return flat[self.start : self.end]

    def part(self, start: int, end: int) -> Fragment:
        """The fragment from start to end, which must lie in this one."""
        pieces, offset = [], self.start
        for index, first, last in self.pieces:
            low, high = max(start - offset, 0), min(end - offset, last - first)
            if low < high:
                pieces.append((index, first + low, first + high))
            offset += last - first
        return Fragment(start, end, tuple(pieces))

    def parts(self, size: int) -> list[Fragment]:
        """All of it in order, at most `size` numbers at a time."""
        starts = range(self.start, self.end, size)
        return [self.part(start, min(start + size, self.end)) for start in starts]

    def within(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Views of its pieces of the weights."""
        return [weights[index].view(-1)[start:end] for index, start, end in self.pieces]

    def gather(self, weights: Sequence[Tensor]) -> Tensor:
        """A copy of its numbers in one tensor."""
        return torch.cat(self.within(weights))

    def copy(self, numbers: Tensor, weights: Sequence[Tensor]) -> None:
        """Write numbers of its own size into the weights."""
        for piece, copied in zip(self.within(weights), self._split(numbers), strict=True):
            piece.copy_(copied)

    def add(self, numbers: Tensor, weights: Sequence[Tensor], *, times: float = 1.0) -> None:
        """Add numbers of its own size, multiplied by `times`, to the weights."""
        for piece, difference in zip(self.within(weights), self._split(numbers), strict=True):
            piece.add_(difference, alpha=times)

    def scale(self, numbers: Tensor, factors: Sequence[float]) -> None:
        """Multiply numbers of its own size by the factors of the weights they belong to."""
        for (index, _, _), part in zip(self.pieces, self._split(numbers), strict=True):
            part.mul_(factors[index])

    def _split(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return torch.split(numbers, [end - start for _, start, end in self.pieces])


def cut(weights: Sequence[Tensor], count: int) -> list[Fragment]:
    """All weights in order, in this many equal parts."""
    sizes = [weight.numel() for weight in weights]
    total = sum(sizes)
    whole = Fragment(0, total, tuple((index, 0, size) for index, size in enumerate(sizes)))
    bounds = [round(total * part / count) for part in range(count + 1)]
    return [whole.part(start, end) for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps that contribute to a fragment: their number, and the last one, `end`.

    now: the step after which the fragment has arrived.
    learning_rate: the mean over these steps.
    """

    steps: int
    end: int
    now: int
    learning_rate: float


class Outer(ABC):
    """Moves the global weights; each call is made on all ranks alike.

    loss_factor, rate_factor: as in `GradientSync`. One fragment at a time is in transit; each part
    of it is shared, and later moved and kept, separately.
    """

    loss_factor = 1.0
    rate_factor = 1.0

    def attach(self, optimizer: torch.optim.Adam) -> None:  # noqa: B027
        """Called once before the first step, with the optimizer of this replica."""

    def step_made(self, skipped: Tensor | None = None) -> None:  # noqa: B027
        """Called after every step of this replica; skipped: as in `GradientSync`."""

    @abstractmethod
    def share(self, part: Fragment, ahead: Tensor, sent: Tensor, *, out: Tensor) -> None:
        """Write this rank's term of the sum over all ranks, fp32 and flat, into `out`.

        ahead, sent: the weights of the global model and of this replica.
        """

    @abstractmethod
    def lower(self, part: Fragment, ahead: Tensor, total: Tensor, interval: StepRange) -> None:
        """Update `ahead`, the global weights, from `total`, the sum over all ranks of what `share`
        wrote; `total` may be overwritten."""

    def lower_last(self, part: Fragment, ahead: Tensor, total: Tensor, interval: StepRange) -> None:
        """Move the global weights for the last time, at the end of training."""
        self.lower(part, ahead, total, interval)

    def keep(self, part: Fragment, lost: Tensor) -> None:  # noqa: B027
        """Keep the rounding error of this rank's share and of its part of the sum, for the next
        exchange."""

    def decays(self, interval: StepRange) -> list[float] | None:
        """Factor of weight decay of each weight, for the global weights; None: no decay."""
        return None

    def shared_state(self) -> dict[str, Tensor]:
        """State for a checkpoint, the same on every rank."""
        return {}

    def own_state(self) -> dict[str, Tensor]:
        """State for a checkpoint that only this replica has."""
        return {}

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:  # noqa: B027
        """Restore the state from a checkpoint, as in `GradientSync`. The inner optimizer has been
        restored before."""


class OuterSgd(Outer):
    """SGD with Nesterov's momentum over the mean movement d of the replicas:

    v = momentum * v + d
    global = global - rate * (d + momentum * v)

    ranks: the number of ranks of all replicas together.
    factor: this number divided by the ranks of this replica, whose mean loss is over its own share
        of the batch.
    """

    def __init__(
        self, row: WeightRow, *, rate: float, momentum: float, ranks: int, factor: float
    ) -> None:
        self.loss_factor = factor
        self._row = row
        self._rate = rate
        self._momentum = momentum
        self._num_ranks = ranks
        self._velocity = torch.zeros_like(row.copied()) if momentum else None

    def share(self, part: Fragment, ahead: Tensor, sent: Tensor, *, out: Tensor) -> None:
        """Write the movement of this replica, divided by the number of ranks, into `out`.

        The ranks of a replica are equal, so the sum is the mean of the replicas, each weighted by
        its ranks.
        """
        torch.sub(ahead, sent, out=out).div_(self._num_ranks)

    def lower(self, part: Fragment, ahead: Tensor, total: Tensor, interval: StepRange) -> None:
        """Make a step of SGD with Nesterov momentum; the gradient is the total."""
        if self._velocity is None:
            ahead.sub_(total, alpha=self._rate)
            return
        velocity = part.of(self._velocity)
        velocity.mul_(self._momentum).add_(total)
        ahead.sub_(total.add_(velocity, alpha=self._momentum), alpha=self._rate)

    def lower_last(self, part: Fragment, ahead: Tensor, total: Tensor, interval: StepRange) -> None:
        """Move to the plain mean of the replicas."""
        ahead.sub_(total)

    def shared_state(self) -> dict[str, Tensor]:
        """The momentum, if there is any."""
        return {} if self._velocity is None else self._row.named(self._velocity)

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:
        """Load the momentum; without a saved one it starts at zero."""
        for name, velocity in self.shared_state().items():
            if name in shared:
                velocity.copy_(shared[name])


class OuterAdam(Outer):
    """Adam over the gradient of the whole batch, as each replica computes it.

    Adam divides by the root of v, the second moment of the gradient. That of a replica is
    mostly the noise of its small batch: with R replicas it is up to R times that of the whole
    batch for the same mean gradient, R^2 times if a token is in the batch of one replica
    alone. So the mean of R replicas' own steps of Adam is too short by the root of this factor,
    even if they meet after every step, and longer training does not make up for it.

    Here replicas send the sum of their gradients instead of how far their weights have moved. Both
    have the same size. All replicas run the same Adam over the gradient of the whole batch. g is
    that gradient summed over the n steps since the fragment was last sent:

        v = beta2^n v + (1 - beta2^n) s,  s = g^2 / n - (n - 1) m g / n,  at least (g / n)^2
        global = global - rate * (c1 m + c2 g / n) / (sqrt(v) + epsilon)
        m = beta1^n m + (1 - beta1^n) g / n

    s estimates the mean square of one step's gradient from the sum. It is g^2 / n if the steps are
    pure noise; if the gradient is constant, g^2 / n is n times too large. m, whose noise comes from
    earlier steps, shows how much of the gradient was constant. m and v are corrected for their
    start as in Adam. Over n steps of Adam, c1 is the total weight of the momentum before them, and
    c2 that of a gradient spread evenly over them:

        c1 = sum of beta1^k for k = 1 ... n                     c2 = n - c1

    With n = 1 this is Adam on the whole batch. Between sendings each replica continues from m and v
    with an Adam of its own, which decides at which weights the next gradients are taken. It sees
    only its own 1 / R of the batch's gradient, so it steps at R times the rate with 1 / R of m;
    its v is the shared one plus the effect of its own part.

    factor: the ranks of all replicas divided by those of this one (R, if replicas are alike).
    ranks: the number of ranks of this replica, each of which sends the same.
    """

    def __init__(self, row: WeightRow, *, ranks: int, factor: float) -> None:
        self.rate_factor = factor
        self._row = row
        self._num_ranks = ranks
        # m and v of the whole batch; this rank's part of the sum of gradients since each weight was
        # sent, minus what `_carried` will add.
        self._first, self._second, self._unsent = (torch.zeros_like(row.copied()) for _ in range(3))
        self._unsent_parts = row.shaped(self._unsent)
        # This replica's m and v, by weight.
        self._own_first: list[Tensor] = []
        self._own_second: list[Tensor] = []
        self._optimizer: torch.optim.Adam | None = None
        self._decay_of: dict[Tensor, float] = {}
        # This replica's own moments at the sending, by the start of the part.
        self._sent: dict[int, tuple[Tensor, Tensor]] = {}

    def attach(self, optimizer: torch.optim.Adam) -> None:
        """Keep this optimizer, whose moments are drawn back to the shared ones."""
        self._optimizer = optimizer
        for group in optimizer.param_groups:
            self._decay_of |= dict.fromkeys(group["params"], group["weight_decay"])
            # Adam's decay is a part of the gradient, to which every replica adds its share; AdamW's
            # depends on the learning rate, which is higher here.
            group["weight_decay"] /= self.rate_factor

    def step_made(self, skipped: Tensor | None = None) -> None:
        """Add m to the sum. m is (1 - beta1) g + beta1 times the m before, so `share` gets the sum
        of g from the sum of m and from m at both ends.

        A skipped step leaves m as it was, and has no g.
        """
        self._find_moments()
        made = self._own_first
        if skipped is not None:
            made = list(torch._foreach_mul(made, 1 - skipped))
        torch._foreach_add_(self._unsent_parts, made, alpha=1 / self._num_ranks)

    def share(self, part: Fragment, ahead: Tensor, sent: Tensor, *, out: Tensor) -> None:
        """As in `Outer`: write this replica's sum of gradients into `out`, and begin the next sum.

        ahead, sent: not used.
        """
        first, second = part.gather(self._own_first), part.gather(self._own_second)
        unsent = part.of(self._unsent)
        torch.add(unsent, first, alpha=self._carried, out=out)
        torch.mul(first, -self._carried, out=unsent)
        self._sent[part.start] = first, second

    def lower(self, part: Fragment, ahead: Tensor, total: Tensor, interval: StepRange) -> None:
        """As in `Outer`; also remove the difference that this replica's moments had at the
        sending."""
        first, second = part.of(self._first), part.of(self._second)
        beta1, beta2 = self._betas
        epsilon = self._adam.param_groups[0]["eps"]
        _take_steps(ahead, first, second, total, interval, betas=(beta1, beta2), epsilon=epsilon)
        since = interval.now - interval.end
        own_first, own_second = self._sent.pop(part.start)
        change = torch.sub(first, own_first, alpha=self.rate_factor, out=own_first)
        left = beta1**since / self.rate_factor
        part.add(change, self._own_first, times=left)
        part.of(self._unsent).sub_(change, alpha=left * self._carried)
        change = torch.sub(second, own_second, out=own_second)
        part.add(change, self._own_second, times=beta2**since)
        # If nothing has come since, its own part leaves only a rounding error, of either sign.
        for own in part.within(self._own_second):
            own.clamp_(min=0.0)

    def keep(self, part: Fragment, lost: Tensor) -> None:
        """The rounding error stays in the sum."""
        part.of(self._unsent).add_(lost)

    def decays(self, interval: StepRange) -> list[float] | None:
        """The factors by which AdamW shrinks the weights over an interval; None for plain Adam."""
        if not isinstance(self._adam, torch.optim.AdamW):
            return None
        return [
            (1 - interval.learning_rate * self._decay_of[weight]) ** interval.steps
            for weight in self._row.parameters
        ]

    def shared_state(self) -> dict[str, Tensor]:
        """m and v."""
        first = self._row.named(self._first, "exp_avg")
        return first | self._row.named(self._second, "exp_avg_sq")

    def own_state(self) -> dict[str, Tensor]:
        """The sums that this replica has not sent yet."""
        return self._row.named(self._unsent, "unsent")

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:
        """As in `Outer`; a checkpoint of another strategy has m and v in its optimizer."""
        self._find_moments()
        for kind, flat, mine in (
            ("exp_avg", self._first, self._own_first),
            ("exp_avg_sq", self._second, self._own_second),
        ):
            moments = self._row.named(flat, kind)
            for (name, moment), one in zip(moments.items(), mine, strict=True):
                moment.copy_(shared.get(name, one))
        if own is not None:
            for name, tensor in self.own_state().items():
                tensor.copy_(own[name])
            return
        first, second = self._row.shaped(self._first), self._row.shaped(self._second)
        torch._foreach_copy_(self._own_second, second)
        torch._foreach_copy_(self._own_first, torch._foreach_div(first, self.rate_factor))
        carried = torch._foreach_mul(self._own_first, -self._carried)
        torch._foreach_copy_(self._unsent_parts, carried)

    @property
    def _adam(self) -> torch.optim.Adam:
        assert self._optimizer is not None, "attach comes first"
        return self._optimizer

    @property
    def _betas(self) -> tuple[float, float]:
        betas: tuple[float, float] = self._adam.param_groups[0]["betas"]
        return betas

    @property
    def _carried(self) -> float:
        """The multiple of m that this rank adds to the sum at a sending, and subtracts from the
        next."""
        beta1 = self._betas[0]
        return beta1 / ((1 - beta1) * self._num_ranks)

    def _find_moments(self) -> None:
        """Find the moments of this replica's Adam, which exist after its first step.

        Weights that are not trained have none, and get zeros here: they never move.
        """
        states = [
            self._adam.state[weight]
            if weight.requires_grad
            else {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            for weight in self._row.parameters
        ]
        self._own_first = [state["exp_avg"] for state in states]
        self._own_second = [state["exp_avg_sq"] for state in states]


def _take_steps(
    ahead: Tensor,
    first: Tensor,
    second: Tensor,
    gradient_sum: Tensor,
    interval: StepRange,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Advance m and v, and move the global weights; overwrites `gradient_sum`.

    ahead: these weights, flat.
    first, second: m and v before these steps.
    gradient_sum: g.
    """
    beta1, beta2 = betas
    steps, before = interval.steps, interval.end - interval.steps
    decay1, decay2 = beta1**steps, beta2**steps
    squared = gradient_sum.square()  # n s
    if before > 0:
        alpha = (steps - 1) / (1 - beta1**before)
        fluctuating = gradient_sum.sub(first, alpha=alpha).mul_(gradient_sum)
        squared = torch.maximum(fluctuating, squared.div_(steps), out=squared)
    second.mul_(decay2).add_(squared, alpha=(1 - decay2) / steps)
    root = torch.div(second, 1 - beta2**interval.end, out=squared).sqrt_().add_(epsilon)
    c1 = beta1 * (1 - decay1) / (1 - beta1)
    numerator = torch.mul(gradient_sum, 1 - c1 / steps).add_(first, alpha=c1)
    first.mul_(decay1).add_(gradient_sum, alpha=(1 - decay1) / steps)
    # The middle of these steps; if there is one step, the step itself.
    corrected = 1 - beta1 ** (interval.end - (steps - 1) / 2)
    ahead.addcdiv_(numerator, root, value=-interval.learning_rate / corrected)
