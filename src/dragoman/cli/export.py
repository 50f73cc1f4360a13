"""`dragoman export`: a model in a format that others run, checked."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from dragoman.cli import options as shared
from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman export`."""
    parser = commands.add_parser(
        "export",
        help="a model in a format that others run, checked",
        description="Write a model in a format that others run, and check it against our own "
        "search.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--to",
        choices=["bundle", "ctranslate2", "huggingface", "onnx", "argos", "web"],
        required=True,
        help="the format",
    )
    parser.add_argument("--checkpoint", default="best", help="as for translate")
    shared.add_overrides(parser)
    parser.add_argument("--output", type=Path, help="a new folder (default: RUN/export/FORMAT)")
    parser.add_argument(
        "--quantization", choices=["float32", "float16", "int8"],
        help="of the weights, for ctranslate2 (default: float32) and argos (default: int8)",
    )  # fmt: skip
    parser.add_argument("--licence", default="Not stated.", help="of the model, for its card")
    parser.add_argument(
        "--sentences", type=Path, help="source text to check it on (default: the run's dev set)"
    )
    parser.add_argument(
        "--target", default="", metavar="LANGUAGE",
        help="of a package for argos, if the model translates into several",
    )  # fmt: skip
    parser.add_argument(
        "--onnxruntime-web", type=Path, metavar="PATH",
        help="its npm package, an archive or a folder, for web (default: npm fetches it)",
    )  # fmt: skip
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Write a checkpoint's weights in a format that others run, checked."""
    from dragoman.api.translation import export
    from dragoman.base import units
    from dragoman.formats.export import warning_of

    exported = export(
        options.run,
        to=options.to,
        checkpoint=options.checkpoint,
        output=options.output,
        quantization=options.quantization,
        licence=options.licence,
        sentences=options.sentences,
        target_language=options.target,
        overrides=options.overrides,
        onnxruntime_web=options.onnxruntime_web,
    )
    verified = exported.verified
    print(
        f"checked: {verified.identical} of {verified.sentences} translations equal our own, "
        f"chrF between them {verified.chrf:.1f}"
    )
    warning = warning_of(verified, fewer_bits=exported.fewer_bits)
    if warning:
        print(warning, file=sys.stderr)
    print(f"{exported.path}: {units.SIZE.text(exported.size_bytes)}")
    return 0
