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

import torch
from torch import Tensor

from dragoman.distributed.fragments import Fragment, WeightRow
from dragoman.distributed.outer import Interval, Outer
from dragoman.distributed.strategy import Tensors


class OuterAdam(Outer):
    """One replica's part of it.

    factor: the ranks of all replicas over those of this one (R, where replicas are alike).
    ranks: of this replica, each of which sends the same.
    """

    def __init__(self, row: WeightRow, *, ranks: int, factor: float) -> None:
        self.rate_factor = factor
        self._row = row
        self._num_ranks = ranks
        # m and v of the whole batch; this rank's part of the sum of gradients since each weight was
        # sent, less what `_carried` will add.
        self._first, self._second, self._unsent = (torch.zeros_like(row.copied()) for _ in range(3))
        self._unsent_parts = row.shaped(self._unsent)
        # This replica's m and v, by weight.
        self._own_first: list[Tensor] = []
        self._own_second: list[Tensor] = []
        self._optimizer: torch.optim.Adam | None = None
        self._decay_of: dict[Tensor, float] = {}
        # Own moments as they were sent, by where the part starts.
        self._sent: dict[int, tuple[Tensor, Tensor]] = {}

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
        self._find_moments()
        torch._foreach_add_(self._unsent_parts, self._own_first, alpha=1 / self._num_ranks)

    def share(self, part: Fragment, ahead: Tensor, sent: Tensor, *, out: Tensor) -> None:
        """This replica's sum of gradients; the next sum begins."""
        first, second = part.gather(self._own_first), part.gather(self._own_second)
        unsent = part.of(self._unsent)
        torch.add(unsent, first, alpha=self._carried, out=out)
        torch.mul(first, -self._carried, out=unsent)
        self._sent[part.start] = first, second

    def lower(self, part: Fragment, ahead: Tensor, total: Tensor, interval: Interval) -> None:
        """As above; what set this replica's moments apart when it sent is taken from them."""
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
        # Where nothing has come since, its own part leaves no more than a rounding, of either sign.
        for own in part.within(self._own_second):
            own.clamp_(min=0.0)

    def keep(self, part: Fragment, lost: Tensor) -> None:
        """It stays in the sum."""
        part.of(self._unsent).add_(lost)

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
        return self._row.named(self._unsent, "unsent")

    def load_state(self, shared: Tensors, own: Tensors | None) -> None:
        """A checkpoint of another strategy has the moments in its optimizer."""
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
        """How many of its m this rank adds to the sum when it sends, and takes off the next."""
        beta1 = self._betas[0]
        return beta1 / ((1 - beta1) * self._num_ranks)

    def _find_moments(self) -> None:
        """Those of this replica's Adam, which are there after its first step."""
        states = [self._adam.state[weight] for weight in self._row.parameters]
        self._own_first = [state["exp_avg"] for state in states]
        self._own_second = [state["exp_avg_sq"] for state in states]


def _take_steps(
    ahead: Tensor,
    first: Tensor,
    second: Tensor,
    gradient_sum: Tensor,
    interval: Interval,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Move m and v on, and lower the global weights; `gradient_sum` is spent.

    ahead: these weights, flat. first, second: m and v before these steps. gradient_sum: g.
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
    # In the middle of these steps, which is the last of them where there is one.
    corrected = 1 - beta1 ** (interval.end - (steps - 1) / 2)
    ahead.addcdiv_(numerator, root, value=-interval.learning_rate / corrected)
