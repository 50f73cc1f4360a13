"""Whether Argos Translate and LibreTranslate translate with an exported package as we do.

Both come from the package registry, in an environment of their own:

    python -m venv argos
    argos/bin/pip install torch    # a build for processors is enough
    argos/bin/pip install argostranslate libretranslate
    python benchmarks/argos.py --run runs/demo-... --python argos/bin/python

Exit code 1 if their translations differ from those of `translate` with the exported package, which
searches as they do, except for sentences that they split.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman import Translator, export
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import read_lines
from dragoman.recipe.run_directory import RunDirectory

LEAST_EQUAL = 0.97
INSTALL_AND_TRANSLATE = """
import json, shutil, sys
from argostranslate import package, settings, translate
path, source, target, lines = json.load(sys.stdin)
package.install_from_path(path)
# With fewer than two packages LibreTranslate downloads all that there are: a second one for show.
(folder,) = settings.package_data_dir.iterdir()
other = shutil.copytree(folder, folder.with_name("other")) / "metadata.json"
metadata = json.loads(other.read_text())
swapped = dict(zip(("from_code", "to_code"), (metadata["to_code"], metadata["from_code"])))
other.write_text(json.dumps(metadata | swapped))
translation = translate.get_translation_from_codes(source, target)
split = translation.underlying.sentencizer.split_sentences
json.dump([[translation.translate(line), split(line)] for line in lines], sys.stdout)
"""
START_SECONDS = 120


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--python",
        type=lambda name: Path(name).absolute(),
        required=True,
        help="of their environment",
    )
    parser.add_argument("--sentences", type=int, default=100, help="of the run's test set")
    return parser.parse_args()


def main() -> None:
    arguments = _options()
    run = RunDirectory.open(arguments.run)
    corpus = run.recipe().corpus
    pair = (corpus.source_language, corpus.target_language)
    test = run.prepared() / "test"
    lines, references = (
        read_lines(test / name)[: arguments.sentences] for name in ("source.txt", "target.txt")
    )
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        done = export(run, to="argos", output=home / "argos").path
        (package,) = done.glob("*.argosmodel")
        int8 = export(run, to="ctranslate2", quantization="int8", output=home / "int8").path
        environment = _environment(home)
        answer = subprocess.run(
            [arguments.python, "-c", INSTALL_AND_TRANSLATE],
            input=json.dumps([str(package), *pair, lines]),
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found = json.loads(answer.stdout)
        theirs = [translation for translation, _ in found]
        split = {number for number, (_, sentences) in enumerate(found) if len(sentences) > 1}
        with _libretranslate(arguments.python, environment) as url:
            served = [_ask(url, line, pair) for line in lines]
        ours = {
            "translate": _translated(run.path),
            "translate, int8": _translated(int8),
            "translate of the package": _translated(done),
        }
        results = {kind: translator(lines) for kind, translator in ours.items()}
    print(
        f"{run.path.name}: {len(lines)} sentences, {package.name}, {len(split)} split into several"
    )
    for kind, translations in {
        "Argos Translate": theirs,
        "LibreTranslate": served,
        **results,
    }.items():
        print(f"{kind:32} BLEU {bleu(translations, references).value:6.2f}")
    for kind, own in results.items():
        for who, translations in (("Argos Translate", theirs), ("LibreTranslate", served)):
            other = {n for n, (a, b) in enumerate(zip(own, translations, strict=True)) if a != b}
            print(
                f"{who} = {kind}: {len(lines) - len(other)} of {len(lines)}; of the others "
                f"{len(other & split)} were split"
            )
            if kind == "translate of the package":
                for number in sorted(other):
                    print(f"  {lines[number]}\n    {own[number]}\n    {translations[number]}")
                if len(other - split) > (1 - LEAST_EQUAL) * len(lines):
                    sys.exit("they differ more than by how sentences are split")


def _translated(model: Path) -> Any:
    return Translator(model).translate


def _environment(home: Path) -> dict[str, str]:
    """The environment of a user who has no files of theirs yet."""
    places = {"HOME": home, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}
    return os.environ | {name: str(path) for name, path in places.items()} | {"PYTHONPATH": ""}


@contextmanager
def _libretranslate(python: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a server that runs meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(python.with_name("libretranslate")), "--host", "127.0.0.1", "--port", str(port)]
    home = environment["HOME"]
    with subprocess.Popen(
        command, env=environment, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    urllib.request.urlopen(f"{url}/languages")
                    break
                except OSError:
                    if server.poll() is not None or time.monotonic() > deadline:
                        sys.exit("libretranslate did not start")
                    time.sleep(0.5)
            yield url
        finally:
            server.terminate()


def _ask(url: str, text: str, pair: tuple[str, str]) -> str:
    body = json.dumps({"q": text, "source": pair[0], "target": pair[1]}).encode()
    request = urllib.request.Request(f"{url}/translate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        translation: str = json.load(answer)["translatedText"]
    return translation


if __name__ == "__main__":
    main()
