"""Measured step times of every strategy beside the planner's, on lab hosts behind slow ports.

    benchmarks/strategies.py [--hosts 2 3] [--rates 100mbit 30mbit 14mbit] [--json FILE]
                             [--strategies compute plain sync diloco auto]

Root on Linux; two or three hosts in network namespaces (tests/lab). Compute is a rest of stated
length, spread over the layers' forward and backward as a GPU's would be: hosts of a lab share one
processor, which would make each other's compute slower and tell nothing about the network. All
else is real: weights, gradients, Adam, Gloo, sockets, the port's limit. `auto` measures the link
in the lab itself; every other plan is made from the port's nominal rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from torch import Tensor, nn

from dragoman.base import units
from dragoman.base.memory import keep_freed_memory
from dragoman.cluster.rates import Link
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.diloco_work import measure_weight_s
from dragoman.distributed.gradient_sync import GradientSync
from dragoman.distributed.link_rate import measure_link
from dragoman.distributed.step_time import Exchange, HostRanks, Step
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World
from dragoman.run.auto import resolved
from dragoman.telemetry.host import interface_number
from lab.laboratory import INTERFACE, open_lab
from lab.namespaces import why_no_lab
from lab.ranks_on_hosts import run_on_hosts

NAMES: Final = ("alpha", "beta", "gamma")
WIDTH: Final = 256
NUM_LAYERS: Final = 32
REST_EVERY: Final = 4
"""Layers between two rests: a processor cannot rest for much less than a millisecond."""
COMPUTE_S: Final = 0.3
"""The compute of a step, a third of it forward."""
BLOCKING_EVERY: Final = 12
COMPUTE_STEPS: Final = 11
HEADER: Final = """\
| hosts | port | strategy | s/step | x compute | planned | error | MB/step | planned | error |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|"""


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds * 2 / 3)
        return gradients[0], None


class RestingModel(nn.Module):
    """Layers whose compute is a rest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number % REST_EVERY == 0:
                x = _Rest.apply(x, COMPUTE_S * REST_EVERY / NUM_LAYERS)  # type: ignore[no-untyped-call]
        return x.square().sum()


