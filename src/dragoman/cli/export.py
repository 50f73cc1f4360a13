"""`dragoman export`: a model in a format that others run, checked."""

import sys
from pathlib import Path

from dragoman.cli.options import (
    CHECKPOINT,
    LICENCE,
    RUN,
    SENTENCES,
    SET,
    TARGET,
    Command,
    Option,
    Options,
    keywords,
)
from dragoman.formats.kinds import FORMATS


@Command(
    "export",
    "a model in a format that others run, checked",
    "Write a model in a format that others run, and check it against our own search.",
    RUN.but(metavar="RUN|BUNDLE", help="a run directory, or an imported model"),
    Option(
        "--to",
        choices=[*FORMATS],
        required=True,
        help="the format",
    ),
    CHECKPOINT.but(help="as for translate"),
    SET,
    Option("--output", type=Path, help="a new folder (default: RUN/export/FORMAT)"),
    Option(
        "--quantization",
        choices=["float32", "float16", "int8"],
        help="the type of the weights, for ctranslate2 and argos (default: float32; for argos "
        "int8)",
    ),
    *(LICENCE, SENTENCES),
    TARGET.but(help="the target language of a package for argos, if the model has several"),
    Option(
        "--onnxruntime-web",
        type=Path,
        metavar="PATH",
        help="for --to web: the npm package of ONNX Runtime Web, as an archive or a folder "
        "(default: npm fetches it)",
    ),
)
def run(options: Options) -> None:
    """Write a checkpoint in a format that others run, and print the result of the check."""
    from dragoman.api.translation import export
    from dragoman.base import units
    from dragoman.formats.check import warning_of

    exported = export(**keywords(options))
    verified = exported.verified
    print(
        f"checked: {verified.identical} of {verified.sentences} translations equal our own, "
        f"chrF between them {verified.chrf:.1f}"
    )
    warning = warning_of(verified, fewer_bits=exported.fewer_bits)
    if warning:
        print(warning, file=sys.stderr)
    print(f"{exported.path}: {units.SIZE.text(exported.size_bytes)}")
