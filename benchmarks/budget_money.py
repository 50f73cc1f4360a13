"""Is the money that a budget tells hosts x price x wall clock, and was it forecast?

    benchmarks/budget_money.py --scratch DIR [--money "3 USD"] [--price 36]
        [--hosts hosts.toml --recipe my.toml]

Spends the money on the text of the demo on this machine, at a price that is made up; or on the
hosts of a file, on a recipe of one's own. The wall clock is that of this program, from the start of
the command to its end. Prints the forecast of the first lines, the cost that the last line tells,
and hosts x price x wall clock, with the bars: 1% between the last two, 10% to the forecast.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from budget import DEMO
from dragoman.cluster.hosts import load_hosts

ONE: Final = '[[host]]\naddress = "localhost"\nslots = {slots}\nprice_per_hour = {price}\n'
FORECAST: Final = re.compile(r"^in [^(]* \(([\d.,e+-]+) [A-Z]{3}\), of which", re.MULTILINE)
SPENT: Final = re.compile(r"^used .*?, ([\d.,e+-]+) [A-Z]{3} of ", re.MULTILINE)


def main() -> None:
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    hosts = options.hosts
    if hosts is None:
        hosts = options.scratch / "one.toml"
        hosts.write_text(ONE.format(slots=options.ranks, price=options.price), encoding="utf-8")
    recipe = options.recipe
    if recipe is None:
        recipe = options.scratch / "demo.toml"
        recipe.write_text(DEMO, encoding="utf-8")
    price = load_hosts(str(hosts)).price_per_hour
    if price is None:
        raise SystemExit(f"{hosts}: the price of a host is missing")
    command = [sys.executable, "-m", "dragoman", "run", str(recipe.resolve()), "--fresh"]
    command += ["--budget", options.money, "--hosts", str(hosts.resolve())]
    began = time.time()
    done = subprocess.run(
        command,
        cwd=options.scratch,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    paid = price * (time.time() - began) / 3600
    forecast, spent = _amount(FORECAST, done.stdout), _amount(SPENT, done.stdout)
    print("| forecast | spent | hosts x price x wall clock | spent / that | that / forecast |")
    print("|---:|---:|---:|---:|---:|")
    print(
        f"| {forecast:.4g} | {spent:.4g} | {paid:.4g} "
        f"| {spent / paid:.1%} | {paid / forecast:.1%} |"
    )


def _amount(pattern: re.Pattern[str], said: str) -> float:
    found = pattern.search(said)
    if found is None:
        raise SystemExit(f"no line of the output has this money: {pattern.pattern}")
    return float(found[1].replace(",", ""))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--money", default="3 USD")
    parser.add_argument("--price", type=float, default=36.0, help="of this machine for an hour")
    parser.add_argument("--ranks", type=int, default=1, help="on this machine")
    parser.add_argument("--hosts", type=Path, help="other machines, with their prices")
    parser.add_argument("--recipe", type=Path, help="in place of one that names the demo's text")
    return parser.parse_args()


if __name__ == "__main__":
    main()