def measure(world: World, settings: dict[str, Any] | None, steps: int) -> dict[str, Any]:
    """Seconds and bytes of a step with a strategy; None: without any network, "auto": as chosen."""
    keep_freed_memory()  # as a training does
    model = RestingModel()
    compute_s = _compute_s(world, model)
    weight_s = measure_weight_s(world)
    if settings is None:
        nothing = {"step_s": compute_s, "sent_bytes": 0.0, "counted": 0.0}
        return nothing | {"compute_s": compute_s, "weight_s": weight_s}
    config, plan = DistributedConfig.model_validate(settings), None
    if config.strategy == "auto":
        rate = measure_link(world, find_topology(world))
        link = Link(rate.bytes_per_s, latency_s=rate.latency_s)
        plan, _ = _exchange(world.world_size, link, compute_s, weight_s).choose()
        config = resolved(config, plan)
    every = config.diloco.every if config.strategy == "diloco" else 1
    gap = every // config.diloco.fragments if config.strategy == "diloco" else every
    # From the same place in one period to that in a later one, with nothing on its way.
    late = config.diloco.delay if config.strategy == "diloco" else 0
    warm, steps = max(gap * 2, 2) + late, max(every, steps // every * every)
    with gradient_sync(config, model, world) as sync:
        step = _Stepper(model, sync)
        step.go(warm)
        world.barrier()
        before, started = interface_number(INTERFACE, "statistics/tx_bytes"), time.perf_counter()
        counted, waited_s = sync.bytes_sent, sync.waits.total_s()
        step.go(steps)
        taken_s = time.perf_counter() - started
        found: dict[str, Any] = {
            "compute_s": compute_s,
            "weight_s": weight_s,
            "step_s": taken_s / steps,
            "sent_bytes": (interface_number(INTERFACE, "statistics/tx_bytes") - before) / steps,
            "counted": (sync.bytes_sent - counted) / steps,
            "exposed_s": (sync.waits.total_s() - waited_s) / steps,
        }
        # What is still on its way must arrive before the hosts part.
        sync.finish()
    # Others may use this machine too: compute before and after tells what it was in between.
    found["compute_s"] = (compute_s + _compute_s(world, model)) / 2
    if plan is not None:
        found |= {"label": plan.label, "planned_s": plan.step_s, "planned_bytes": plan.wire_bytes}
    return found


class _Stepper:
    def __init__(self, model: nn.Module, sync: GradientSync) -> None:
        self._model = model
        self._sync = sync
        self._optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
        sync.attach(self._optimizer)
        self._rows = torch.randn(4, WIDTH)
        self._step = 0

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self._step += 1
            with self._sync.micro_step(last=True):
                self._model(self._rows).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._sync.after_update(self._step, learning_rate=1e-5)


def _compute_s(world: World, model: nn.Module) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    rows, times = torch.randn(4, WIDTH), []
    for _ in range(COMPUTE_STEPS):
        started = time.perf_counter()
        model(rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    return float(max(world.gather_json(statistics.median(times[2:]))))


@dataclass(frozen=True)
class Case:
    """One line of the table; steps: of the measurement, about. predict: None for auto."""

    name: str
    settings: dict[str, Any] | None
    steps: int

    @property
    def kind(self) -> str:
        """Its strategy without the numbers."""
        return self.name.split()[0]


def cases() -> list[Case]:
    blocking = {"every": BLOCKING_EVERY, "fragments": 1, "delay": 0}
    return [
        Case("compute only", None, 0),
        Case("plain fp32", {"strategy": "sync", "wire": "fp32"}, 4),
        Case("sync bf16", {"strategy": "sync"}, 6),
        Case(f"diloco H={BLOCKING_EVERY}", {"strategy": "diloco", "diloco": blocking}, 24),
        Case("auto", {"strategy": "auto"}, 52),
    ]


def _exchange(num_hosts: int, link: Link, compute_s: float, weight_s: float) -> Exchange:
    return Exchange(
        hosts=(HostRanks(1),) * num_hosts,
        compute_s=compute_s,
        shapes=((WIDTH, WIDTH),) * NUM_LAYERS,
        bytes_per_s=link.bytes_per_s,
        latency_s=link.latency_s,
        weight_s=weight_s,
    )


def predicted(case: Case, exchange: Exchange) -> Step | None:
    """The prediction of the planner from the nominal rate; None for auto, which plans itself."""
    match case.kind:
        case "plain":
            return exchange.plain()
        case "sync":
            return exchange.sync()
        case "diloco":
            return exchange.diloco(BLOCKING_EVERY, fragments=1, delay=0)
    return None


def table(num_hosts: int, rates: Sequence[str], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """Measure every wanted case at every rate."""
    rows = []
    for rate in rates:
        bits_per_s = units.BIT_RATE.parse(rate.replace("mbit", "Mbit"))
        link = Link.nominal(bits_per_s)
        with (
            tempfile.TemporaryDirectory() as folder,
            open_lab(Path(folder) / "lab", NAMES[:num_hosts], rate=rate) as lab,
        ):
            for case in (case for case in cases() if case.kind in wanted):
                said = run_on_hosts(
                    measure, case.settings, case.steps, hosts=lab.hosts, timeout_s=300
                )
                row = _row(case, link, said) | {"hosts": num_hosts, "rate": rate}
                rows.append(row)
                print(_line(row), flush=True)
    return rows


def _row(case: Case, link: Link, said: list[dict[str, Any]]) -> dict[str, Any]:
    row = {key: max(one[key] for one in said) for key in ("compute_s", "step_s", "sent_bytes")}
    row |= {"name": case.name, "counted": max(one["counted"] for one in said)}
    row["exposed_s"] = max(one.get("exposed_s", 0.0) for one in said)
    plan = predicted(case, _exchange(len(said), link, row["compute_s"], said[0]["weight_s"]))
    if plan is not None:
        row |= {"planned_s": plan.step_s, "planned_bytes": plan.wire_bytes}
    elif "label" in said[0]:
        row |= {key: said[0][key] for key in ("planned_s", "planned_bytes")}
        row["name"] = f"{case.name}: {said[0]['label']}"
    return row


def _line(row: dict[str, Any]) -> str:
    words = [f"{row['hosts']} | {row['rate']} | {row['name']}", f"{row['step_s']:.3f}"]
    words.append(f"{row['step_s'] / row['compute_s']:.2f}")
    if "planned_s" in row:
        error = row["step_s"] / row["planned_s"] - 1
        wire = row["sent_bytes"] / row["planned_bytes"] - 1
        words += [f"{row['planned_s']:.3f}", f"{error:+.1%}", f"{row['sent_bytes'] / 1e6:.2f}"]
        words += [f"{row['planned_bytes'] / 1e6:.2f}", f"{wire:+.1%}"]
    return "| " + " | ".join(words) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3], choices=[2, 3])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "30mbit", "14mbit"])
    kinds = [case.kind for case in cases()]
    parser.add_argument("--strategies", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args()
    if why := why_no_lab():
        print(f"no lab here: {why}", file=sys.stderr)
        return 1
    print(HEADER, flush=True)
    rows = [
        row
        for num_hosts in options.hosts
        for row in table(num_hosts, options.rates, options.strategies)
    ]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
