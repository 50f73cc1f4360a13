"""`dragoman synthesize`: pairs to train on, from monolingual text."""

import argparse
import contextlib
from pathlib import Path

from dragoman.cli.options import (
    ANY_LANGUAGE,
    CHECKPOINT,
    QUANTIZATION,
    RAY,
    SET,
    TARGET,
    THREADS,
    Command,
    Option,
    Options,
    keywords,
    models,
    positive,
)


def _top_k(text: str) -> int:
    return 0 if text == "all" else positive(text)


def _temperature(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) <= 100:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, up to 100")


@Command(
    "synthesize",
    "make sentence pairs from monolingual text",
    "Translate monolingual text into pairs to train on, for back-translation or distillation.",
    Option(
        "models",
        type=models,
        metavar="MODEL[,MODEL...]",
        help="a run or an export; more runs, of the same vocabulary and shape, make an ensemble",
    ),
    *(CHECKPOINT, SET, TARGET),
    Option("--input", type=Path, required=True, help="text, one sentence per line"),
    Option(
        "--output",
        type=Path,
        required=True,
        help="a new file of pairs, source TAB target; the same command resumes after an "
        "interruption",
    ),
    Option(
        "--direction",
        choices=["back", "forward"],
        default="back",
        help="back: the translation is the source (back-translation). forward: it is the target "
        "(distillation)",
    ),
    Option("--n-best", type=positive, default=1, metavar="N", help="make N pairs from each line"),
    Option(
        "--sample",
        type=_top_k,
        metavar="K|all",
        help="draw each piece from the K likeliest, or from all, instead of searching",
    ),
    Option(
        "--temperature",
        type=_temperature,
        metavar="T",
        help="the temperature of --sample (default: 1)",
    ),
    ANY_LANGUAGE,
    QUANTIZATION,
    THREADS.but(help="cores; with --ray, cores for each unit of work (default: all; with --ray 1)"),
    RAY,
)
def run(options: Options) -> None:
    """Translate the text; print the numbers of lines, pairs and dropped translations."""
    from dragoman.api.synthetic import synthesize
    from dragoman.base import units
    from dragoman.base.errors import ConfigError
    from dragoman.base.printable import printable_line
    from dragoman.formats.ctranslate2_engine import Sampling

    sampling = None
    if options.sample is not None:
        sampling = Sampling(options.sample, options.temperature or 1.0)
    elif options.temperature is not None:
        raise ConfigError(
            "has no effect on a search", place="--temperature", remedy="add --sample all"
        )
    model, *others = options.models
    made = synthesize(
        model,
        options.input,
        # A run may have the name of a choice, such as "best".
        checkpoint=[*options.checkpoint.split(","), *(str(Path(one).absolute()) for one in others)],
        sampling=sampling,
        **keywords(options, "models", "input", "checkpoint", "sample", "temperature"),
        progress=True,
    )
    went_on = f", went on after line {made.resumed_after}" if made.resumed_after else ""
    lines, pairs = units.COUNT.text(made.lines), units.COUNT.text(made.pairs)
    print(f"{printable_line(str(made.output))}: lines {lines}, pairs {pairs}{went_on}")
    for reason, count in made.dropped.items():
        print(f"dropped, {reason}: {units.COUNT.text(count)}")
