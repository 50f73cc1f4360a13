"""`dragoman plan`: what a run will take on given hosts and links, before any machine is rented."""

from __future__ import annotations

from argparse import Namespace

from dragoman.cli import options as shared
from dragoman.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `dragoman plan`."""
    parser = commands.add_parser(
        "plan",
        help="seconds a step, hours and money for every strategy, before any machine",
        description="Say how many seconds a step, hours and how much money a run takes on given "
        "hosts and links, for every strategy, before any machine is rented.",
    )
    shared.add_recipe(parser)
    shared.add_hosts(parser)
    parser.add_argument(
        "--ranks",
        help="in place of hosts: 4 hosts of one, 2+1 for two hosts, 1x8 for one host of eight",
    )
    parser.add_argument("--link", help="100Mbit, 1Gbit for a port; 12MB/s for a measurement")
    parser.add_argument("--gpu", help="the kind of all ranks, such as v100 or cpu")
    parser.add_argument(
        "--gpu-link",
        help="between GPUs of one host: nvlink1 to nvlink5, pcie3 to pcie5, none, 200GB/s",
    )
    parser.add_argument(
        "--compute",
        help="what one rank computes in a step without any waiting, such as 0.25s: measured while "
        "all ranks work, their mean; the wait for the slowest GPU is added",
    )
    parser.add_argument("--price", help='of one host for an hour, such as "3 USD"')
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run_command=run)


def run(options: Namespace) -> int:
    """Print the plan, as tables or as JSON."""
    from dragoman.api.records import plan
    from dragoman.base.terminal import open_console
    from dragoman.cluster.plan_view import plan_as_json, print_plan
    from dragoman.recipe.recipe import load_recipe

    planned = plan(
        load_recipe(options.recipe, options.overrides),
        link=options.link,
        hosts=options.hosts,
        ranks=options.ranks,
        gpu=options.gpu,
        gpu_link=options.gpu_link,
        compute=options.compute,
        price=options.price,
    )
    if options.json:
        print(plan_as_json(planned))
    else:
        print_plan(planned, open_console())
    return 0
