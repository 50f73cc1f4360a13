"""A folder of static files, exported from the small run, and a server that has only such."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from dragoman.base.errors import MachineError
from dragoman.distributed.world import join_world
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.int8_onnx import rounded
from dragoman.formats.onnxruntime_web import runtime_files
from dragoman.formats.trained_model import TranslationModel
from dragoman.recipe.run_directory import RunDirectory
from kept import kept
from own_folder import own_folder
from small_run import small_run


@cache
def onnxruntime_web() -> Path:
    """The package's files in a folder as npm makes it; the test is skipped if npm cannot."""
    try:
        with kept("onnxruntime-web", _fetch, Path(__file__)) as folder:
            return folder
    except MachineError as error:
        pytest.skip(f"no onnxruntime-web here: {error.problem}")


def _fetch(folder: Path) -> None:
    files = runtime_files(None)
    (folder / "dist").mkdir()
    for name, inside in (
        ("onnxruntime-web.js", "ort.wasm.bundle.min.mjs"),
        ("onnxruntime-web.wasm", "ort-wasm-simd-threaded.wasm"),
    ):
        (folder / "dist" / inside).write_bytes(files[name])


def run_with(sections: dict[str, dict[str, Any]]) -> RunDirectory:
    """A copy of the small run whose recipe says otherwise in some sections."""
    folder = own_folder("web-run") / small_run().path.name
    shutil.copytree(small_run().path, folder)
    recipe = small_run().recipe().model_dump(mode="json", exclude_none=True)
    for section, values in sections.items():
        recipe[section] |= values
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))
    return RunDirectory.open(folder)


def web_export(run: RunDirectory, output: Path, licence: str = "CC0") -> Path:
    """The run as a folder for browsers."""
    request = Request(
        to="web", output=output, licence=licence, onnxruntime_web=onnxruntime_web()
    )  # fmt: skip
    with join_world() as world:
        return export(run, request, world).path


@cache
def small_web_export() -> Path:
    """The export of the small run, made once, in a folder that a server may have as its root."""
    return web_export(small_run(), own_folder("web") / "in" / "a folder")


def greedy(run: RunDirectory, lines: list[str]) -> list[str]:
    """Translations by our own greedy search with the weights of the export."""
    with join_world() as world:
        model = TranslationModel.load(run, ["best"], world)
        same = replace(model, models=(rounded(model.models[0]),))
        return same.translate(lines, run.recipe().search.model_copy(update={"beam_size": 1}))


@dataclass
class StaticServer:
    """Serves a folder on loopback until it is stopped; asked: the paths of all requests."""

    url: str
    server: ThreadingHTTPServer
    asked: list[str] = field(default_factory=list)

    def stop(self) -> None:
        """Close the port."""
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def static_server(root: Path) -> Iterator[StaticServer]:
    """Meanwhile `python -m http.server` in this process."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = StaticServer(f"http://127.0.0.1:{server.server_address[1]}", server, asked)
    try:
        yield made
    finally:
        made.stop()
        thread.join()


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings that an export has for its page."""
    settings: dict[str, Any] = json.loads((folder / "web.json").read_bytes())
    return settings
