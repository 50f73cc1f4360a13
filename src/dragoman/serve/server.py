"""`dragoman serve`: from its options to a server that listens, until a signal ends it."""

from __future__ import annotations

import gc
import ipaddress
import os
import re
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

_TOKEN_VARIABLE = "DRAGOMAN_TOKEN"  # noqa: S105
_SHORTEST_TOKEN = 16
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HIGHEST_PORT = 65_535
_ALLOCATIONS = 50_000
"""Allocations between two collections of young garbage; a few requests make Python's default."""


def serve(
    models: Sequence[Path],
    *,
    host: str,
    port: int,
    token_file: Path | None,
    allowed_origins: Sequence[str],
    trusted_proxies: Sequence[str],
    languages: str,
    threads: int | None,
    batch_cells: int | None,
    request_s: float,
    waiting_pieces: int,
    requests_per_client: int,
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
    token = _token(token_file)
    try:
        from dragoman.serve.app import create_app
        from dragoman.serve.guard import Limits, is_loopback
        from dragoman.serve.listening import EndingServer, bind
        from dragoman.serve.models import ServedModel
    except ImportError as error:
        raise MachineError(
            f"{error.name} is not installed", remedy="install it: pip install 'dragoman[serve]'"
        ) from error
    if not is_loopback(host) and token is None:
        raise ConfigError(
            "would be open to everybody who reaches it",
            place=f"host {host}",
            remedy=f"name a file that holds a token as the token file, or set {_TOKEN_VARIABLE}",
        )
    limits = Limits(
        token=token,
        allowed_origins=tuple(map(origin, allowed_origins)),
        request_s=request_s,
        max_waiting_pieces=waiting_pieces,
        max_requests_per_client=requests_per_client,
    )
    proxies = [*map(_network, trusted_proxies)]
    with ExitStack() as stack:
        listener = stack.enter_context(bind(host, port))  # models may take minutes
        served = [
            model
            for path, pair in zip(models, _pairs(languages, len(models)), strict=True)
            for model in ServedModel.of(
                *_open(stack, path, pair, threads=threads, batch_cells=batch_cells), limits
            )
        ]
        server = EndingServer(
            partial(create_app, served, limits),
            request_s=request_s,
            trusted_proxies=proxies,
        )
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
            f"has {len(pairs)} pairs of languages for {num_models} models",
            place=f"languages {languages}",
            remedy="name a pair for each model, joined by commas",
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
            checkpoints=["best"],
            overrides=[],
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


def _token(file: Path | None) -> str | None:
    """The token, from a file or the environment: every user of a machine can read a command line.

    None if there is none. Raises ConfigError if it cannot be read or is not fit.
    """
    if file is None:
        given = os.fsencode(os.environ.get(_TOKEN_VARIABLE, ""))
    else:
        try:
            given = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", place=file, remedy="check its name"
            ) from error
    place = str(file or _TOKEN_VARIABLE)
    remedy = "make one, for example with: openssl rand -hex 16"
    try:
        token = given.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError("the token is not UTF-8", place=place, remedy=remedy) from error
    if not token and file is None:
        return None
    if not token.isprintable():  # no header can carry it, so no client could send it
        raise ConfigError(
            "the token has a line break or another character that cannot be printed",
            place=place,
            remedy=remedy,
        )
    if len(token) < _SHORTEST_TOKEN:
        raise ConfigError(
            f"the token has fewer than {_SHORTEST_TOKEN} characters", place=place, remedy=remedy
        )
    return token


def origin(text: str) -> str:
    """An origin as browsers write it; raises ConfigError if it is none."""
    if text == "*":
        return text
    if "*" in text:
        raise ConfigError(
            "is a pattern, which matches no site",
            place=f"allowed_origins {text}",
            remedy="name each site, or allow all of them: *",
        )
    found = _ORIGIN.fullmatch(text.lower())
    if found is None or int(found[3] or 0) > _HIGHEST_PORT:
        raise ConfigError(
            "is not the origin of a site",
            place=f"allowed_origins {text}",
            remedy="write it as https://example.org, in ASCII (xn--...), with a port if it has one "
            "and without a path",
        )
    scheme, host, port = found.groups()
    if port is None or int(port) == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{int(port)}"


def _network(text: str) -> str:
    """An address or a network; raises ConfigError if it is none."""
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"is neither an address nor a network: {error}",
            place=f"trusted_proxies {text}",
            remedy="write it as 127.0.0.1 or as 10.0.0.0/8",
        ) from error
    return text


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
