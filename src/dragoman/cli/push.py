"""`dragoman push`: a model to the Hugging Face Hub."""

from dragoman.cli.options import (
    CHECKPOINT,
    LICENCE,
    RUN,
    SENTENCES,
    Command,
    Option,
    Options,
    keywords,
)


@Command(
    "push",
    "a model to the Hugging Face Hub, with its card",
    "Export a model in Hugging Face form and send it to the Hugging Face Hub with its card, in one "
    "commit.",
    RUN,
    Option(
        "--to",
        required=True,
        dest="hub_id",
        metavar="OWNER/NAME",
        help="the name of the model on the Hub",
    ),
    CHECKPOINT.but(help="as for translate"),
    LICENCE.but(help="the licence of the model, for its card, such as CC-BY-4.0"),
    SENTENCES,
    Option("--private", action="store_true", help="make a new repository private"),
)
def run(options: Options) -> None:
    """Export a checkpoint in Hugging Face form, checked, and send it to the Hub."""
    from dragoman.api.translation import push

    pushed = push(**keywords(options))
    print(f"{pushed.url}\n{pushed.commit}")
