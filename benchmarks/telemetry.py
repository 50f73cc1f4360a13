"""The cost of telemetry: training with and without, size of a record, time of report and screen.

    benchmarks/telemetry.py speed PREPARED     the same updates with and without telemetry
    benchmarks/telemetry.py record [STEP_S]    the record of a run of 50,000 steps on two hosts of
                                               eight GPUs, really written, then reported on
                                               and watched; seconds of a step: 1.7

PREPARED is what `dragoman prepare demo` made. Each update is made twice, once with all that a run
measures (phases, intervals, events, console, TensorBoard). The two take turns to come first, after
one that is not counted: the first on a batch of other shapes is slower. Then the measuring alone is
timed, which a noisy machine disturbs less, and the sampler's thread added.
"""

from __future__ import annotations

import io
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dragoman.base.memory import keep_freed_memory
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import TokenShards
from dragoman.data.loader import BatchStream, Update
from dragoman.distributed.config import DistributedConfig
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.world import join_world
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import load_recipe
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.telemetry import events
from dragoman.telemetry.console import ConsoleSink
from dragoman.telemetry.events import (
    SCHEMA_VERSION,
    Event,
    EventWriter,
    Payload,
    as_line,
    as_values,
    event_file,
)
from dragoman.telemetry.sampler import MachineProbe, NetworkProbe, sample_every_s
from dragoman.telemetry.sinks import TensorBoardSink
from dragoman.telemetry.timers import PhaseTimer
from dragoman.training.interval import IntervalSums, train_interval
from dragoman.training.precision import agreed_precision
from dragoman.training.step import StepResult, TrainStep
from dragoman.watch.live import open_run
from dragoman.watch.screen import screen

NUM_PAIRS = 80
NUM_UPDATES = 10
LOG_EVERY_STEPS = 20
NUM_STEPS = 50_000
STEP_S = 1.7
LOG_EVERY = 100
VALIDATE_EVERY = 4000
NUM_HOSTS, NUM_GPUS = 2, 8


class NoTimer(PhaseTimer):
    """Times nothing."""

    def phase(self, name: Any) -> Any:
        return nullcontext()

    def step_done(self, *, steps: int = 1) -> None:
        pass


NO_TIMER = NoTimer(torch.device("cpu"))


@dataclass
class Bench:
    """One training whose updates are made again and again, measured or not."""

    step: TrainStep
    updates: Sequence[Update]
    timer: PhaseTimer
    interval: IntervalSums
    writer: EventWriter
    disk: Path

    def on(self, update: Update) -> None:
        with self.timer.phase("data_wait"):
            pass
        self.step.timer = self.timer
        self.interval.add(update, self.step(update, learning_rate=1e-5))
        self.timer.step_done()
        if self.interval.steps == LOG_EVERY_STEPS:
            self.tell()

    def off(self, update: Update) -> None:
        self.step.timer = NO_TIMER
        self.step(update, learning_rate=1e-5)

    def tell(self) -> None:
        own = [self.interval.take()]
        self.writer.write(train_interval(own, learning_rate=1e-5, loss_scale=None), step=1)


def measured(block: Callable[[], object]) -> tuple[float, float]:
    """Wall clock and processor time of a block, all threads, in seconds."""
    before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    block()
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def speed(prepared: Path) -> None:
    keep_freed_memory()
    with ExitStack() as stack:
        bench = _open(prepared, stack)
        for update in bench.updates:  # warms up
            bench.on(update)
            bench.off(update)
        walls, cpus, alone_s = [], [], []
        for number in range(NUM_PAIRS):
            cycle, place = divmod(number, len(bench.updates))
            update = bench.updates[place]
            bench.off(update)  # the first to work on other shapes than the last pays for them
            turn = (bench.on, bench.off)
            order = turn if (cycle + place) % 2 else turn[::-1]
            found = {one.__name__: measured(partial(one, update)) for one in order}
            walls.append(found["on"][0] / found["off"][0] - 1)
            cpus.append(found["on"][1] / found["off"][1] - 1)
            alone_s.append(found["off"][0])
        for name, costs in (("wall clock", walls), ("processor time", cpus)):
            low, middle, high = _median(costs)
            print(f"paired, {name}: median {middle:+.2%} (95%: {low:+.2%} to {high:+.2%})")
        _print_own(bench, step_s=statistics.median(alone_s))


