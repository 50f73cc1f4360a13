"""One process of a run: `python -m dragoman.run.worker train|evaluate RUN ...`.

This is the one place that knows all the parts. run/run.py calls it directly for one process and
through distributed/launch.py for several.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shlex
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dragoman.base import units
from dragoman.base.errors import CheckpointError, DragomanError
from dragoman.base.memory import keep_freed_memory, memory_errors_named
from dragoman.base.process import explain, prepare_streams, say_error
from dragoman.corpus.directions import Direction, listed, tempered
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.subword import VOCABULARIES, read_vocabulary
from dragoman.corpus.vocabulary import load_vocabulary
from dragoman.data.loader import BatchStream, Stage
from dragoman.data.sampler import Mixture
from dragoman.data.subword_sampling import SubwordSampling
from dragoman.distributed.launch import (
    InterruptedRunError,
    WorkerError,
    introduce_worker,
    report_failure,
)
from dragoman.distributed.link_rate import measure_link
from dragoman.distributed.rendezvous import StoreAddress
from dragoman.distributed.strategies import gradient_sync
from dragoman.distributed.topology import find_topology
from dragoman.distributed.world import World, join_world
from dragoman.evaluation.validate import Validation, ValidationData, validate
from dragoman.formats.trained_model import layout_to_write, new_model
from dragoman.inference.scores import score_text
from dragoman.model.transformer import Transformer, compile_stacks, compiler_errors_named, freeze
from dragoman.recipe.recipe import Recipe, digest
from dragoman.recipe.run_directory import RunDirectory
from dragoman.run.auto import ChosenStrategy, choose_strategy
from dragoman.telemetry.config import SinksConfig
from dragoman.telemetry.environment import read_environment
from dragoman.telemetry.events import (
    Alert,
    EventListener,
    EventWriter,
    LinkMeasured,
    MixturePlanned,
    Outbox,
    Recorder,
    RunStarted,
)
from dragoman.telemetry.host import (
    PRICE_VARIABLE,
    HourlyPrice,
    boot_id,
    collective_interface,
    hourly_price,
    process_started,
)
from dragoman.telemetry.sampler import host_sampler
from dragoman.telemetry.sinks import TensorBoardSink, subscribe_sinks
from dragoman.training.checkpoint import Checkpoint, CheckpointStore, TrainState, load_weights
from dragoman.training.clock import Budget, read_budget
from dragoman.training.config import Precision
from dragoman.training.matrix_rate import measure_device, slow_precision
from dragoman.training.precision import agreed_precision
from dragoman.training.snapshot import agreed_checkpoint, resume, share_newest
from dragoman.training.step import TrainStep
from dragoman.training.trainer import fit

_CLOCKS_AGREE_S = 0.1
"""A barrier can tell no smaller difference of clocks."""
_CLOCKS_DIFFER_S = 5.0
_LESS_MEMORY = {
    "train": "lower data.batch_tokens and raise data.accumulate by as much, or use more ranks",
    "evaluate": "lower search.batch_tokens",
}


def train(run: RunDirectory, listeners: Sequence[EventListener] = ()) -> None:
    """Train until the recipe says stop, from the newest checkpoint if there is one.

    listeners: called with each event of the run.
    Raises InterruptedRunError if a signal ended it, and the errors of `fit`.
    """
    recipe, prepared, budget = run.recipe(), run.prepared(), read_budget(run.path)
    manifest = Manifest.load(prepared)
    with join_world() as world, _events(run, world, recipe.sinks, listeners) as events:
        if budget is not None:
            budget = budget.with_starts(time.time() - process_started())
        precision = agreed_precision(recipe.train, world)
        training = _RankTraining(run, recipe, prepared, manifest, world, events, precision)
        reason, step = training.train(budget)
    if reason == "signal":
        raise InterruptedRunError(
            f"a signal stopped the run at step {step}; everything is saved",
            place=run.path,
            remedy="go on with the same command, not fresh; the clock of its budget runs on"
            if budget is not None
            else f"go on with: dragoman train {shlex.quote(str(run.path))}",
        )


def work(arguments: Sequence[str], listeners: Sequence[EventListener] = ()) -> None:
    """Do one job in this process, as one rank of however many there are.

    listeners: called with each event of the run.
    """
    options = _parser().parse_args(arguments)
    run = RunDirectory.open(options.run)
    keep_freed_memory()
    with memory_errors_named(_LESS_MEMORY[options.job]), compiler_errors_named():
        if options.job == "train":
            train(run, listeners)
            return
        with join_world() as world, _events(run, world, SinksConfig(), listeners) as events:
            score_text(
                run,
                checkpoint=options.checkpoint,
                source=options.source,
                reference=options.reference,
                target=options.target,
                languages=options.languages,
                overrides=options.overrides,
                world=world,
                events=events,
            )


def default_ranks() -> int:
    """The number of GPUs of this machine; 1 if it has none."""
    return max(1, torch.cuda.device_count())


def main() -> int:
    """The work of a worker process; a failure is one line, for a person and for the launcher.

    An unexpected error is a traceback in the launch log, which the launcher's line names:
    it may be no more than an effect of another rank's death.
    """
    try:
        introduce_worker()
        prepare_streams()
        work(sys.argv[1:])
        sys.stdout.flush()
    except (DragomanError, OSError) as error:
        text, exit_code = explain(error)
        if text:
            report_failure(WorkerError(text, exit_code, type(error).__name__))
            say_error(text)
        return exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dragoman.run.worker")
    parser.add_argument("job", choices=["train", "evaluate"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--target", default="")
    parser.add_argument("--languages", default="")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    return parser


@contextmanager
def _events(
    run: RunDirectory, world: World, sinks: SinksConfig, listeners: Sequence[EventListener]
) -> Iterator[Recorder]:
    """Events of this rank: rank 0 writes those of all into the run's log, and passes them on to
    listeners, to TensorBoard and to sinks."""
    if not world.is_main:
        yield Outbox(rank=world.rank)
        return
    with EventWriter(run.events) as events:
        for listener in listeners:
            events.subscribe(listener)
        events.subscribe(TensorBoardSink(run.tensorboard))
        subscribe_sinks(events, sinks, directory=run.path)
        yield events


@dataclass(frozen=True, slots=True)
class _RankTraining:
    """One rank of a training: the values that its parts share, and their assembly."""

    run: RunDirectory
    recipe: Recipe
    prepared: Path
    manifest: Manifest
    world: World
    events: Recorder
    precision: Precision

    def train(self, budget: Budget | None) -> tuple[str, int]:
        """Train; returns why it ended, and after which step."""
        recipe, world, events = self.recipe, self.world, self.events
        torch.manual_seed(recipe.train.seed)
        # A checkpoint says which vocabularies its shards were made with.
        source, target = (read_vocabulary(self.prepared / name) for name in VOCABULARIES)
        mean_tokens = self.manifest.train.mean_target_tokens
        layout = layout_to_write(recipe, mean_tokens, (source, target))
        store = CheckpointStore(self.run.checkpoints, recipe.checkpoint, layout)
        model = self.model(store)
        if StoreAddress.of_this_process() is not None:
            share_newest(store, world, self.warn)
        checkpoint = agreed_checkpoint(store, world, self.warn)
        on_gpu = world.device.type == "cuda"
        device = torch.cuda.get_device_name(world.device) if on_gpu else world.device.type
        hosts = self.name_hosts()
        machines = tuple(world.gather_json(f"{events.host}, {device}"))
        sum_prices(world)
        has_moved = checkpoint is not None and _are_others(checkpoint.state, machines)
        chosen = self.strategy(model, checkpoint, has_moved=has_moved)
        with gradient_sync(chosen.config, model, world) as sync:
            step = TrainStep(
                model,
                sync=sync,
                train=recipe.train,
                precision=self.precision,
                optimizer=recipe.optimizer,
                world=world,
            )
            state = (
                self.first_state(chosen) if checkpoint is None else resume(checkpoint, store, step)
            )
            if world.is_main:
                self.record_start(model, state, hosts)
            if not state.step or has_moved:
                self.record_device(step=state.step)
            link_bytes_per_s = state.link_bytes_per_s or chosen.link_bytes_per_s
            if link_bytes_per_s is None or has_moved:
                link_bytes_per_s = self.record_link(step=state.step)
            state = state.model_copy(
                update={
                    "planned_step_s": chosen.planned_step_s,
                    "link_bytes_per_s": link_bytes_per_s,
                    "machines": machines,
                }
            )
            with (
                batches(recipe, self.prepared, state.step, world) as updates,
                self.sampling(updates),
            ):
                if world.is_main:
                    self.record_text(updates, step=state.step)
                result = fit(
                    step,
                    updates,
                    state=state,
                    config=recipe.train,
                    learning_rate=recipe.learning_rate,
                    untrained_loss=math.log(self.manifest.target_vocab_size),
                    validate=self.validation(model),
                    store=store,
                    events=events,
                    budget=budget,
                    stage_starts=recipe.stage_starts(),
                )
        return result.reason, result.state.step

    def model(self, store: CheckpointStore) -> Transformer:
        """The model: untrained, or with the weights of the model that the run starts from."""
        model = new_model(self.recipe, self.manifest)
        first = store.intact(0)
        if first is not None:
            load_weights(first.path, model, store.layout)
        model = model.to(self.world.device)
        freeze(model, self.recipe.train.freeze)
        if self.recipe.train.compile:
            compile_stacks(model, self.precision)
        return model

    def warn(self, error: CheckpointError) -> None:
        """Report that a checkpoint is damaged."""
        alert = Alert(severity="warning", cause=str(error), remedy="the one before is used")
        self.events.write(alert)

    def strategy(
        self, model: Transformer, checkpoint: Checkpoint | None, *, has_moved: bool
    ) -> ChosenStrategy:
        """The recipe's strategy; if that is "auto", the one chosen at the start, or now."""
        recipe = self.recipe
        if recipe.distributed.strategy != "auto":
            return ChosenStrategy(recipe.distributed, None)
        if checkpoint is not None:
            # On other machines the choice stays, but the planned time does not hold.
            planned_step_s = None if has_moved else checkpoint.state.planned_step_s
            return ChosenStrategy(checkpoint.state.sync, planned_step_s)
        with batches(recipe, self.prepared, 0, self.world) as updates:
            return choose_strategy(
                recipe,
                model,
                updates,
                precision=self.precision,
                world=self.world,
                events=self.events,
            )

    def first_state(self, chosen: ChosenStrategy) -> TrainState:
        """The state before the first step."""
        return TrainState(
            seed=self.recipe.train.seed,
            world_size=self.world.world_size,
            recipe_digest=digest(self.recipe),
            corpus_digest=self.manifest.digest,
            sync=chosen.config,
        )

    def validation(self, model: Transformer) -> Callable[[int], Validation]:
        """The function that measures the model on the dev set."""
        recipe = self.recipe
        data = ValidationData.open(
            self.prepared,
            max_source_pieces=recipe.corpus.max_pieces,
            trained=recipe.corpus.train_directions,
            drawn=recipe.drawn_directions(),
            train_slice_pairs=recipe.scoring.train_slice_pairs,
            train_share=recipe.data.share,
        )
        return lambda _step: validate(
            model, data, config=recipe.scoring, search=recipe.search, world=self.world
        )

    def sampling(self, updates: BatchStream) -> AbstractContextManager[object]:
        """The sampler of this host, which the first of its ranks runs."""
        world = self.world
        pids = world.gather_json(os.getpid())
        if world.local_rank:
            return nullcontext()
        # The ranks of a host are neighbours in the order of all.
        pids = pids[world.rank : world.rank + int(os.environ.get("LOCAL_WORLD_SIZE", 1))]
        return host_sampler(
            self.events,
            disk=self.run.path,
            queued=updates.queued,
            interface=collective_interface() if world.world_size > 1 else None,
            num_gpus=len(pids) if world.device.type == "cuda" else 0,
            pids=pids,
        )

    def name_hosts(self) -> tuple[str, ...]:
        """The name of the machine of each rank, and how far its clock is ahead of rank 0's.

        Another machine of the same name gets a number: it was started at another time.
        """
        self.world.barrier()  # so that all look at their clocks at once
        own = {"host": socket.gethostname(), "boot": boot_id(), "time": time.time()}
        ranks = self.world.gather_json(own)
        ahead_s = [one["time"] - ranks[0]["time"] for one in ranks]
        ahead_s = [by_s if abs(by_s) > _CLOCKS_AGREE_S else 0.0 for by_s in ahead_s]
        names = machine_names([(one["host"], one["boot"]) for one in ranks])
        self.events.host = names[self.world.rank]
        if isinstance(self.events, EventWriter):
            self.events.clock_ahead_s = ahead_s
            for text in _wrong_clocks(names, ahead_s):
                remedy = "times in the record are by the clock of rank 0"
                self.events.write(Alert(severity="info", cause=text, remedy=remedy))
        return names

    def record_start(self, model: Transformer, state: TrainState, hosts: tuple[str, ...]) -> None:
        """Record the start of the training and its environment, on rank 0."""
        self.events.write(read_environment())
        price = hourly_price()
        started = RunStarted(
            run_name=self.run.path.name,
            hosts=hosts,
            recipe_digest=state.recipe_digest,
            world_size=self.world.world_size,
            device=str(self.world.device),
            precision=self.precision,
            num_parameters=sum(weight.numel() for weight in model.parameters()),
            max_steps=self.recipe.train.max_steps,
            train_pairs=_training_text(self.recipe, self.prepared).num_pairs,
            resumed_from_step=state.step or None,
            best_dev_loss=state.best_dev_loss,
            best_dev_loss_step=state.best_dev_loss_step,
            best_bleu=state.best_bleu,
            best_bleu_step=state.best_bleu_step,
            price_per_hour=price.amount if price else None,
            currency=price.currency if price else None,
        )
        self.events.write(started, step=state.step)

    def record_device(self, *, step: int) -> None:
        """Record the speed of the device; all ranks measure at once, as some may share it."""
        measured = measure_device(self.world.device, self.precision)
        self.events.write(measured, step=step)
        slow = slow_precision(measured, self.precision)
        if slow and self.world.is_main:
            self.events.write(slow, step=step)

    def record_link(self, *, step: int) -> float | None:
        """Measure for a second or two the rates of the links between hosts, and record them: for
        the report, and to notice later that the links carry less."""
        if self.world.world_size == 1:
            return None
        with closing(find_topology(self.world)) as topology:
            if topology.num_hosts == 1:
                return None
            rate = measure_link(self.world, topology)
        if topology.leads:
            link = LinkMeasured(
                interface=collective_interface() or "",
                peer="the other hosts",
                bytes_per_s=rate.bytes_per_s,
                latency_s=rate.latency_s,
                method="all-reduces of zeros like those of training, each way at once",
            )
            self.events.write(link, step=step)
        return rate.bytes_per_s

    def record_text(self, updates: BatchStream, *, step: int) -> None:
        """Record before the first step how much each stage draws from each entry of text, if that
        is not simply all of it; and warn of pairs that are too long."""
        corpus, data = self.recipe.corpus, self.recipe.data
        several = len(corpus.train_directions) > 1
        stages = (
            _stages(self.recipe, _training_text(self.recipe, self.prepared)) if not step else ()
        )
        mixtures = [stage.mixture for stage in stages if stage.mixture is not None]
        for stage in stages if mixtures else ():
            if stage.mixture is None:  # all pairs once, after or before a stage of other shares
                parts = [(pairs, len(pairs)) for pairs, _ in mixtures[0].parts()]
                weights: Sequence[float] = [1.0] * len(parts)
            else:
                parts, weights = stage.mixture.parts(), stage.mixture.weights
            total = sum(draws for _, draws in parts)
            for entry, weight, (pairs, draws) in zip(corpus.train, weights, parts, strict=True):
                direction = f", {listed([corpus.direction_of(entry)])}" if several else ""
                planned = MixturePlanned(
                    first_step=stage.first_update + 1,
                    entry=f"{entry.title}{direction}",
                    pairs=len(pairs),
                    share=draws / total,
                    draws_per_pair=draws / max(1, len(pairs)),
                )
                self.events.write(planned, step=0)
                if weight and not len(pairs):
                    alert = Alert(
                        severity="warning",
                        cause=f"no pair of {planned.entry} is left, so its weight has no effect",
                        remedy="look at what dragoman prepare dropped; of a pair that two entries "
                        "hold, the first keeps it: put the one with the higher weight first",
                    )
                    self.events.write(alert, step=0)
        if oversized := max(sampler.num_oversized for sampler in updates.samplers):
            alert = Alert(
                severity="warning",
                cause=f"{oversized} pairs are longer than data.batch_tokens; each is a batch of "
                "its own",
                remedy="raise data.batch_tokens or lower corpus.max_pieces",
            )
            self.events.write(alert, step=step)
        groups = min(sampler.groups_per_batch for sampler in updates.samplers)
        if not step and data.bucket and groups < data.length_groups and not oversized:
            if data.batch_tokens is not None:
                reason = f"the longest pair takes more than 1/{groups + 1} of data.batch_tokens"
                remedy = "raise data.batch_tokens or lower corpus.max_pieces"
            else:
                reason = f"data.batch_sentences is not a multiple of {data.length_groups}"
                remedy = "change data.batch_sentences"
            alert = Alert(
                severity="warning",
                cause=f"batches have only {groups} of {data.length_groups} data.length_groups: "
                f"{reason}",
                remedy=f"{remedy}, or set data.length_groups={groups}",
            )
            self.events.write(alert, step=step)


