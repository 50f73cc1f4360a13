"""`dragoman import`: a model of others as a bundle."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman import`."""
    parser = commands.add_parser(
        "import",
        help="a MarianMT, M2M100 or NLLB model in Hugging Face form -> a bundle",
        description="Write a MarianMT (OPUS-MT), M2M100 or NLLB model in Hugging Face form as a "
        "bundle. What has no counterpart is refused by name.",
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="with config.json and model.safetensors"
    )
    parser.add_argument(
        "--to", type=Path, required=True, dest="output", metavar="BUNDLE", help="a new folder"
    )
    parser.add_argument(
        "--source-language", default="", metavar="CODE", help="if the folder does not say it"
    )
    parser.add_argument(
        "--target-language", default="", metavar="CODE",
        help="the same; of a model of several target languages the one to translate into",
    )  # fmt: skip
    parser.add_argument("--licence", default="Not stated.", help="of the model, for its card")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Write the model of a folder as a bundle, which translate, serve, export and train take."""
    from dragoman.api.translation import import_model
    from dragoman.base import units

    imported = import_model(
        options.folder,
        options.output,
        source_language=options.source_language,
        target_language=options.target_language,
        licence=options.licence,
    )
    info = imported.info
    print(
        f"{info.source_language} to {info.target_language}, {info.num_parameters:,} parameters: "
        "translate with it, or train on with dragoman train RECIPE --from"
    )
    print(f"{imported.path}: {units.SIZE.text(imported.size_bytes)}")
    return 0
