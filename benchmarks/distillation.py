"""The cost and the gain of distillation: teacher, student, the student without a teacher.

    benchmarks/distillation.py --multi30k DIR --scratch DIR [--teacher-steps 8000]
        [--teacher RUN] [--checkpoint best] [--steps 14000] [--n-best 5] [--precision bf16]

The teacher is the shipped recipe `multi30k-tiny`, trained here (hours) and averaged over its last
ten checkpoints, or a checkpoint of --teacher, a run on Multi30k English to German. The student has
one decoder layer and 2,500 pieces: a quarter of the decoder of `multi30k-tiny`. Its encoder is
deeper, because an encoder costs little time: it works on all words at once. It learns from the
teacher's translations of the training text and from the text itself; another of the same recipe and
as many steps learns from the text alone. All are exported in int8 and translate test2016 in turns.
If it is interrupted, the same command resumes it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import dragoman
from dragoman.corpus.manifest import Manifest

STUDENT = [
    *("model.d_model=128", "model.num_heads=4", "model.d_ffn=256", "model.dropout=0.1"),
    *("model.encoder_layers=6", "model.decoder_layers=1", "corpus.subword.vocab_size=2500"),
    *("model.norm=post", "data.batch_tokens=8192"),
    *("optimizer.beta2=0.98", "optimizer.clip_norm=1.0", "train.ema_decay=0.999"),
    *("schedule.kind=linear", "schedule.peak_learning_rate=3e-3", "schedule.warmup_steps=2000"),
    *("search.beam_size=3", "search.length_penalty=power", "search.length_penalty_alpha=1.0"),
]
ROUNDS = 5


def main() -> None:
    """Train what is not trained yet, and print the table."""
    options = _options()
    teacher, checkpoint = options.teacher, options.checkpoint
    if teacher is None:
        teacher, checkpoint = _trained_teacher(options)
    steps = [
        f"train.max_steps={options.steps}",
        f"train.validate_every_steps={options.steps // 10}",
    ]
    precision = f"train.precision={options.precision}"
    student = dragoman.load_recipe("student-tiny", [*STUDENT, *steps, precision])
    made = dragoman.distill(
        teacher,
        student,
        checkpoint=checkpoint,
        n_best=options.n_best,
        folder=options.scratch / "distilled",
        runs=options.scratch / "runs",
        threads=options.threads,
        progress=True,
    )
    alone = dragoman.train(
        _without_teacher(student, made.run.recipe(), options.multi30k),
        runs=options.scratch / "runs",
        progress=True,
    )
    export = dragoman.export(
        alone, to="ctranslate2", output=options.scratch / "alone-int8", quantization="int8"
    ).path
    sides = {"teacher": made.teacher.path, "student": made.student.path, "no teacher": export}
    test = [options.multi30k / f"test2016.{side}" for side in ("en", "de")]
    _print_table(sides, [Path(teacher), made.run.path, alone.path], tuple(test), options.threads)


def _trained_teacher(options: argparse.Namespace) -> tuple[Path, str]:
    """The run of `multi30k-tiny`, and its last ten checkpoints' average."""
    settings = [f"corpus.folder={options.multi30k}", f"train.precision={options.precision}"]
    settings.append(f"train.max_steps={options.teacher_steps}")
    recipe = dragoman.load_recipe("multi30k-tiny", settings)
    run = dragoman.train(recipe, runs=options.scratch / "runs", progress=True).path
    average = run / "checkpoints" / "average"
    if not average.exists():
        words = ["export", str(run), "--average", "10"]
        subprocess.run([sys.executable, "-m", "dragoman", *words], check=True)
    return run, str(average)


def _without_teacher(
    student: dragoman.Recipe, distilled: dragoman.Recipe, multi30k: Path
) -> dragoman.Recipe:
    """The student's recipe on the training text itself, with the same dev and test set."""
    text = type(distilled.corpus.train[0])(
        source=str(multi30k / "train.en"), target=str(multi30k / "train.de")
    )
    corpus = distilled.corpus.model_copy(update={"train": (text,)})
    return student.model_copy(update={"name": "no-teacher", "corpus": corpus})


def _print_table(
    exports: dict[str, Path], runs: list[Path], test: tuple[Path, ...], threads: int | None
) -> None:
    """A line a model: its decoder's cost, its scores against the teacher's, its speed."""
    source, reference = test
    rates = _rates(list(exports.values()), source.read_text("utf-8").splitlines(), threads)
    costs = [_decoder_cost(run) for run in runs]
    print(f"\ntest2016, int8, threads: {threads or 'all'}, {ROUNDS} rounds in turns")
    print("| model | decoder, products a piece | beam | BLEU | chrF | sentences/s |")
    print("|---|---:|---:|---:|---:|---:|")
    for (name, export), run, cost, rate in zip(exports.items(), runs, costs, rates, strict=True):
        (found,) = dragoman.compare(
            exports["teacher"], export, tests=[(source, reference)], threads=threads
        )
        columns = [name, f"{cost:,} ({cost / costs[0]:.2f} x)"]
        columns += [str(dragoman.RunDirectory.open(run).recipe().search.beam_size)]
        for score in found.result.scores.values():
            p = max(score.p_bootstrap, score.p_randomisation)
            columns.append(f"{score.second:.2f} ({score.difference:+.2f}, p {p:.4f})")
        print(f"| {' | '.join(columns)} | {rate:.0f} ({rate / rates[0]:.2f} x) |")
    (found,) = dragoman.compare(
        exports["no teacher"], exports["student"], tests=[(source, reference)], threads=threads
    )
    print(found)


def _decoder_cost(run: Path) -> int:
    """Multiplications by weights for one piece of one hypothesis.

    Keys and values of the source are made once for a sentence, and are not counted.
    """
    model = dragoman.RunDirectory.open(run).recipe().model
    pieces = Manifest.load(run).target_vocab_size
    layer = 6 * model.d_model**2 + 2 * model.d_model * model.d_ffn
    return int(model.decoder_layers * layer + pieces * model.d_model)


def _rates(exports: list[Path], lines: list[str], threads: int | None) -> list[float]:
    """Sentences a second of each, the median of rounds in which they take turns."""
    found: list[list[float]] = [[] for _ in exports]
    for _ in range(ROUNDS):
        for path, rates in zip(exports, found, strict=True):
            with dragoman.Translator(path, threads=threads) as translator:
                translator.translate(lines[:16])  # the first call makes buffers
                began = time.perf_counter()
                translator.translate(lines)
                rates.append(len(lines) / (time.perf_counter() - began))
    return [statistics.median(rates) for rates in found]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, metavar="RUN", help="train no teacher, take this")
    parser.add_argument("--checkpoint", default="best", help="of --teacher")
    parser.add_argument("--teacher-steps", type=int, default=8000, help="8,000 in the paper")
    parser.add_argument("--steps", type=int, default=14_000, help="of each student")
    parser.add_argument("--n-best", type=int, default=5, help="translations of a sentence")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of training")
    parser.add_argument("--threads", type=int, help="that translate (default: all)")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    options.scratch, options.multi30k = options.scratch.resolve(), options.multi30k.resolve()
    return options


if __name__ == "__main__":
    main()