def machine_names(machines: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A name for each machine, given its own name and the id of its start: those of the same name
    get a number."""
    starts: dict[str, list[str]] = {}
    names = []
    for name, start in machines:
        known = starts.setdefault(name, [])
        if start not in known:
            known.append(start)
        number = known.index(start) + 1
        names.append(name if number == 1 else f"{name} ({number})")
    return tuple(names)


def sum_prices(world: World) -> None:
    """Let each rank of several hosts know the price of all of them; of none if one is unknown."""
    if StoreAddress.of_this_process() is None:
        return
    own = None if world.local_rank else os.environ.get(PRICE_VARIABLE, "")
    texts = [text for text in world.gather_json(own) if text is not None]
    prices = [HourlyPrice.parse(text, place=PRICE_VARIABLE) for text in texts if text]
    known = len(prices) == len(texts)
    total = sum(price.amount for price in prices)
    os.environ[PRICE_VARIABLE] = f"{total} {prices[0].currency}" if known else ""


def _wrong_clocks(names: Sequence[str], ahead_s: Sequence[float]) -> Iterator[str]:
    """Each machine whose clock differs much from that of the first one, in words."""
    for name, by_s in dict(zip(names, ahead_s, strict=True)).items():
        if abs(by_s) > _CLOCKS_DIFFER_S:
            by = f"{units.DURATION.text(abs(by_s))} {'ahead of' if by_s > 0 else 'behind'}"
            yield f"the clock of {name} is {by} that of {names[0]}"


def _are_others(state: TrainState, machines: tuple[str, ...]) -> bool:
    """Whether training goes on on other machines, so that earlier measurements do not count."""
    return state.world_size != len(machines) or state.machines not in ((), machines)


def batches(recipe: Recipe, prepared: Path, start: int, world: World) -> BatchStream:
    """The updates of a run of this recipe from number `start` on, without end."""
    shards = _training_text(recipe, prepared)
    sampling = None
    if recipe.data.subword_sampling:
        source, target = (load_vocabulary(prepared / name) for name in VOCABULARIES)
        sampling = SubwordSampling.of(
            (source, target),
            (shards.source_lengths, shards.target_lengths),
            share=recipe.data.subword_sampling,
            seed=recipe.train.seed,
        )
    return BatchStream(
        shards,
        recipe.data,
        stages=_stages(recipe, shards),
        sampling=sampling,
        seed=recipe.train.seed,
        rank=world.rank,
        world_size=world.world_size,
        start_update=start,
        device=world.device,
    )


def _training_text(recipe: Recipe, prepared: Path) -> TokenShards:
    return TokenShards(prepared / "train", share=recipe.data.share)


def _stages(recipe: Recipe, shards: TokenShards) -> list[Stage]:
    """The stages with their text: one with the weights of its predecessor goes on in its order."""
    usual = _tempered_weights(recipe, shards)
    weights = [usual if own is None else own for own in recipe.weights()]
    by_weights = itertools.groupby(
        zip(recipe.stage_starts(), weights, strict=True), key=lambda stage: stage[1]
    )
    return [
        Stage(next(same)[0], None if weights is None else Mixture(shards.entries(), weights))
        for weights, same in by_weights
    ]


def _tempered_weights(recipe: Recipe, shards: TokenShards) -> tuple[float, ...] | None:
    """The weight of every entry by the temperature of its direction; None without a temperature."""
    corpus = recipe.corpus
    if corpus.temperature is None:
        return None
    sizes = np.bincount(shards.entries(), minlength=len(corpus.train)).tolist()
    directions = [corpus.direction_of(entry) for entry in corpus.train]
    totals = Counter[Direction]()
    for direction, size in zip(directions, sizes, strict=True):
        totals[direction] += size
    shares = dict(zip(totals, tempered([*totals.values()], corpus.temperature), strict=True))
    return tuple(
        shares[direction] * size / max(1, totals[direction])
        for direction, size in zip(directions, sizes, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
