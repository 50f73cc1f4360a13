"""`dragoman translate`: lines of text, files or documents."""

from pathlib import Path

from dragoman.cli.options import (
    BATCH_CELLS,
    CHECKPOINT,
    QUANTIZATION,
    RUN_OR_BUNDLE,
    SET,
    TARGET,
    THREADS,
    Command,
    Option,
    Options,
    keywords,
    positive,
)


@Command(
    "translate",
    "translate lines of text or documents",
    "Translate lines, documents or text with tags. Several checkpoints make an ensemble.",
    *(RUN_OR_BUNDLE, CHECKPOINT, SET, TARGET),
    Option("--input", type=Path, help="text, one sentence per line (default: stdin)"),
    Option(
        "--output",
        type=Path,
        help="where to write it (default: stdout); with --input, the same command resumes after "
        "an interruption",
    ),
    Option(
        "--n-best",
        type=positive,
        default=1,
        metavar="N",
        help="N translations per line, with scores",
    ),
    Option(
        "--scores", action="store_true", help="write the score and a tab before each translation"
    ),
    Option(
        "--format",
        choices=["line", "document", "markup"],
        default="line",
        help="line: one sentence per line. document: lines are split into sentences and put back. "
        "markup: as document, and tags of HTML or XML stay in place",
    ),
    Option(
        "--engine",
        choices=["auto", "ctranslate2", "torch"],
        default="auto",
        help="auto: CTranslate2 for one model on a CPU if it is installed, otherwise PyTorch",
    ),
    *(QUANTIZATION, THREADS),
    BATCH_CELLS.but(
        help="rows x longest source x beam searched together (default: 2048 for Transformer-base, "
        "more for a smaller model; with PyTorch search.batch_tokens); fewer take less memory"
    ),
    Option(
        "-i",
        "--inspect",
        action="store_true",
        help="show the pieces and the attention of each line (at a terminal you can also type ? "
        "after a line)",
    ),
)
def run(options: Options) -> int:
    """Translate lines of text; at a terminal, each line when it is typed."""
    from dragoman.serve.translate import TranslateOptions, translate

    return translate(TranslateOptions(**keywords(options)))
