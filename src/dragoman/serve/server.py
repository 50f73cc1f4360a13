"""`dragoman serve`: from its options to a server that listens, until a signal ends it."""

from __future__ import annotations

import gc
import ipaddress
import math
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dragoman.base.errors import CheckpointError, ConfigError, MachineError
from dragoman.formats.bundle import Bundle, default_name, is_bundle
from dragoman.recipe.run_directory import RunDirectory
from dragoman.serve.translator import TextTranslator, open_translator

_TOKEN_VARIABLE = "DRAGOMAN_TOKEN"  # noqa: S105
_SHORTEST_TOKEN = 16
_ALLOCATIONS = 50_000
"""Allocations between two collections of young garbage; a few requests make Python's default."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command.

    bundles: exports; no two may translate the same pair of languages.
    token_file: holds the token that clients send; None: the environment may hold it.
    threads, batch_cells: as for `open_translator`.
    timeout: seconds that a request may take.
    queue: subword pieces that may wait.
    requests_per_client: how many requests a client may have open at a time.
    """

    bundles: Sequence[Path]
    host: str
    port: int
    token_file: Path | None
    threads: int | None
    batch_cells: int | None
    timeout: int
    queue: int
    requests_per_client: int


def serve(options: ServeOptions) -> int:
    """Answer requests until a signal comes, then finish those under way.

    Raises ConfigError if the address is not loopback and there is no token or if the models do not
    go together, CheckpointError if a path is no export, MachineError if a package is missing or the
    server cannot listen.
    """
    token = _token(options.token_file)
    if not _is_loopback(options.host) and token is None:
        raise ConfigError(
            "would be open to everybody who reaches it",
            place=f"--host {options.host}",
            remedy=f"name a file that holds a token with --token-file, or set {_TOKEN_VARIABLE}",
        )
    try:
        import uvicorn

        from dragoman.serve.app import create_app
        from dragoman.serve.limits import Limits
        from dragoman.serve.models import ServedModel
        from dragoman.serve.protocol import (
            GRACE_S,
            SOCKET_BYTES,
            BoundedProtocol,
            Ending,
            EndingServer,
            allow_connections,
        )
    except ImportError as error:
        raise MachineError(
            f"{error.name} is not installed", remedy="install it: pip install 'dragoman[serve]'"
        ) from error
    limits = Limits(
        token=token,
        request_s=options.timeout,
        max_waiting_pieces=options.queue,
        max_requests_per_client=options.requests_per_client,
    )
    ending = Ending(options.timeout)
    with ExitStack() as stack:
        served = [
            model
            for path in options.bundles
            for model in ServedModel.of(*_open(stack, path, options), limits)
        ]
        config = uvicorn.Config(
            create_app(served, limits, ending),
            http=BoundedProtocol,
            ws="none",
            log_level="error",  # no line for each request that is not HTTP, which anyone can send
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(options.timeout) + GRACE_S,
        )
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        address = (options.host, options.port)
        try:
            listener = socket.create_server(address, family=family, backlog=1024)
        except (OSError, OverflowError) as error:
            raise MachineError(
                f"cannot listen: {error}",
                place=f"{options.host}:{options.port}",
                remedy="choose another --port, or end the program that listens there",
            ) from error
        for size in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # connections inherit them
            listener.setsockopt(socket.SOL_SOCKET, size, SOCKET_BYTES)
        allow_connections()
        collect_rarely()
        name = f"[{options.host}]" if ":" in options.host else options.host
        server = EndingServer(config, ending)
        # As uvicorn does later, which also repeats them when it has drained.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        print(f"serving on http://{name}:{listener.getsockname()[1]}", flush=True)
        server.run(sockets=[listener])
        if any(model.batcher.is_searching for model in served):
            # Nobody waits for it any more, but Python would, and a stranger's model may never end.
            sys.stdout.flush()
            os._exit(0)
    return 0


def _open(stack: ExitStack, path: Path, options: ServeOptions) -> tuple[Bundle, TextTranslator]:
    if not is_bundle(path):
        if not RunDirectory(path).recipe_file.is_file():
            raise CheckpointError(
                "is neither an export nor a run",
                place=path,
                remedy="give a directory that dragoman export --to ctranslate2 has written",
            )
        export = path / "export" / default_name("ctranslate2", "float32")
        raise CheckpointError(
            "is a run and not an export",
            place=path,
            remedy=f"export it with dragoman export {shlex.quote(str(path))} "
            "--to ctranslate2, "
            f"then serve {shlex.quote(str(export))}",
        )
    bundle = Bundle.open(path)
    opened = stack.enter_context(
        open_translator(
            path,
            checkpoints=["best"],
            overrides=[],
            engine="ctranslate2",
            threads=options.threads,
            batch_cells=options.batch_cells,
            target=bundle.info.target_language,  # each direction gets its own token
        )
    )
    return bundle, opened.translator


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def collect_rarely() -> None:
    """Set Python's garbage collector for a process that answers many small requests.

    Objects that live as long as the process are excluded, and the rest is examined less often:
    libraries and models are tens of thousands of objects, and examining them again and again took a
    quarter of the event loop's time. Only cycles wait; all other objects are freed at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)
