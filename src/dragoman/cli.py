"""Thin commands over run.py. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dragoman import __version__
from dragoman.interrupts import interrupts_raise
from dragoman.process import prepare_streams, report
from dragoman.report.command import add_options as add_report_options
from dragoman.watch.command import add_options as add_watch_options

_RECIPE_HELP = "a shipped recipe (see: dragoman recipes), or a TOML file"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, or that of the error's class.

    Whatever goes wrong is one line on standard error.
    """
    prepare_streams()
    try:
        options = _parser().parse_args(arguments)
        module = importlib.import_module(f"dragoman.{options.module}")
        interrupts_raise()
        code: int = getattr(module, options.command.replace("-", "_"))(options)
        sys.stdout.flush()  # when the process ends it would be too late for a word
    except SystemExit:  # from the parser, which has said what there is to say
        try:
            sys.stdout.flush()
        except OSError as error:
            return report(error)
        raise
    except BaseException as error:
        return report(error)
    return code


class _Parser(argparse.ArgumentParser):
    """Its errors are one line, as those of all other parts are."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and end."""
        self.exit(2, f"dragoman: {message}; see: {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dragoman",
        description="Parallel text in, a measured translation model out.",
        epilog="A first try: dragoman run demo --ranks 2",
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    parser.set_defaults(module="commands")
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    _add_making(commands)
    _add_using(commands)
    _add_hosts(commands)
    _add_scheduled(commands)
    return parser


def _add_making(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="prepare, train, score and translate, in one go")
    _recipe(run)
    _places(run)
    _training(run)
    run.add_argument("--dry-run", action="store_true", help="say what it will take, do nothing")

    prepare = commands.add_parser("prepare", help="text files -> token shards")
    _recipe(prepare)
    _places(prepare)

    train = commands.add_parser("train", help="token shards -> checkpoints; resumes by default")
    train.add_argument("recipe", metavar="RECIPE|RUN", help=f"{_RECIPE_HELP}, or a run directory")
    train.add_argument(
        "--from",
        dest="origin",
        type=Path,
        metavar="BUNDLE|RUN",
        help="start from the weights and vocabulary of a bundle, a Hugging Face export or a run",
    )
    _overrides(train)
    _places(train)
    _training(train)
    _hosts(train)
    train.add_argument("--dry-run", action="store_true", help="print every command, run none")
    train.set_defaults(module="training_commands")

    commands.add_parser("recipes", help="list the shipped recipes")
    _add_plan(commands)


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan", help="seconds a step, hours and money for every strategy, before any machine"
    )
    _recipe(plan)
    _hosts(plan)
    plan.add_argument("--ranks", help="in place of hosts: 4, or 2+1 for two hosts")
    plan.add_argument("--link", help="100Mbit, 1Gbit for a port; 12MB/s for a measurement")
    plan.add_argument("--gpu", help="the kind of all ranks, such as v100 or cpu")
    plan.add_argument(
        "--gpu-link",
        help="between GPUs of one host: nvlink1 to nvlink5, pcie3 to pcie5, none, 200GB/s",
    )
    plan.add_argument("--compute", help="in place of --gpu: seconds of a step without network")
    plan.add_argument("--price", help='of one host for an hour, such as "3 USD"')
    plan.add_argument("--json", action="store_true", help="print JSON")


