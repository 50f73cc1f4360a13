"""Writes README.md of this folder from claims.toml and results.jsonl.

    benchmarks/page.py           write it
    benchmarks/page.py --check   exit code 1 if the page is not what would be written

Of each case the page has the newest figure of each machine, and the range over machines if there
are several. Older figures stay in results.jsonl, and so do those with `"page": false` and the
claims of `off_page`, unless they miss a target.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterable

from results import HERE, UNITS, UNKNOWN, Result, read

PAGE = HERE / "README.md"
HEAD = "| case | target | figure on each machine | range |\n|---|---|---|---|"


def page() -> str:
    """The whole page."""
    words = tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))
    recorded = read()
    off_page = words["off_page"]
    results = [
        result
        for result in newest(recorded)
        if result.missed or (result.page and result.claim not in off_page)
    ]
    sections = words["section"]
    listed = {name for section in sections for name in section["claims"]}
    if unknown := {result.claim for result in results} - listed:
        raise SystemExit(f"no section of claims.toml lists {', '.join(sorted(unknown))}")
    parts = [words["head"].strip(), f"{machines(results)}\n\n{gaps(recorded)}"]
    for section in sections:
        rows = [row for name in section["claims"] for row in claim_rows(name, results)]
        parts.append(f"## {section['title']}\n\n{section['text'].strip()}")
        parts.append("\n".join([HEAD, *rows]))
    return "\n\n".join(parts) + "\n"


def newest(results: Iterable[Result]) -> list[Result]:
    """The last figure of each case on each machine."""
    return list(
        {(result.claim, result.case, result.machine): result for result in results}.values()
    )


def machines(results: list[Result]) -> str:
    """The short name of each machine with its instruction set."""
    named = {
        result.name: result.instructions.replace(UNKNOWN, "unknown")
        for result in results
        if result.instructions
    }
    listed = "; ".join(f"{name}: {sets}" for name, sets in sorted(named.items()))
    return textwrap.fill(f"Processors and their instruction sets: {listed}.", 110)


def gaps(recorded: list[Result]) -> str:
    """How many figures lack facts that nobody wrote down."""
    commits = sum(result.commit == UNKNOWN for result in recorded)
    instructions = sum(result.instructions == UNKNOWN for result in recorded)
    return (
        f"Of {len(recorded)} recorded figures, {commits} have no commit, and {instructions} no "
        "instruction set."
    )


def claim_rows(claim: str, results: list[Result]) -> list[str]:
    """A row for each case of a claim."""
    cases: dict[str, list[Result]] = {}
    for result in results:
        if result.claim == claim:
            cases.setdefault(result.case, []).append(result)
    return [
        f"| {case} | {target(ours[0])} | {'; '.join(map(figure, ours))} | {spread(ours)} |"
        for case, ours in cases.items()
    ]


def target(result: Result) -> str:
    """The target of a case."""
    ends = [bare(result, end) for end in (result.at_least, result.at_most) if end is not None]
    if len(ends) == 2:
        return f"{ends[0]} to {ends[1]}"
    return "".join(f"{'≥' if result.at_most is None else '≤'} {end}" for end in ends)


def figure(result: Result) -> str:
    """The value on a machine with its range, and whether it misses the target."""
    text = f"{result.name} **{written(result, result.value)}**"
    if result.out_of is not None:
        text += f" of {result.out_of:,}"
    details = []
    if result.low is not None and result.high is not None:
        details.append(f"{bare(result, result.low)} to {bare(result, result.high)}")
    details += [result.note] if result.note else []
    text += f" ({'; '.join(details)})" if details else ""
    return f"{text}, **missed**" if result.missed else text


def spread(results: list[Result]) -> str:
    """The range over machines, if there are several."""
    values = sorted(results, key=lambda result: result.value)
    if len(values) < 2 or values[0].unit == "of":
        return ""
    first, last = (bare(result, result.value) for result in (values[0], values[-1]))
    return first if first == last else f"{first} to {last}"


def written(result: Result, number: float) -> str:
    """A number in the unit of a result."""
    return UNITS[result.unit].format(number)


def bare(result: Result, number: float) -> str:
    """The same without words."""
    return written(result, number).removeprefix("F1 ").split()[0]


def main() -> int:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is stale: run benchmarks/page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