def _median(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95% interval, by the ranks around it."""
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    places = (len(values) / 2 - half, len(values) / 2, len(values) / 2 + half)
    low, middle, high = (ordered[min(max(int(place), 0), len(values) - 1)] for place in places)
    return low, middle, high


def _each(*parts: Callable[[], None], times: int) -> float:
    """Processor time of the parts one after the other, the mean of many."""

    def repeat() -> None:
        for _ in range(times):
            for part in parts:
                part()

    return measured(repeat)[1] / times


def _print_own(bench: Bench, *, step_s: float) -> None:
    """Processor time of measuring itself, without any training between."""
    update, norm = bench.updates[0], torch.ones(())
    result = StepResult(norm, norm, torch.zeros(()))

    def step() -> None:
        for phase in ("data_wait", "forward", "backward", "optimizer"):
            with bench.timer.phase(phase):
                pass
        bench.interval.add(update, result)
        bench.timer.step_done()

    def look() -> None:
        probe.look()
        wire.look()

    def tell() -> None:
        for payload in (*probe.sample(1.0), *wire.sample(1.0)):
            bench.writer.write(payload)

    probe, wire = MachineProbe(disk=bench.disk, queued=lambda: 8), NetworkProbe("lo")
    bench.interval = IntervalSums(world=bench.step.world, sync=bench.step.sync, timer=bench.timer)
    step_cost = _each(step, times=2000)
    interval_cost = _each(step, bench.tell, times=200)
    sample_cost = _each(look, tell, times=300)
    share = (step_cost + interval_cost / LOG_EVERY_STEPS) / step_s + sample_cost
    print(f"own, a step: {step_cost * 1e6:.0f} us of {step_s * 1e3:.0f} ms")
    print(f"own, an interval with its event and views: {interval_cost * 1e3:.2f} ms")
    print(f"own, a second's sample with its events: {sample_cost * 1e3:.2f} ms")
    print(f"own, together: {share:.3%} of one core")


def _open(prepared: Path, stack: ExitStack) -> Bench:
    recipe, manifest = load_recipe("demo"), Manifest.load(prepared)
    world = stack.enter_context(join_world())
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    model = Transformer(
        recipe.model,
        source_vocab_size=manifest.source_vocab_size,
        target_vocab_size=manifest.target_vocab_size,
    )
    sync = stack.enter_context(gradient_sync(DistributedConfig(), model, world))
    step = TrainStep(
        model,
        sync=sync,
        train=recipe.train,
        precision=agreed_precision(recipe.train, world),
        optimizer=recipe.optimizer,
        world=world,
    )
    stream: AbstractContextManager[Iterator[Update]] = BatchStream(
        TokenShards(prepared / "train"),
        recipe.data,
        seed=1,
        rank=0,
        world_size=1,
        start_update=0,
        device=world.device,
    )
    with stream as made:
        updates = list(islice(made, NUM_UPDATES))
    writer = stack.enter_context(EventWriter(directory / "events"))
    writer.subscribe(ConsoleSink(Console(file=io.StringIO())))
    writer.subscribe(TensorBoardSink(directory / "tensorboard"))
    interval = IntervalSums(world=world, sync=sync, timer=step.timer)
    return Bench(step, updates, step.timer, interval, writer, directory)


def record(directory: Path, step_s: float) -> None:
    run = directory / "run"
    (run / "events").mkdir(parents=True)
    _write_log(event_file(run / "events"), step_s)
    began = time.process_time()
    report = Report.of(read_facts(run))
    pages = report.write(run / "report")
    took_s = time.process_time() - began
    size_bytes = event_file(run / "events").stat().st_size
    print(f"events: {size_bytes / 1e6:.1f} MB")
    print(f"report made in {took_s:.1f} s of processor time")
    print(f"report.html: {pages[0].stat().st_size / 1e6:.2f} MB")
    _watch(run)


def _watch(run: Path) -> None:
    """Draw the run before its last interval, then after it."""
    log = event_file(run / "events")
    lines = log.read_bytes().splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if b'"train_interval"' in line)
    log.write_bytes(b"".join(lines[:last]))
    live = open_run(run)

    def draw() -> None:
        live.look()
        screen(live.now(), width=120, height=40)

    _, read_s = measured(live.look)
    _, first_s = measured(draw)
    with log.open("ab") as file:
        file.write(lines[last])
    _, again_s = measured(draw)
    print(f"watch: read in {read_s:.2f} s, drawn in {first_s:.3f} s, again in {again_s:.3f} s")


def _write_log(path: Path, step_s: float) -> None:
    """Write what the ranks of a run of 50,000 steps say."""
    with path.open("wb") as file:

        def write(payload: Payload, second: float, step: int | None, rank: int = 0) -> None:
            time_s, mono_s = 1.7e9 + round(second, 3), round(4321.1234 + second, 4)
            values, host = as_values(payload), _HOSTS[rank]
            event = Event(SCHEMA_VERSION, payload.kind, time_s, mono_s, host, rank, step, values)
            file.write(as_line(event))

        write(_STARTED, 0, 0)
        last = 0.0
        for step in range(LOG_EVERY, NUM_STEPS + 1, LOG_EVERY):
            second = step * step_s
            while last + sample_every_s(last) < second:
                last += sample_every_s(last)
                for rank in range(0, len(_HOSTS), NUM_GPUS):
                    for payload in _SAMPLES:
                        write(payload, last, None, rank)
            write(_INTERVAL, second, step)
            if step % VALIDATE_EVERY == 0:
                write(_VALIDATED, second, step)
                for payload in (_SENTENCE, _SENTENCE, _SENTENCE, _CHECKPOINT):
                    write(payload, second, step)
        write(_FINISHED, NUM_STEPS * step_s, NUM_STEPS)


_HOSTS = tuple(f"host-{rank // NUM_GPUS}" for rank in range(NUM_HOSTS * NUM_GPUS))
_RANKS = len(_HOSTS)
_STARTED = events.RunStarted(
    run_name="reference", recipe_digest="0123456789abcdef" * 4, world_size=_RANKS,
    hosts=_HOSTS, device="cuda:0", precision="fp16", num_parameters=60_880_896, max_steps=NUM_STEPS,
    train_pairs=4_524_868, resumed_from_step=None,
)  # fmt: skip
_INTERVAL = events.TrainInterval(
    steps=100, epoch=3, train_loss=2.1415926535897931,
    learning_rate=0.0003952847075210474, gradient_norm=0.41231056256176607, pairs=102_400,
    source_tokens=3_101_234, target_tokens=3_139_876, padding_share=0.0312345678901234,
    skipped_steps=0, loss_scale=65536.0, wire_s=90.12345678901234,
    interval_s=(170.12345678901234,) * _RANKS,
    step_median_s=(1.7012345678901234,) * _RANKS, step_p95_s=(1.8012345678901,) * _RANKS,
    data_wait_s=(0.12345678901234567,) * _RANKS,
    forward_s=(20.123456789012345,) * _RANKS, backward_s=(40.1234567890123,) * _RANKS,
    sync_s=(108.12345678901234,) * _RANKS, optimizer_s=(1.7012345678901234,) * _RANKS,
    sync_bytes=(36_528_537_600,) * _RANKS, peak_memory_bytes=(14_123_456_789,) * _RANKS,
)  # fmt: skip
_VALIDATED = events.Validated(
    dev_loss=1.6273, dev_perplexity=5.09, train_slice_loss=1.58, bleu=24.3, bleu_low=23.5,
    bleu_high=25.1, bleu_signature="nrefs:1|bs:1000|seed:12345|case:mixed|eff:no|tok:13a",
    chrf=52.1, chrf_low=51.3, chrf_high=52.9, chrf_signature="nrefs:1|case:mixed|eff:yes",
    dev_pairs=3000, decoded_pairs=3000, loss_s=4.2, decode_s=61.0,
)  # fmt: skip
_SENTENCE = events.SampleTranslation(source="x" * 120, hypothesis="y" * 140, reference="z" * 140)
_CHECKPOINT = events.CheckpointWritten(
    path="runs/reference/checkpoints/step-0004000", reason="steps", size_bytes=730_570_752,
    seconds_s=2.1,
)  # fmt: skip
_FINISHED = events.RunFinished(
    reason="max_steps", best_dev_loss=1.6, best_dev_loss_step=48_000, best_bleu=25.0,
    best_bleu_step=48_000, wall_s=NUM_STEPS * STEP_S,
)  # fmt: skip
_SAMPLES: list[Payload] = [
    events.HostSampled(
        seconds_s=10.001, cpu_share=0.1234, others_cpu_share=0.0123,
        memory_used_bytes=12_345_678_901, memory_limit_bytes=128_345_678_901,
        disk_free_bytes=512_345_678_901,
        queued_batches=7.91,
    ),
    events.NetworkSampled(
        interface="eth0", seconds_s=10.001, sent_bytes=2_150_123_456,
        received_bytes=2_150_123_456, sent_packets=1_512_345, received_packets=1_512_345,
        most_sent_bytes_per_s=218_123_456.7, errors=0, nominal_bits_per_s=1e9, carrier_changes=0,
    ),
    *(
        events.GpuSampled(
            gpu=gpu, name="Tesla V100-SXM2-16GB", seconds_s=10.001, utilisation_share=1.0,
            sm_activity_share=None, power_w=67.1234, power_limit_w=300.0,
            memory_bytes=14_123_456_789, memory_limit_bytes=17_179_869_184, clock_hz=1.53e9,
            throttle_reasons="", ecc_errors=0,
        )
        for gpu in range(NUM_GPUS)
    ),
]  # fmt: skip


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "speed":
        speed(Path(rest[0]))
        return
    step_s = float(rest[0]) if rest else STEP_S
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        record(Path(directory), step_s)


if __name__ == "__main__":
    main()
