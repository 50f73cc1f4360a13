"""`dragoman import`: a model of another tool as a bundle."""

from pathlib import Path

from dragoman.cli.options import LICENCE, Command, Option, Options, keywords


@Command(
    "import",
    "a MarianMT, M2M100 or NLLB model in Hugging Face form -> a bundle",
    "Write a MarianMT (OPUS-MT), M2M100 or NLLB model in Hugging Face form as a bundle. A part "
    "without a counterpart is refused, and named.",
    Option(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="a folder with config.json and model.safetensors",
    ),
    Option("--to", type=Path, required=True, dest="output", metavar="BUNDLE", help="a new folder"),
    Option(
        "--source-language",
        default="",
        metavar="CODE",
        help="the source language, if the folder does not say it",
    ),
    Option(
        "--target-language",
        default="",
        metavar="CODE",
        help="the target language, if the folder does not say it; if the model has several, the "
        "one to translate into",
    ),
    LICENCE,
)
def run(options: Options) -> None:
    """Write the model of a folder as a bundle, for translate, serve, export and train."""
    from dragoman.api.translation import import_model
    from dragoman.base import units

    imported = import_model(**keywords(options))
    info = imported.info
    print(
        f"{info.source_language} to {info.target_language}, {info.num_parameters:,} parameters: "
        "translate with it, or continue its training with dragoman train RECIPE --from"
    )
    print(f"{imported.path}: {units.SIZE.text(imported.size_bytes)}")
