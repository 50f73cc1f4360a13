"""The export of a run `--to web`: how large, how fast in a browser, and how like our search.

    python benchmarks/web.py --run runs/demo-...

Translates the first sentences of the run's test set in headless Chromium, with the network off
after loading, and compares with our own greedy search: with the same int8 weights, and with those
of the checkpoint. The second row is the same model as onnxruntime's own tool quantizes it
(dynamic, per channel): there activations are rounded, too. Some models it makes cannot be loaded.

Exit code 1 if fewer than 95% are equal to our search with the same weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from playwright.sync_api import sync_playwright

from dragoman import export
from dragoman.distributed.world import join_world
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import read_lines
from dragoman.formats.int8_onnx import rounded
from dragoman.formats.trained_model import TranslationModel
from dragoman.formats.web import SETTINGS_FILE
from dragoman.recipe.run_directory import RunDirectory

LEAST_EQUAL = 0.95
GRAPHS = ("encoder.onnx", "decoder.onnx")


@dataclass(frozen=True)
class InBrowser:
    """The texts that a page has shown."""

    translations: list[str]
    ready: str
    time: str


class NotLoadedError(Exception):
    """A page that cannot load its model; the message is the page's own."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=50, help="of the run's test set")
    parser.add_argument(
        "--onnxruntime-web", type=Path, help="its package (default: npm fetches it)"
    )
    return parser.parse_args()


def main() -> None:
    arguments = _options()
    run = RunDirectory.open(arguments.run)
    test = run.prepared() / "test"
    lines, references = (
        read_lines(test / name)[: arguments.sentences] for name in ("source.txt", "target.txt")
    )
    torch.set_num_threads(1)
    with join_world() as world:
        model = TranslationModel.load(run, ["best"], world)
        search = run.recipe().search.model_copy(update={"beam_size": 1})
        full = model.translate(lines, search)
        same = replace(model, models=(rounded(model.models[0]),)).translate(lines, search)
        beam = model.translate(lines, run.recipe().search)
    weights = sum(weight.numel() for weight in model.models[0].parameters())
    print(f"{run.path.name}: {weights:,} weights, {len(lines)} sentences")
    for name, translations in (
        ("our search, the recipe's beam", beam),
        ("our greedy search", full),
        ("our greedy search, int8 weights", same),
    ):
        print(f"{name:34} BLEU {bleu(translations, references).value:6.2f}")
    found: dict[str, InBrowser] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "web"
        package = arguments.onnxruntime_web
        done = export(run, to="web", output=folder, onnxruntime_web=package)
        files = sum((folder / graph).stat().st_size for graph in GRAPHS)
        print(f"folder: {done.size_bytes / 1e6:.1f} MB, of which the graphs {files / 1e6:.1f} MB")
        for name in ("web export", "onnxruntime's tool"):
            if name != "web export":
                _quantize_with_their_tool(run, folder)
                files = sum((folder / graph).stat().st_size for graph in GRAPHS)
                print(f"graphs of onnxruntime's tool: {files / 1e6:.1f} MB")
            try:
                shown = _translated(folder, lines)
            except NotLoadedError as error:
                print(f"{name:20} is not loaded: {error}")
                continue
            print(
                f"{name:20} {shown.ready.split('. ')[0]}\n"
                f"{'':20} {shown.time}, BLEU {bleu(shown.translations, references).value:.2f}, "
                f"equal to greedy with the same weights: {_equal(shown, same)}, "
                f"with the full ones: {_equal(shown, full)}"
            )
            found.setdefault(name, shown)
    if "web export" not in found or _equal(found["web export"], same) < LEAST_EQUAL * len(lines):
        sys.exit("fewer than 95% are equal to our own search")


def _equal(shown: InBrowser, ours: list[str]) -> int:
    return sum(a == b for a, b in zip(shown.translations, ours, strict=True))


def _quantize_with_their_tool(run: RunDirectory, folder: Path) -> None:
    """Put graphs that onnxruntime has quantized in place of ours."""
    wide = folder.with_name("onnx")
    export(run, to="onnx", output=wide)
    settings = json.loads((folder / SETTINGS_FILE).read_bytes())
    for graph in GRAPHS:
        quantize_dynamic(
            wide / graph, folder / graph, per_channel=True, weight_type=QuantType.QInt8
        )
        settings["files"][graph] = (folder / graph).stat().st_size
    (folder / SETTINGS_FILE).write_text(json.dumps(settings))


def _translated(folder: Path, lines: list[str]) -> InBrowser:
    """Each line by the page, after its server has gone."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no Chromium here")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        with _served(folder) as url:
            page.goto(url)
            page.wait_for_selector("#translate:not([disabled]), #error:not([hidden])")
            if page.locator("#error").is_visible():
                raise NotLoadedError(page.inner_text("#error"))
        page.context.set_offline(True)
        page.fill("#source", "\n".join(lines))
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#time:text-matches('a sentence$')", timeout=600_000)
        text: str = page.evaluate("document.getElementById('result').textContent")
        shown = InBrowser(text.split("\n"), page.inner_text("#ready"), page.inner_text("#time"))
        browser.close()
    return shown


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address of a server that runs meanwhile."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


if __name__ == "__main__":
    main()
