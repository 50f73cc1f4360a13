"""Adam of the whole batch, from what replicas send once in n steps: `diloco`'s outer optimizer.

Adam divides by the root of v, the second moment of the gradient. That of a replica is mostly the
noise of its small batch: with R replicas it is up to R times that of the whole batch for the same
mean gradient, R^2 times where a token is in the batch of one replica alone. So the mean of R
replicas' own steps of Adam is that much too short, even where they meet after every step, and no
longer training makes up for it.

Here replicas send the sum of their gradients in place of by how much their weights have moved,
which is as many numbers, and all have the same Adam over the gradient of the whole batch. g is that
gradient summed over the n steps since the fragment was last sent:

    v = beta2^n v + (1 - beta2^n) s,  s = g^2 / n - (n - 1) m g / n,  at least (g / n)^2
    global = global - rate * (c1 m + c2 g / n) / (sqrt(v) + epsilon)
    m = beta1^n m + (1 - beta1^n) g / n

s is what the square of one step's gradient has been on average, as far as it can be known from the
sum: n steps of noise alone add up to g^2 / n of it, a gradient that stays the same to n times that.
m, whose noise is of steps before, tells how much of it has stayed the same.
m and v are corrected for their start as Adam's are. c1 and c2 are what n steps of Adam make of the
momentum before them, and of a gradient spread evenly over them:

    c1 = sum of beta1^k for k = 1 ... n                     c2 = n - c1

With n = 1 that is Adam on the whole batch. Between sendings each replica goes on from m and v with
an Adam of its own, which decides at which weights the next gradients are taken. What it sees is its
own part of the batch's gradient, a part 1 / R of what the others would add, so it steps at R times
the rate with 1 / R of m; its v is the shared one, to which it adds what its own part does.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from dragoman.distributed.fragments import Fragment, WeightRow
from dragoman.distributed.outer import Interval, Outer
from dragoman.distributed.strategy import Tensors

_CPU_CHUNK: Final = 2**15
"""Numbers of which all that the formulas need stays in a core's cache."""


