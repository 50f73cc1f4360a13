"""Does a run with a budget end in time, and does its forecast hold the end?

    benchmarks/budget.py --scratch DIR [--multi30k DIR] [--languages de fr cs]
        [--budgets 5min 15min] [--conditions alone neighbour kill]

Each budget is spent on the text of the demo and on Multi30k, alone; with a neighbour that takes a
core from the middle on; and with a kill -9 in the middle, after which the same command goes on.
Prints what was used of the budget, the validations, the first forecast of the dev loss at the end
(after a third of the time) and what it became. Runs that are done are read again, not run again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from dragoman.recipe.budget import parse_budget
from dragoman.recipe.recipe import SHIPPED_RECIPES
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import EndForecast, event_file, read_events
from dragoman.training.clock import Budget, read_budget

DEMO = f"""
[corpus]
source_language = "en"
target_language = "de"
folder = "{SHIPPED_RECIPES}"
train = [{{tsv = "demo/train.tsv.xz"}}]
valid = [{{tsv = "demo/valid.tsv"}}]
test = [{{tsv = "demo/test.tsv"}}]
"""
MULTI30K = """
[corpus]
folder = "{folder}"
source_language = "en"
target_language = "{language}"
train = [{{source = "train.en", target = "train.{language}"}}]
valid = [{{source = "valid.en", target = "valid.{language}"}}]
test = [{{source = "test2016.en", target = "test2016.{language}"}}]
"""
BUSY = "while True: pass"
COLUMNS = (
    "| text | budget | condition | used | model | steps | validations | dev BLEU "
    "| forecast of the dev loss | found | inside |"
)


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    texts = texts_of(options)
    print(COLUMNS, f"|{'---|' * 11}", sep="\n", flush=True)
    for name, text in texts.items():
        for budget in options.budgets:
            for condition in options.conditions:
                folder = options.scratch / f"{name}-{budget}-{condition}"
                if finished(folder) is None:
                    run(folder, name, text, budget, condition, ranks=options.ranks)
                print(row(folder, name, budget, condition), flush=True)


def texts_of(options: argparse.Namespace) -> dict[str, str]:
    """Recipes that name a text alone, by their names."""
    texts = {} if options.no_demo else {"demo": DEMO}
    if options.multi30k is not None:
        for language in options.languages:
            texts[f"multi30k-{language}"] = MULTI30K.format(
                folder=options.multi30k.resolve(), language=language
            )
    return texts


def run(folder: Path, name: str, text: str, budget: str, condition: str, *, ranks: int) -> None:
    """Run the budget to its end, with what the condition asks for in the middle of it; a run that
    was begun goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    middle_s = parse_budget(budget) / 2
    process = start(folder, name, budget, ranks)
    neighbour = None
    try:
        process.wait(middle_s)
    except subprocess.TimeoutExpired:
        if condition == "neighbour":
            neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
        elif condition == "kill":
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process = start(folder, name, budget, ranks)
    try:
        if process.wait():
            raise SystemExit(f"{folder}: the run failed; see {folder / 'log'}")
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


def start(folder: Path, name: str, budget: str, ranks: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dragoman", "run", f"{name}.toml", "--budget", budget]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*command, "--ranks", str(ranks)],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finished(folder: Path) -> tuple[Path, Budget] | None:
    for path in sorted(folder.glob("runs/*/budget.json")):
        budget = read_budget(path.parent)
        if budget is not None and budget.finished is not None:
            return path.parent, budget
    return None


def row(folder: Path, name: str, budget: str, condition: str) -> str:
    found = finished(folder)
    assert found is not None
    path, kept = found
    facts = read_facts(path)
    assert facts.recipe is not None
    assert kept.used_s is not None
    model = facts.recipe.model
    best = max(one.bleu for one in facts.validations if one.bleu is not None)
    events = read_events(event_file(path / "events"))
    first = next((one.payload for one in events if one.kind == EndForecast.kind), None)
    last = facts.validations[-1].dev_loss
    forecast, inside = "", ""
    if first is not None and last is not None:
        forecast = f"{first['expected']:.2f} ({first['low']:.2f} to {first['high']:.2f})"
        inside = "yes" if first["low"] <= last <= first["high"] else "**no**"
    layers = f"{model.encoder_layers}+{model.decoder_layers}"
    return (
        f"| {name} | {budget} | {condition} | {kept.used_s / kept.seconds_s:.1%} "
        f"| {model.d_model}, {layers} | {facts.last_step:,} | {len(facts.validations)} "
        f"| {best:.1f} | {forecast} | {last:.2f} | {inside} |"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--multi30k", type=Path, help="train.en, test2016.de ...")
    parser.add_argument("--languages", nargs="+", default=["de"], choices=["de", "fr", "cs"])
    parser.add_argument("--no-demo", action="store_true", help="Multi30k alone")
    parser.add_argument("--budgets", nargs="+", default=["5min"])
    parser.add_argument(
        "--conditions",
        nargs="+",
        default=["alone", "neighbour", "kill"],
        choices=["alone", "neighbour", "kill"],
    )
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
