"""Does a budget on two hosts with a slow link between them end in time, and with what strategy?

    benchmarks/budget_hosts.py --scratch DIR --multi30k DIR [--budget 5min] [--rate 20mbit]

Two lab hosts of one rank and one core each (network namespaces with their own sshd; it needs root)
train on Multi30k with what `auto` and the budget choose. Prints the columns of budget.py and the
reason for the strategy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests"))

from budget import COLUMNS, MULTI30K, finished, row  # noqa: E402  # beside the path of the lab
from dragoman.recipe.budget import parse_budget  # noqa: E402  # as above
from dragoman.telemetry.events import read_events  # noqa: E402  # as above
from lab.controller import nothing_left, set_up_controller  # noqa: E402  # not installed
from lab.laboratory import open_lab  # noqa: E402  # not installed
from start_on_hosts import pin  # noqa: E402  # needs the path of the lab


def main() -> None:
    """Run the budget once, and print its row."""
    options = _options()
    name = f"multi30k-{options.rate}"
    kept = options.scratch / f"hosts-{options.budget}-{options.rate}"
    if finished(kept) is None:
        with (
            tempfile.TemporaryDirectory(prefix="lab-") as folder,
            open_lab(Path(folder), ["alpha", "beta"], rate=options.rate) as lab,
        ):
            controller = set_up_controller(lab, slots=(1, 1))
            for host, core in zip(lab.hosts, sorted(os.sched_getaffinity(0)), strict=False):
                pin(host, core)
            text = MULTI30K.format(folder=options.multi30k.resolve(), language="de")
            (controller.folder / f"{name}.toml").write_text(text, encoding="utf-8")
            program = controller.command()
            # The exit code of doctor says that the link is slow, which is what is wanted.
            doctor = [*program, "doctor", "--hosts", "hosts.toml"]
            lab.controller.run(doctor, check=False, timeout_s=400)
            words = [*program, "run", f"{name}.toml", "--budget", options.budget]
            done = lab.controller.run(
                [*words, "--hosts", "hosts.toml"],
                check=False,
                timeout_s=600 + 2 * parse_budget(options.budget),
            )
            nothing_left(controller)
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            (kept / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
            shutil.copytree(controller.folder / "runs", kept / "runs")
        if done.returncode:
            raise SystemExit(f"the run failed; see {kept / 'log'}")
    print(COLUMNS, "|---|---|---|---:|---|---:|---:|---:|---|", sep="\n")
    print(row(kept, name, options.budget, "two hosts"))
    found = finished(kept)
    assert found is not None
    for event in read_events(found[0] / "events" / "log.jsonl"):
        if event.kind == "strategy_chosen":
            print(event.payload["why"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--budget", default="5min", help="such as 15min")
    parser.add_argument("--rate", default="20mbit", help="of each host's port, in tc's words")
    return parser.parse_args()


if __name__ == "__main__":
    main()
