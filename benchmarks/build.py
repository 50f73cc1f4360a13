"""Does a build that is killed at random end with a model, and is nothing done twice?

    benchmarks/build.py --scratch DIR [--budget 5min] [--pairs 6000] [--kills 3] [--seed 1]

A server on this machine mirrors an index of mtdata and three corpora, parts of the demo's text as
tsv.gz, zip in Moses form and TMX. `dragoman build` is killed with all of its processes at moments
drawn from the first 80% of the budget; then the same command goes on to the end. Prints these
moments, the time that each stage was planned to take and took, how often each file was asked for
and what was sent of it, how many trainings there are, and a translation by the exported model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from dragoman.base import units
from dragoman.recipe.budget import parse_budget
from dragoman.telemetry.events import read_events
from mirror import CorpusMirror, add_three_corpora, corpus_mirror

_SENTENCE: Final = "Click the button."
_PAUSE_S: Final = 0.02
"""After each 16 kB that the server sends, so that a kill may hit a download."""


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    budget_s = parse_budget(options.budget)
    drawn = random.Random(options.seed)
    moments = sorted(drawn.uniform(0, 0.8 * budget_s) for _ in range(options.kills))
    with corpus_mirror(pause_s=_PAUSE_S) as mirror:
        add_three_corpora(mirror, options.pairs)
        command = ["build", "en-de", "--budget", options.budget, "--index", mirror.index_url]
        command += ["--ranks", str(options.ranks)]
        for override in options.overrides:
            command += ["--set", override]
        began = time.time()
        for moment in moments:
            process = _start(options.scratch, command)
            time.sleep(max(0.0, began + moment - time.time()))
            if process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"killed {time.time() - began:.1f} s after the first command", flush=True)
        if _start(options.scratch, command).wait():
            raise SystemExit(f"the build failed: see {options.scratch / 'log'}")
        used_s = time.time() - began
        print(f"used {units.DURATION.text(used_s)} of {options.budget} ({used_s / budget_s:.1%})")
        _print_fetched(mirror)
    place = options.scratch / "builds" / "en-de"
    record = json.loads((place / "build.json").read_text(encoding="utf-8"))
    for name, stage in record["stages"].items():
        spent_s = stage["ended"] - stage["started"]
        print(f"{name}: planned {stage['seconds_s']:.0f} s, took {spent_s:.0f} s")
    for run in sorted((place / "runs").iterdir()):
        if (run / "recipe.toml").is_file():
            kinds = [event.kind for event in read_events(run / "events" / "log.jsonl")]
            starts, ends = kinds.count("run_started"), kinds.count("run_finished")
            print(f"{run.name}: began or went on {starts} times, ended {ends} times")
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "translate", str(place / "model")],
        input=f"{_SENTENCE}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    print(json.dumps({_SENTENCE: done.stdout.strip()}, ensure_ascii=False))


def _print_fetched(mirror: CorpusMirror) -> None:
    for path, content in mirror.files.items():
        sent = mirror.sent[path] / len(content)
        print(f"{path}: asked for {mirror.gets[path]} times, sent {sent:.2f} times")


def _start(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dragoman", *command],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--budget", default="5min")
    parser.add_argument("--pairs", type=int, default=6000, help="of each corpus")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    return parser.parse_args()


if __name__ == "__main__":
    main()
