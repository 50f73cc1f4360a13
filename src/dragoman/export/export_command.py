"""dragoman export."""

from __future__ import annotations

import sys
from argparse import Namespace

from dragoman import units
from dragoman.run_directory import RunDirectory


def export(options: Namespace) -> int:
    """Write a checkpoint's weights in a format that others run, checked."""
    from dragoman.distributed.world import join_world
    from dragoman.export.export import Request, export
    from dragoman.export.verify import warning_of

    request = Request(
        to=options.to,
        checkpoint=options.checkpoint,
        output=options.output,
        quantization=options.quantization,
        licence=options.licence,
        sentences=options.sentences,
    )
    with join_world() as world:
        exported = export(RunDirectory.open(options.run), request, world)
    verified = exported.verified
    print(
        f"checked: {verified.identical} of {verified.sentences} translations equal our own, "
        f"chrF between them {verified.chrf:.1f}"
    )
    warning = warning_of(verified, fewer_bits=options.quantization != "float32")
    if warning:
        print(warning, file=sys.stderr)
    print(f"{exported.path}: {units.SIZE.text(exported.size_bytes)}")
    return 0