def _add_using(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluate = commands.add_parser("evaluate", help="translate a test set and score it")
    _run(evaluate)
    evaluate.add_argument("--source", type=Path, help="source text (default: the run's test set)")
    evaluate.add_argument("--reference", type=Path, help="its reference translation")
    evaluate.add_argument("--ranks", type=_positive, default=1, help="processes (default: 1)")

    _add_translate(commands)
    _add_export(commands)
    _add_serve(commands)

    average = commands.add_parser("average", help="average checkpoints into one model")
    average.add_argument("run", type=Path, metavar="RUN")
    chosen = average.add_mutually_exclusive_group()
    chosen.add_argument("--last", type=_positive, metavar="K", help="the last K (default: 5)")
    chosen.add_argument("--best", type=_positive, metavar="K", help="the best K by dev loss")
    average.add_argument("--output", type=Path, help="default: RUN/checkpoints/average")

    report = commands.add_parser("report", help="answer twelve questions about a run, measured")
    report.set_defaults(module="report.command")
    add_report_options(report)

    watch = commands.add_parser("watch", help="a live screen of a run, or a page with --web")
    watch.set_defaults(module="watch.command")
    add_watch_options(watch)

    inspect = commands.add_parser("inspect", help="every file of a run with purpose and size")
    inspect.add_argument("path", type=Path, metavar="RUN|CHECKPOINT|PREPARED")


def _add_hosts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser("doctor", help="what is right and wrong on the hosts of a run")
    _hosts(doctor, required=True)
    doctor.add_argument("--run", type=Path, help="compare also its files on the hosts")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    setup = commands.add_parser("setup", help="make a Python with torch on every host, over ssh")
    _hosts(setup, required=True)
    for parser in (doctor, setup):
        parser.set_defaults(module="training_commands")

    resume = commands.add_parser("resume", help="go on with a run on the hosts it was on")
    stop = commands.add_parser("stop", help="save and end a training, from another terminal")
    for parser in (resume, stop):
        parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    status = commands.add_parser("status", help="where runs stand")
    status.add_argument("run", type=Path, metavar="RUN", nargs="*", help="default: all of --runs")
    status.add_argument("--runs", type=Path, default=Path("runs"), help="default: runs")
    status.add_argument("--json", action="store_true", help="print JSON")
    for parser in (resume, stop, status):
        parser.set_defaults(module="training_commands")


def _add_scheduled(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    generate = commands.add_parser("generate", help="a file for Slurm, Kubernetes or SkyPilot")
    generate.add_argument("kind", choices=["slurm", "kubernetes", "skypilot"])
    _recipe(generate)
    generate.add_argument("--folder", required=True, help="a folder that all machines share")
    generate.add_argument("--name", help="of the job (default: the recipe's)")
    generate.add_argument("--nodes", type=_positive, default=1, help="machines (default: 1)")
    generate.add_argument("--gpus", type=int, default=0, help="of each machine (default: none)")
    generate.add_argument("--slots", type=_positive, help="ranks where it has no GPU (default: 1)")
    generate.add_argument("--gpu", default="V100", help="their kind, in SkyPilot's words")
    generate.add_argument("--hours", type=_positive, default=24, help="at most (default: 24)")
    generate.add_argument("--image", default="", help="of the container, for Kubernetes")

    join = commands.add_parser("join", help="train as one of the machines a scheduler started")
    _recipe(join)
    join.add_argument("--at", required=True, help="ADDRESS:PORT of the first machine")
    join.add_argument("--node", type=int, help="which machine (default: as the scheduler says)")
    join.add_argument("--nodes", type=_positive, help="of how many (the same)")
    _places(join)
    join.add_argument("--ranks", type=_positive, default=1, help="of this machine (default: 1)")
    join.add_argument("--fresh", action="store_true", help="start anew, resume nothing")
    for parser in (generate, join):
        parser.set_defaults(module="scheduler_commands")


def _hosts(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--hosts", required=required, help="hosts.toml, or the inline form 10.0.0.1:2,10.0.0.2:1"
    )


def _add_translate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    translate = commands.add_parser("translate", help="translate lines of text or documents")
    translate.set_defaults(module="serve.translate_command")
    _run(translate, "RUN|BUNDLE", "a run directory, or what dragoman export has written")
    translate.add_argument("--input", type=Path, help="text, a sentence a line (default: stdin)")
    translate.add_argument(
        "--output",
        type=Path,
        help="where to write it (default: stdout); with --input, the same command goes on after "
        "a break",
    )
    translate.add_argument(
        "--n-best", type=_positive, default=1, metavar="N", help="N translations a line, scored"
    )
    translate.add_argument("--scores", action="store_true", help="score TAB translation")
    translate.add_argument(
        "--format",
        choices=["line", "document", "markup"],
        default="line",
        help="line: a sentence a line. document: lines are split into sentences and put back. "
        "markup: tags of HTML or XML stay where they are as well",
    )
    translate.add_argument(
        "--engine",
        choices=["auto", "ctranslate2", "torch"],
        default="auto",
        help="auto: CTranslate2 on a CPU where it is installed",
    )
    translate.add_argument(
        "--quantization",
        choices=["float32", "int8"],
        help="int8: with CTranslate2 a third faster; a few lines in a hundred differ",
    )
    _cores(translate)
    translate.add_argument(
        "-i",
        "--inspect",
        action="store_true",
        help="line by line, with pieces and attention (at a terminal also: type ? after a line)",
    )


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser("export", help="a model in a format that others run, checked")
    export.set_defaults(module="export.export_command")
    export.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    export.add_argument(
        "--to", choices=["bundle", "ctranslate2", "huggingface", "onnx"], required=True
    )
    export.add_argument("--checkpoint", default="best", help="as for translate")
    export.add_argument("--output", type=Path, help="default: RUN/export/FORMAT")
    export.add_argument(
        "--quantization", choices=["float32", "float16", "int8"], default="float32",
        help="of the weights, for ctranslate2",
    )  # fmt: skip
    export.add_argument("--licence", default="Not stated.", help="of the model, for its card")
    export.add_argument(
        "--sentences", type=Path, help="source text to check it on (default: the run's dev set)"
    )


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser("serve", help="translations over HTTP, and a page for people")
    serve.set_defaults(module="serve.serve_command")
    serve.add_argument(
        "bundles", type=Path, nargs="+", metavar="BUNDLE", help="one a language pair"
    )
    serve.add_argument("--host", default="127.0.0.1", help="default: this machine alone")
    serve.add_argument("--port", type=int, default=8320, help="default: 8320; 0: any free one")
    serve.add_argument("--token-file", type=Path, help="what clients must know; or DRAGOMAN_TOKEN")
    _cores(serve)
    serve.add_argument("--timeout", type=_positive, default=30, help="seconds a request may take")
    serve.add_argument(
        "--queue", type=_positive, default=65_536, help="subword pieces that may wait"
    )
    serve.add_argument(
        "--requests-per-client", type=_positive, default=256, help="under way at a time"
    )


def _cores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_positive, help="cores (default: all)")
    parser.add_argument(
        "--batch-cells", type=_positive,
        help="rows x longest source x beam searched together on a core (default: 2048 for "
        "Transformer-base, more for a smaller model); fewer take less memory",
    )  # fmt: skip


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help=_RECIPE_HELP)
    _overrides(parser)


def _overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.KEY=VALUE",
        help="override a value of the recipe; may be given again",
    )


def _run(
    parser: argparse.ArgumentParser, name: str = "RUN", meaning: str = "a run directory"
) -> None:
    parser.add_argument("run", type=Path, metavar=name, help=meaning)
    parser.add_argument(
        "--checkpoint",
        default="best",
        help="best (by BLEU where measured, else dev loss), last, a step or a directory; "
        "for translate several, joined by commas, make an ensemble",
    )
    _overrides(parser)


def _places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--prepared", type=Path, help="shards (default: prepared/NAME-DIGEST)")
    parser.add_argument(
        "--workers", type=_positive, default=None, help="processes that prepare (default: cores)"
    )


def _training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=_positive, default=None, help="processes that train (default: GPUs, or 1)"
    )
    parser.add_argument("--fresh", action="store_true", help="start anew, resume nothing")


def _positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")


if __name__ == "__main__":
    sys.exit(main())