class OuterAdam(Outer):
    """One replica's part of it.

    factor: the ranks of all replicas over those of this one (R, where replicas are alike).
    ranks: of this replica, each of which sends the same.
    """

    def __init__(self, row: WeightRow, *, ranks: int, factor: float) -> None:
        self.rate_factor = factor
        self._row = row
        self._num_ranks = ranks
        # m and v of the whole batch; the sum of own gradients since each weight was sent, which is
        # kept as (1 - beta1) times that sum.
        self._first, self._second, self._sum = (torch.zeros_like(row.copied()) for _ in range(3))
        self._sums = row.shaped(self._sum)
        self._optimizer: torch.optim.Adam | None = None
        self._decay_of: dict[Tensor, float] = {}
        self._sent: tuple[Tensor, Tensor] | None = None

    def attach(self, optimizer: torch.optim.Adam) -> None:
        """Its moments are led back to the shared ones."""
        self._optimizer = optimizer
        for group in optimizer.param_groups:
            self._decay_of |= dict.fromkeys(group["params"], group["weight_decay"])
            # Adam's decay is a part of the gradient, of which every replica adds its share; AdamW's
            # goes by the learning rate, which is higher here.
            group["weight_decay"] /= self.rate_factor

    def step_made(self) -> None:
        """(1 - beta1) g is what m has now and beta1 m had not: `share` takes the latter off."""
        torch._foreach_add_(self._sums, self._own("exp_avg"), alpha=1 - self._betas[0])

    def share(self, fragment: Fragment, movement: Tensor) -> Tensor:
        """This replica's sum of gradients; the next sum begins."""
        beta1 = self._betas[0]
        first, second = (fragment.gather(self._own(kind)) for kind in ("exp_avg", "exp_avg_sq"))
        begun = fragment.of(self._sum)
        summed = begun.add(first, alpha=beta1).div_((1 - beta1) * self._num_ranks)
        torch.mul(first, -beta1, out=begun)
        self._sent = first, second
        return summed

    def movement(self, fragment: Fragment, total: Tensor, interval: Interval) -> Tensor:
        """As above; what set this replica's moments apart when it sent is taken from them."""
        assert self._sent is not None
        first, second = fragment.of(self._first), fragment.of(self._second)
        group = self._adam.param_groups[0]
        beta1, beta2 = self._betas
        chunk = total.numel() if total.is_cuda else _CPU_CHUNK
        flats = (torch.split(flat, chunk) for flat in (first, second, total))
        for m, v, g in zip(*flats, strict=True):
            _take_steps(m, v, g, interval, betas=(beta1, beta2), epsilon=group["eps"])
        since = interval.now - interval.end
        own_first, own_second = self._sent
        change = (first / self.rate_factor).sub_(own_first).mul_(beta1**since)
        fragment.add(change, self._own("exp_avg"))
        fragment.of(self._sum).sub_(change, alpha=beta1)
        change = (second - own_second).mul_(beta2**since)
        # Where nothing has come since, its own part leaves no more than a rounding, of either sign.
        seconds = fragment.gather(self._own("exp_avg_sq")).add_(change).clamp_(min=0.0)
        fragment.copy(seconds, self._own("exp_avg_sq"))
        self._sent = None
        return total.mul_(interval.learning_rate)

    def keep(self, fragment: Fragment, lost: Tensor) -> None:
        """It stays in the sum, in which all ranks of a replica count alike."""
        fragment.of(self._sum).add_(lost, alpha=(1 - self._betas[0]) * self._num_ranks)

    def decays(self, interval: Interval) -> list[float] | None:
        """AdamW's, of as many steps."""
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
        """The sums."""
        return self._row.named(self._sum, "gradient_sum")

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:
        """A checkpoint of another strategy has the moments in its optimizer."""
        for kind, flat in (("exp_avg", self._first), ("exp_avg_sq", self._second)):
            for name, moment, mine in zip(
                self._row.names, self._row.shaped(flat), self._own(kind), strict=True
            ):
                moment.copy_(shared.get(f"{name}/{kind}", mine))
        if own is not None:
            for name, tensor in self.own_state().items():
                tensor.copy_(own[name])
            return
        first, second = self._row.shaped(self._first), self._row.shaped(self._second)
        torch._foreach_copy_(self._own("exp_avg_sq"), second)
        torch._foreach_copy_(self._own("exp_avg"), torch._foreach_div(first, self.rate_factor))
        torch._foreach_copy_(self._sums, torch._foreach_mul(self._own("exp_avg"), -self._betas[0]))

    @property
    def _adam(self) -> torch.optim.Adam:
        assert self._optimizer is not None, "attach comes first"
        return self._optimizer

    @property
    def _betas(self) -> tuple[float, float]:
        betas: tuple[float, float] = self._adam.param_groups[0]["betas"]
        return betas

    def _own(self, kind: str) -> list[Tensor]:
        """Moments of this replica's Adam, by weight; the tensors themselves."""
        return [self._adam.state[weight][kind] for weight in self._row.parameters]


def _take_steps(
    first: Tensor,
    second: Tensor,
    gradient_sum: Tensor,
    interval: Interval,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Move m and v on; `gradient_sum` becomes what these steps lower the weights by at a rate of 1.

    first, second: m and v before these steps, flat. gradient_sum: g.
    """
    beta1, beta2 = betas
    steps, before = interval.steps, interval.end - interval.steps
    decay1, decay2 = beta1**steps, beta2**steps
    squared = gradient_sum.square().div_(steps)
    if before > 0:
        least = squared / steps
        lasting = first * gradient_sum
        squared.sub_(lasting, alpha=(steps - 1) / steps / (1 - beta1**before))
        torch.maximum(squared, least, out=squared)
    second.mul_(decay2).add_(squared, alpha=1 - decay2)
    root = torch.div(second, 1 - beta2**interval.end, out=squared).sqrt_().add_(epsilon)
    c1 = sum(beta1**k for k in range(1, steps + 1))
    before_it = first * c1
    first.mul_(decay1).add_(gradient_sum, alpha=(1 - decay1) / steps)
    gradient_sum.mul_(1 - c1 / steps).add_(before_it).div_(root)
    # In the middle of these steps, which is the last of them where there is one.
    gradient_sum.div_(1 - beta1 ** (interval.end - (steps - 1) / 2))
