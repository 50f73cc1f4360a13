"""`dragoman serve`: from its options to a server that listens, until a signal ends it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.base.memory import give_back
from dragoman.formats.bundle import Bundle, default_name, is_bundle
from dragoman.formats.card import relabelled
from dragoman.inference.translator import TextTranslator, open_translator
from dragoman.recipe.run_directory import RunDirectory
from dragoman.serve.limits import TOKEN_VARIABLE, Limits

_ALLOCATIONS = 50_000
"""Allocations between two collections of young garbage; a few requests make Python's default."""


def serve(
    models: Sequence[Path],
    limits: Limits,
    *,
    host: str,
    port: int,
    languages: str,
    threads: int | None,
    batch_cells: int | None,
) -> int:
    """Answer requests until a signal comes, then finish those under way.

    `api.translation.serve` describes the parameters. No two models may translate the same pair of
    languages. Raises ConfigError if the address is not loopback and there is no token or if the
    models do not go together, CheckpointError if a path is no model, MachineError if a package is
    missing or the server cannot listen.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "gets no signal in this thread, so nothing would end it",
            place="serve",
            remedy="call it in the main thread, or in a process of its own",
        )
    try:
        from dragoman.serve.app import create_app
        from dragoman.serve.guard import is_loopback
        from dragoman.serve.listening import EndingServer, bind
        from dragoman.serve.models import ServedModel
    except ImportError as error:
        raise MachineError(
            f"{error.name} is not installed", remedy="install it: pip install 'dragoman[serve]'"
        ) from error
    if not is_loopback(host) and limits.token is None:
        raise ConfigError(
            "would be open to everybody who reaches it",
            place=f"host {host}",
            remedy=f"name a file that holds a token as the token file, or set {TOKEN_VARIABLE}",
        )
    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))  # models may take minutes
        served = [
            model
            for path, pair in zip(models, _pairs(languages, len(models)), strict=True)
            for model in ServedModel.of(
                *_open(stack, path, pair, threads=threads, batch_cells=batch_cells), limits
            )
        ]
        server = EndingServer(partial(create_app, served, limits), limits)
        collect_rarely()
        server.answer(listener)
        if any(model.batcher.is_searching for model in served):
            # Nobody waits for it any more, but Python would, and a stranger's model may never end.
            sys.stdout.flush()
            os._exit(0)
    return 0


def _pairs(languages: str, num_models: int) -> list[str]:
    pairs = languages.split(",") if languages else [""] * num_models
    if len(pairs) != num_models:
        raise ConfigError(
            f"names the languages of {len(pairs)} of {num_models} models",
            place=f"languages {languages}",
            remedy="name a pair for each model with commas between them; one left empty is as the "
            "recipe says",
        )
    return pairs


def _open(
    stack: ExitStack, path: Path, languages: str, *, threads: int | None, batch_cells: int | None
) -> tuple[Bundle, TextTranslator]:
    if not is_bundle(path):
        if not RunDirectory(path).recipe_file.is_file():
            raise CheckpointError(
                "is neither a run nor an export",
                place=path,
                remedy="give a run, or its export to ctranslate2",
            )
        path = _export_of(RunDirectory.open(path))
        print(f"serving the export {path}", file=sys.stderr, flush=True)
    bundle = Bundle.open(path)
    if warning := bundle.info.verified.warning:
        print(f"{path}: {warning}", file=sys.stderr, flush=True)
    opened = stack.enter_context(
        open_translator(
            path,
            engine="ctranslate2",
            threads=threads,
            batch_cells=batch_cells,
            target=bundle.info.target_language,  # each direction gets its own token
        )
    )
    return relabelled(bundle, languages), opened.translator


def _export_of(run: RunDirectory) -> Path:
    """The export of a run's best checkpoint for CTranslate2, with the fewest bits if there are
    several; one is written if none is there."""
    # With torch, which a server of exports does without.
    from dragoman.distributed.world import join_world
    from dragoman.formats.export import export
    from dragoman.formats.export_job import Request
    from dragoman.formats.trained_model import checkpoint_path

    recipe = run.recipe()
    checkpoint = checkpoint_path(run, "best", recipe)
    for quantization in ("int8", "float16", "float32"):
        place = run.path / "export" / default_name("ctranslate2", quantization)
        if is_bundle(place):
            earlier = Bundle.open(place)
            same_weights = earlier.info.checkpoint == checkpoint.name
            if same_weights and earlier.recipe.search == recipe.search:
                return place
    print(f"exporting {checkpoint.name} once, to {place}", file=sys.stderr, flush=True)
    with join_world() as world:
        request = Request(to="ctranslate2", checkpoint=str(checkpoint), quantization="float32")
        return export(run, request, world).path


def collect_rarely() -> None:
    """Set Python's garbage collector for a process that answers many small requests.

    Objects that live as long as the process are excluded, and the rest is examined less often:
    libraries and models are tens of thousands of objects, and examining them again and again took a
    quarter of the event loop's time. Only cycles wait; all other objects are freed at once.
    """
    gc.collect()
    give_back()  # the tables of names of languages took several hundred megabytes
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
