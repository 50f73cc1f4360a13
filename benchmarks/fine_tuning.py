"""The gain of fine-tuning: a general model, the same on 5,000 further pairs, these pairs alone.

    benchmarks/fine_tuning.py --data shared/data --scratch DIR [--general-minutes 60]
        [--minutes 10] [--pairs 5000] [--general RUN]

Three trainings, English to German. The general model learns the shared mix (mostly texts of
software) for some minutes; `--general` takes one that is there already. It is trained on with 5,000
pairs of Multi30k, with its vocabulary. A model of its own for captions, with the settings of
benchmarks/back_translation.py, learns the same 5,000 pairs in as many minutes. Minutes of training
count, without validations. Each model is scored on Multi30k test2016 and on 1,000 pairs of the mix
that no training has seen. If it is interrupted, the same command resumes it.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path

import dragoman

TEXT = """
name = "{name}"
[corpus]
train = [{{source = "{train[0]}", target = "{train[1]}"}}]
valid = [{{source = "{valid}.en", target = "{valid}.de"}}]
[corpus.subword]
vocab_size = {vocabulary}
[data]
batch_tokens = 2048
[model]
d_model = {width}
num_heads = 4
d_ffn = {inner}
encoder_layers = {layers}
decoder_layers = {layers}
norm = "pre"
dropout = {dropout}
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = {rate}
warmup_steps = {warmup}
[optimizer]
beta2 = 0.98
[train]
max_steps = 100_000
log_every_steps = 10
validate_every_steps = {every}
validate_at_start = false
[checkpoint]
every_steps = {every}
[evaluate]
bleu_pairs = 300
[search]
beam_size = 5
"""
GENERAL = {"vocabulary": 8000, "width": 128, "inner": 512, "layers": 3}
OWN = {"vocabulary": 4000, "width": 128, "inner": 256, "layers": 4}


class _OverError(Exception):
    """The minutes of a training are over."""


def main() -> None:
    """Train the three models and print a table."""
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    mixed = [options.data / f"ende-mixed/train.{side}.xz" for side in ("en", "de")]
    captions = {"train": ["pairs.en", "pairs.de"], "valid": "valid", "dropout": 0.3, "every": 40}
    _write_text(options.data, options.scratch, options.pairs)
    general = options.general or _train(
        options,
        "general",
        options.general_minutes,
        {**GENERAL, "train": mixed, "valid": "general-valid", "dropout": 0.1, "every": 200}
        | {"rate": 2e-3, "warmup": 300},
    )
    tuned = _train(
        options,
        "tuned",
        options.minutes,
        {**GENERAL, **captions, "rate": 1e-3, "warmup": 50},
        origin=general,
    )
    alone = _train(
        options, "alone", options.minutes, {**OWN, **captions, "rate": 2e-3, "warmup": 100}
    )
    print("| model | minutes | steps | BLEU, captions | BLEU, general text |")
    print("|---|---:|---:|---:|---:|")
    for name, run in (("general", general), ("fine-tuned", tuned), ("captions alone", alone)):
        scores = [
            dragoman.evaluate(
                run,
                source=options.scratch / f"{test}.en",
                reference=options.scratch / f"{test}.de",
            ).scores["bleu"]
            for test in ("test", "general-test")
        ]
        shown = [f"{one.value:.1f} ({one.low:.1f} to {one.high:.1f})" for one in scores]
        made = max(event["step"] for event in _intervals(run))
        print(f"| {name} | {_training_s(run) / 60:.1f} | {made:,} | {' | '.join(shown)} |")


def _write_text(data: Path, scratch: Path, pairs: int) -> None:
    for side in ("en", "de"):
        captions = data / "multi30k"
        lines = (data / f"ende-mixed/valid.{side}").read_text("utf-8").splitlines()
        parts = {
            "pairs": (captions / f"train.{side}").read_text("utf-8").splitlines()[:pairs],
            "valid": (captions / f"valid.{side}").read_text("utf-8").splitlines(),
            "test": (captions / f"test2016.{side}").read_text("utf-8").splitlines(),
            "general-valid": lines[::3],
            "general-test": lines[1::3],
        }
        for name, part in parts.items():
            path, text = scratch / f"{name}.{side}", "".join(f"{line}\n" for line in part)
            if not path.exists() or path.read_text("utf-8") != text:
                path.write_text(text, "utf-8")


def _train(
    options: argparse.Namespace,
    name: str,
    minutes: float,
    values: dict[str, object],
    *,
    origin: Path | None = None,
) -> Path:
    """The run of a recipe after so many minutes of training."""
    recipe = options.scratch / f"{name}.toml"
    recipe.write_text(TEXT.format(name=name, **values), encoding="utf-8")

    def newest() -> Path | None:
        return max((options.scratch / "runs").glob(f"{name}-*"), default=None)

    def stop_in_time(event: dragoman.Event) -> None:
        if event.kind == "checkpoint_written" and _training_s(newest()) >= 60 * minutes:
            raise _OverError

    if _training_s(newest()) < 60 * minutes:
        with suppress(_OverError):
            dragoman.train(
                recipe,
                origin=origin,
                prepared=options.scratch / "prepared" / name,
                runs=options.scratch / "runs",
                ranks=options.ranks,
                progress=True,
                on_event=stop_in_time,
            )
    run = newest()
    assert run is not None
    return run


def _training_s(run: Path | None) -> float:
    """Seconds of all steps; validations and saves do not count."""
    return 0.0 if run is None else float(sum(event["interval_s"] for event in _intervals(run)))


def _intervals(run: Path) -> list[dict[str, float]]:
    """The intervals of training in the record of rank 0; those of a repeated step count once."""
    record = (run / "events/rank-0000.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in record.splitlines()]
    return [*{e["step"]: e for e in events if e["kind"] == "train_interval"}.values()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="holds ende-mixed, multi30k")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--general", type=Path, metavar="RUN", help="a general model's run")
    parser.add_argument("--general-minutes", type=float, default=60)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    options.data = options.data.resolve()
    return options


if __name__ == "__main__":
    main()
