"""Translation quality by the published recipe: multi30k-tiny, test2016 en-de.

    benchmarks/quality.py --multi30k DIR [--ranks 2] [--runs DIR] [--set train.max_steps=...]

Trains with `dragoman run`, averages the last ten checkpoints and decodes test2016 with beam 5.
Prints two scores of the same translations:
  - lower-cased BLEU of Moses-tokenised text, what arXiv 2105.14462 prints (Transformer-Tiny 41.02);
  - sacreBLEU with its signature. The recipe lower-cases; a cased score needs
    `--set corpus.lowercase=false --set evaluate.lowercase=false`, a model of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacremoses import MosesTokenizer

PUBLISHED_BLEU = 41.02


def main() -> None:
    options = _options()
    overrides = [f"corpus.folder={options.multi30k.resolve()}", *options.overrides]
    flags = [flag for override in overrides for flag in ("--set", override)]
    places = ["--runs", str(options.runs)]
    if not options.run:
        _dragoman("run", "multi30k-tiny", "--ranks", str(options.ranks), *places, *flags)
    run = options.run or max(options.runs.glob("multi30k-tiny-*"), key=lambda p: p.stat().st_mtime)
    _dragoman("export", str(run), "--average", str(options.average))
    (run / "samples").mkdir(exist_ok=True)
    hypotheses = run / "samples" / "test2016.average.de"
    _dragoman(
        *("translate", str(run), "--checkpoint", str(run / "checkpoints" / "average")),
        *("--input", str(options.multi30k / "test2016.en"), "--output", str(hypotheses)),
        *("--set", "search.beam_size=5"),
    )
    references = options.multi30k / "test2016.de"
    _print_scores(_lines(hypotheses), _lines(references))


def _print_scores(hypotheses: list[str], references: list[str]) -> None:
    tokenizer = MosesTokenizer(lang="de")

    def tokenised(lines: list[str]) -> list[str]:
        return [tokenizer.tokenize(line.lower(), escape=False, return_str=True) for line in lines]

    plain = BLEU(tokenize="none", force=True)
    moses = plain.corpus_score(tokenised(hypotheses), [tokenised(references)])
    print(f"lower-cased, Moses tokens: {moses.score:.2f}  (published: {PUBLISHED_BLEU})")
    for lowercase in (True, False):
        metric = BLEU(lowercase=lowercase)
        score = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
        print(f"sacreBLEU: {score}  {metric.get_signature()}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--run", type=Path, help="score this run and train nothing")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--average", type=int, default=10, help="checkpoints (default: 10)")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    return parser.parse_args()


def _dragoman(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dragoman", *arguments], check=True)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


if __name__ == "__main__":
    main()
