"""`dragoman score`: how well models predict the translations in a file of pairs."""

from pathlib import Path

from dragoman.cli.options import CHECKPOINT, RAY, TARGET, Command, Option, Options, keywords, models


@Command(
    "score",
    "add cross-entropies to pairs of sentences",
    "Add the model's cross-entropy to each pair of sentences, in one or both directions.",
    Option(
        "models",
        type=models,
        metavar="MODEL[,REVERSE]",
        help="a run or a bundle; a second one of the opposite direction adds the dual conditional "
        "cross-entropy",
    ),
    Option("pairs", type=Path, metavar="PAIRS", help="lines of source TAB target"),
    Option(
        "--output",
        type=Path,
        required=True,
        help="a new file: the lines of PAIRS with columns of scores; the same command "
        "resumes after an interruption",
    ),
    TARGET,
    CHECKPOINT.but(help="best, last, a step or a directory"),
    RAY,
)
def run(options: Options) -> None:
    """Score the pairs; print how many there are, and how many have no score."""
    from dragoman.api.synthetic import score
    from dragoman.base import units
    from dragoman.base.errors import ConfigError
    from dragoman.base.printable import printable_line

    model, *reverse = options.models
    if len(reverse) > 1:
        raise ConfigError(
            "takes at most two models",
            place=f"score {','.join(options.models)}",
            remedy="give MODEL or MODEL,REVERSE",
        )
    done = score(
        model,
        reverse=reverse[0] if reverse else None,
        **keywords(options, "models"),
        progress=True,
    )
    went_on = f", went on after line {done.resumed_after}" if done.resumed_after else ""
    print(f"{printable_line(str(done.output))}: pairs {units.COUNT.text(done.pairs)}{went_on}")
    if done.unscored:
        print(f"without a score, one side empty or too long: {units.COUNT.text(done.unscored)}")
