"""`dragoman report`: the report of a run or of a log of OpenSeq2Seq, or a comparison of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.options import JSON, PRICE, Command, Option, Options

if TYPE_CHECKING:
    from dragoman.telemetry.host import HourlyPrice

    _Report = tuple[Callable[[Path], list[Path]], Path, str]
    """A function that writes the report to a directory, the default directory, and the JSON."""


@Command(
    "report",
    "answer twelve questions about a run",
    "Answer twelve questions about a run from its measurements, as a page. Several runs are set "
    "beside each other by samples, tokens, time and money, never by steps.",
    Option(
        "runs", nargs="*", type=Path, metavar="RUN", help="a run directory; several are compared"
    ),
    Option("--openseq2seq", type=Path, metavar="LOG", help="a log of OpenSeq2Seq"),
    Option("--output", type=Path, help="where to write it (default: RUN/report, or ./comparison)"),
    PRICE.but(
        action="append",
        default=[],
        help='the price of one machine for an hour, such as "3 USD"; once for all runs, or once '
        "for each",
    ),
    JSON.but(help="print JSON; files are written only if --output is given as well"),
)
def run(options: Options) -> None:
    """Answer the twelve questions about a run or a log of OpenSeq2Seq, or compare runs."""
    from dragoman.base.errors import ConfigError
    from dragoman.base.printable import printable

    runs: list[Path] = options.runs
    if bool(runs) == bool(options.openseq2seq):
        raise ConfigError(
            "needs a run" if not runs else "cannot compare runs with a log of OpenSeq2Seq",
            place="report",
            remedy="give one run, several to compare them, or --openseq2seq",
        )
    prices = _prices(options.price, count=max(len(runs), 1))
    compared = len(runs) > 1
    write, place, as_json = _compare(runs, prices) if compared else _answer(prices[0], options)
    written = []
    if options.output or not options.json:
        written = write(options.output or place)
    if options.json:
        print(printable(as_json), end="")
    else:
        print(*(printable(str(path)) for path in written), sep="\n")


def _answer(price: HourlyPrice | None, options: Options) -> _Report:
    import tempfile

    from dragoman.reporting.openseq2seq import import_log
    from dragoman.reporting.reading import read_facts
    from dragoman.reporting.render import Report, as_json

    with tempfile.TemporaryDirectory() as scratch:
        log = options.openseq2seq
        run = import_log(log, Path(scratch) / "run") if log else options.runs[0]
        answers = Report.of(read_facts(run, price=price))
    place = Path("report") if log else run / "report"
    return answers.write, place, as_json(answers)


def _compare(runs: Sequence[Path], prices: Sequence[HourlyPrice | None]) -> _Report:
    from dragoman.base.errors import ConfigError
    from dragoman.reporting.comparison import NAMES, compare
    from dragoman.reporting.comparison_page import as_json, write_comparison
    from dragoman.reporting.reading import read_facts

    if len(runs) > len(NAMES):
        raise ConfigError(
            f"cannot compare {len(runs)} runs",
            place="report",
            remedy=f"name at most {len(NAMES)} runs",
        )
    facts = [read_facts(run, price=price) for run, price in zip(runs, prices, strict=True)]
    found = compare(facts)
    return partial(write_comparison, found), Path("comparison"), as_json(found)


def _prices(texts: Sequence[str], *, count: int) -> list[HourlyPrice | None]:
    from dragoman.base.errors import ConfigError
    from dragoman.telemetry.host import HourlyPrice

    if len(texts) not in (0, 1, count):
        raise ConfigError(
            f"{len(texts)} prices for {count} runs",
            place="--price",
            remedy="give one price for all runs, or one for each run, in the same order",
        )
    prices: list[HourlyPrice | None] = [HourlyPrice.parse(text) for text in texts]
    return prices if len(prices) == count else (prices or [None]) * count
